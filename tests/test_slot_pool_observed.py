from itertools import pairwise

import pytest
import slot_pool
import torch
from pool import FIRST, PROMPTS, STRANGER, N, answers, of, opened
from transformers import AutoModelForCausalLM

from kvfence.adapters.observation import Action, Observed


@pytest.mark.parametrize("fault", slot_pool.FAULTS)
def test_observing_changes_nothing_and_is_only_done_when_asked(random_folder, fault):
    plain = opened(random_folder, fault, sharing=True)
    watched = opened(random_folder, fault, sharing=True, observe=("attention", "events", "kv"))
    for _ in range(2):
        assert answers(watched, PROMPTS, n=3) == answers(plain, PROMPTS, n=3)
    assert plain.observe() == Observed()
    seen = watched.observe()
    assert set(seen.attention) == {"0", "1", "2", "3"}
    assert seen.events
    assert watched.observe() == Observed()


@pytest.mark.parametrize("sharing", [False, True])
def test_events_without_a_fault_tell_the_life_of_every_slot(canary_folder, sharing):
    engine = opened(canary_folder, sharing=sharing, observe=("events",))
    answers(engine, PROMPTS)
    events = engine.observe().events
    assert [event.step for event in events] == sorted(event.step for event in events)
    writes = of(events, Action.WRITE)
    assert all(event.start == event.position for event in writes)
    for i, prompt in enumerate(PROMPTS):
        own = [event for event in writes if event.request == str(i)]
        assert {event.slot for event in own} == {i}
        assert own[0].position == 0
        assert all(a.start + a.length == b.start for a, b in pairwise(own))
        assert own[-1].start + own[-1].length == len(prompt) + N - 1
    assert [(e.request, e.slot, e.length) for e in of(events, Action.FREE)] == [
        (str(i), i, len(prompt) + N - 1) for i, prompt in enumerate(PROMPTS)
    ]
    # The requests take turns, and the last step is the last pass.
    assert [event.request for event in writes if event.length == 1][:8] == ["0", "1", "2", "3"] * 2
    assert events[-1].step == 4 * N


@pytest.mark.parametrize("fault", ["none", "collision"])
def test_a_reused_key_was_published_for_the_same_tokens_unless_keys_collide(canary_folder, fault):
    engine = opened(canary_folder, fault, sharing=True, observe=("events",))
    answers(engine, PROMPTS)
    events = engine.observe().events
    published = {(event.slot, event.key): event for event in of(events, Action.PUBLISH)}
    slots, keys = zip(*published, strict=True)
    assert min(slots) == 4
    assert len(set(slots)) == len(set(keys)) == len(published)
    assert max(map(len, keys)) <= slot_pool.LINE
    same = {}
    for event in of(events, Action.REUSE):
        origin = published[event.slot, event.key]
        assert origin.length == event.length
        a, b = (PROMPTS[int(e.request)][: event.length] for e in (origin, event))
        same[event.request] = a == b
    assert same == ({"1": True} if fault == "none" else {"1": False, "2": False})


def test_events_of_length_begin_behind_what_the_slot_held(canary_folder):
    begins = {}
    for fault in ("none", "length"):
        engine = opened(canary_folder, fault, observe=("events",))
        answers(engine, PROMPTS, "serial")
        writes = of(engine.observe().events, Action.WRITE)
        assert {event.slot for event in writes} == {0}
        begins[fault] = [event.start for event in writes if event.position == 0]
    stored = [len(prompt) + N - 1 for prompt in PROMPTS]
    assert begins == {"none": [0, 0, 0, 0], "length": [sum(stored[:i]) for i in range(4)]}


@pytest.mark.parametrize(("fault", "calls", "expected"), [
    ("none", "batch", set()),
    ("writers", "serial", set()),
    # What 2 writes after 3 came is all behind the little that 3 ever has.
    ("writers", "batch", {("0", "1"), ("1", "0"), ("3", "2")}),
])  # fmt: skip
def test_events_of_writers_overlap_while_both_are_alive(canary_folder, fault, calls, expected):
    engine = opened(canary_folder, fault, observe=("events",))
    answers(engine, PROMPTS, calls)
    held, overwrote = {}, set()
    for event in engine.observe().events:
        offsets = set(range(event.start, event.start + event.length))
        if event.action is Action.WRITE:
            overwrote |= {(event.request, r) for (s, r), o in held.items() if s == event.slot and o & offsets}
            held.setdefault((event.slot, event.request), set()).update(offsets)
        elif event.action is Action.FREE:
            del held[event.slot, event.request]
    assert {pair for pair in overwrote if pair[0] != pair[1]} == expected
    assert not held


@pytest.mark.parametrize("sharing", [False, True])
def test_attention_is_that_of_an_eager_forward(random_folder, sharing):
    eager = AutoModelForCausalLM.from_pretrained(random_folder.path, attn_implementation="eager").eval()
    engine = opened(random_folder, sharing=sharing, observe=("attention",))
    completions = answers(engine, PROMPTS, n=4)
    seen = engine.observe().attention
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = torch.tensor([[*prompt, *completion.tokens[:-1]]])
        with torch.inference_mode():
            layers = torch.cat(eager(input_ids=ids, output_attentions=True).attentions)  # [layers, heads, T, T]
        attention = seen[completion.id]
        assert attention.rows.shape == (4, 6, 8, ids.shape[1])
        for step in range(4):
            query = len(prompt) - 1 + step
            # Keys are told by distance: the query itself first.
            expected = layers[:, :, query, : query + 1].flip(-1)
            assert torch.allclose(torch.tensor(attention.rows[step, :, :, : query + 1]), expected, atol=1e-5)
            assert not attention.rows[step, :, :, query + 1 :].any()
            assert torch.allclose(torch.tensor(attention.maximum[step]), expected.amax(-1), atol=1e-5)


@pytest.mark.parametrize("fault", ["none", "length"])
def test_attention_goes_to_keys_older_than_the_request_only_behind_a_stale_length(random_folder, fault):
    engine = opened(random_folder, fault, observe=("attention",))
    answers(engine, [FIRST, STRANGER], "serial", n=4)
    seen = engine.observe().attention
    for id, prompt in (("0", FIRST), ("1", STRANGER)):
        # A query has as many own keys as there are tokens up to it; what is farther is not its own.
        foreign = [seen[id].rows[step, :, :, len(prompt) + step :].sum(-1) for step in range(4)]
        assert {bool(there) for mass in foreign for there in (mass > 0).flat} == {fault == "length" and id == "1"}

import pytest
from continuous import LONG, OBSERVE, PROMPTS, N, open_engine, replay, requests, used_blocks

from kvfence.adapters.api import EngineFaultError, Request
from kvfence.adapters.observation import Action
from kvfence.prompts import alphabet


def finish(session):
    while session.step():
        pass
    return {completion.id: completion for completion in session.completions()}


def test_a_step_is_one_forward_pass(canary_folder):
    engine = open_engine(canary_folder, engine_args={"max_batch_tokens": "60"}, observe=("events",))
    session = engine.session()
    session.submit(Request("short", PROMPTS[3], 4))
    expected = alphabet.answer(PROMPTS[3], 4)
    assert session.step() == {"short": expected[:1]}
    session.submit(Request("long", LONG, 2))
    # 103 tokens in chunks of 59 beside a request that decodes.
    assert session.step() == {"short": expected[1:2], "long": ()}
    assert session.step() == {"short": expected[2:3], "long": alphabet.answer(LONG, 1)}
    assert session.completions() == []
    assert session.step() == {"short": expected[3:], "long": alphabet.answer(LONG, 2)[1:]}
    assert {c.id for c in session.completions()} == {"short", "long"}
    assert session.step() == {}
    assert {event.step for event in engine.observe().events if event.action is Action.WRITE} == {0, 1, 2, 3}


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("state", ["submitted", "waiting", "half prefilled", "decoding", "the first of its blocks"])
def test_a_cancelled_request_is_gone_and_hurts_nobody(canary_folder, state, sharing):
    engine = open_engine(
        canary_folder,
        sharing=sharing,
        max_concurrency=2 if state == "waiting" else 4,
        engine_args={"max_batch_tokens": "60" if state == "half prefilled" else "512"},
    )
    session = engine.session()
    if state != "the first of its blocks":
        for request in requests()[:2]:
            session.submit(request)
        session.step()
    session.submit(Request("gone", LONG if state == "half prefilled" else PROMPTS[2], N))
    if state != "submitted":
        session.step()
    if state == "the first of its blocks":
        # The others use the blocks that it has written.
        for request in requests()[:2]:
            session.submit(request)
        session.step()
    (allocator,) = engine._batcher.cache.cache_allocators.values()
    scheduler = engine._batcher.processor.scheduler
    assert ("gone" in scheduler.waiting_requests) == (state == "waiting")
    assert bool(allocator.block_table.get("gone")) == (state not in ("submitted", "waiting"))
    emitted = engine._batcher.live["gone"].emitted
    assert (emitted > 0) == (state in ("decoding", "the first of its blocks"))
    session.cancel("gone")
    assert "gone" not in allocator.block_table
    # It may come again, under the same name, while the others still run.
    session.submit(Request("gone", PROMPTS[3], 2))
    session.cancel("gone")
    session.submit(requests()[3])
    done = finish(session)
    assert {id: c.tokens for id, c in done.items()} == {
        id: alphabet.answer(PROMPTS[int(id)], N) for id in ("0", "1", "3")
    }
    assert used_blocks(engine) == 0
    session.cancel("0")  # ended already: nothing to do
    session.close()
    again = engine.generate(requests())
    assert [c.tokens for c in again] == [alphabet.answer(prompt, N) for prompt in PROMPTS]


def test_closing_a_session_withdraws_what_is_left(canary_folder):
    engine = open_engine(canary_folder, sharing=True)
    session = engine.session()
    for request in requests():
        session.submit(request)
    session.step()
    with pytest.raises(EngineFaultError, match="request 0 is running already"):
        session.submit(requests()[0])
    with pytest.raises(EngineFaultError, match="one at a time"):
        engine.session()
    session.close()
    assert used_blocks(engine) == 0
    session = engine.session()
    assert session.step() == {}
    assert session.completions() == []


def preempt(engine):
    """Two requests that do not fit together, stepped until the scheduler has put one of them back."""
    session = engine.session()
    for request in requests(30)[:2]:
        session.submit(request)
    scheduler = engine._batcher.processor.scheduler
    while not scheduler.waiting_requests:
        assert session.step()
    (waiting,) = scheduler.waiting_requests
    return session, waiting, "1" if waiting == "0" else "0"


@pytest.mark.parametrize("sharing", [False, True])
def test_a_preempted_request_is_golden(canary_folder, sharing):
    engine = open_engine(canary_folder, pool_size=80, sharing=sharing, observe=OBSERVE)
    session, waiting, _ = preempt(engine)
    assert engine._batcher.live[waiting].emitted > 0
    done = finish(session)
    seen = engine.observe()
    for id in ("0", "1"):
        assert done[id].tokens == alphabet.answer(PROMPTS[int(id)], 30)
        assert [best[0][0] for best in done[id].top_logprobs] == list(done[id].tokens)
        assert done[id].cached_tokens == 0
        assert len(seen.attention[id].rows) == 30
        assert seen.kv[id].keys.shape[2] == len(PROMPTS[int(id)]) + 29
        assert replay(seen.events, id) == len(PROMPTS[int(id)]) + 29
    assert used_blocks(engine) == 0


def test_a_session_that_does_not_come_on_is_ended(canary_folder):
    engine = open_engine(canary_folder, pool_size=80, observe=("kv",))
    session, waiting, active = preempt(engine)
    assert engine.observe().kv == {}  # to be put back is not the end
    # After a preemption this scheduler admits nobody before a request finishes; a cancelled one does not finish.
    session.cancel(active)
    assert engine.observe().kv.keys() == {active}
    with pytest.raises(EngineFaultError, match=f"no progress in 1[0-9] passes; left are the requests {waiting}"):
        session.step()
    session.close()
    assert engine.generate(requests()[:1])[0].tokens == alphabet.answer(PROMPTS[0], N)


def test_a_pass_in_which_nobody_gets_a_token_is_observed_too(canary_folder):
    """The first 60 of a prompt's 103 tokens, and nothing beside."""
    engine = open_engine(canary_folder, observe=OBSERVE, engine_args={"max_batch_tokens": "60"})
    (completion,) = engine.generate([Request("long", LONG, N)])
    assert completion.tokens == alphabet.answer(LONG, N)
    assert len(engine.observe().attention["long"].rows) == N

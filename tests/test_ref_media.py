"""Media on the reference engine: what is shown at a placeholder token counts, and is part of the key."""

import pytest
import torch
from roads import assert_empty, finish, step_until
from seams import NOISE, engine_on, prompts
from tiny_models import SUPPORTED, VOCABULARY, tiny

from kvfence.reference_impl.engine import EngineError
from kvfence.reference_impl.key import Media
from kvfence.reference_impl.media import item
from kvfence.reference_impl.scheduler import Preemption

LENGTH = 10
PLACES = (0, 9, 33)  # in the first, the second and the fifth block


def shown(*contents):
    return [Media(position, content) for position, content in zip(PLACES, contents, strict=True)]


CATS, DOGS = shown("cat", "cat 2", "cat 3"), shown("cat", "dog 2", "cat 3")


@torch.inference_mode()
def logits(model, sequence, media):
    """Logits behind each output token, by one forward on the embeddings of tokens and media, without a cache."""
    embedding = model.get_input_embeddings()
    rows = embedding(torch.tensor(sequence.tokens[:-1]))
    for one in media:
        rows[one.position] = item(embedding, one.content)
    return model(inputs_embeds=rows[None], use_cache=False).logits[0, -len(sequence.output) :]


def margin(model, sequence, media):
    """The largest distance of an emitted token from golden's choice."""
    golden, output = logits(model, sequence, media), torch.tensor(sequence.output)
    return float((golden.max(-1).values - golden.gather(1, output[:, None])[:, 0]).max())


@pytest.fixture(scope="module")
def model():
    return tiny("qwen2")


@pytest.fixture(scope="module")
def golden():
    return tiny("qwen2")


@pytest.mark.parametrize("family", SUPPORTED)
def test_a_batch_with_and_without_media_is_golden(family):
    engine, golden = engine_on(tiny(family), token_budget=24), tiny(family)
    [prompt] = prompts(1)
    media = {"cats": CATS, "dogs": DOGS, "neither": []}
    for id, items in media.items():
        engine.submit(id, prompt, LENGTH, media=items)
    done = finish(engine)
    assert {id: sequence.cached for id, sequence in done.items()} == dict.fromkeys(media, 0)
    for id, items in media.items():
        assert margin(golden, done[id], items) <= NOISE
    # The positive control: what is shown makes a difference.
    cats = logits(golden, done["cats"], CATS)
    for items in (DOGS, []):
        assert (cats - logits(golden, done["cats"], items)).abs().max() > 1000 * NOISE
    assert_empty(engine)


def test_the_same_content_is_shared_and_no_other(model, golden):
    engine = engine_on(model)
    [prompt] = prompts(1)
    engine.submit("first", prompt, LENGTH, media=CATS)
    finish(engine)
    hits = {
        "same": CATS,
        "in another order": CATS[::-1],
        "one other": DOGS,
        "swapped": shown("cat 2", "cat", "cat 3"),
        "fewer": CATS[:2],
        "elsewhere": [*CATS[:2], Media(34, "cat 3")],
        "none": [],
    }
    cached = {}
    for id, items in hits.items():
        sequence = engine.submit(id, prompt, LENGTH, media=items)
        assert margin(golden, finish(engine)[id], items) <= NOISE
        cached[id] = sequence.cached
    assert cached == dict.fromkeys(hits, 0) | dict.fromkeys(["same", "in another order"], len(prompt) - 1)


def test_a_content_is_no_salt_and_no_adapter(model):
    engine = engine_on(model)
    engine.load_adapter("cat", {})
    [prompt] = prompts(1)
    engine.submit("media", prompt, LENGTH, media=[Media(0, "cat")])
    finish(engine)
    for id, namespace in (("salt", {"salt": "cat"}), ("adapter", {"adapter": "cat"})):
        engine.submit(id, prompt, LENGTH, **namespace)
        assert finish(engine)[id].cached == 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("how", Preemption)
def test_forked_and_preempted_requests_keep_their_media(model, golden, how, depth):
    engine = engine_on(model, depth=depth, token_budget=24, sharing=False)
    [prompt, other] = prompts(2)
    parent = engine.submit("parent", prompt, LENGTH, media=CATS)
    engine.submit("other", other, LENGTH, media=DOGS)
    step_until(engine, lambda: parent.emitted > 3)
    engine.settle()
    [child] = engine.fork("parent", [parent.output[-1]])
    engine.preempt("parent", how)
    step_until(engine, lambda: child.id in engine.sequences and child in engine.scheduler.running)
    engine.preempt(child.id, how)
    done = finish(engine)
    assert done["parent"].preemptions == child.preemptions == 1
    assert child.namespace == parent.namespace
    assert margin(golden, done["parent"], CATS) <= NOISE
    assert margin(golden, done["other"], DOGS) <= NOISE
    assert margin(golden, child, CATS) <= NOISE


def test_an_adapter_on_the_embedding_counts_for_what_is_beside_media(model, golden):
    changed = tiny("qwen2")
    delta = torch.randn(changed.get_input_embeddings().weight.shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        changed.get_input_embeddings().weight.add_(delta)
    engine = engine_on(model)
    engine.load_adapter("a", {"model.embed_tokens.weight": delta})
    [prompt] = prompts(1)
    sequence = engine.submit("a", prompt, LENGTH, media=CATS, adapter="a")
    finish(engine)
    assert margin(changed, sequence, CATS) <= NOISE
    assert margin(golden, sequence, CATS) > 100 * NOISE


def test_an_embedding_is_one_of_the_models_rows_shuffled_and_always_the_same(model):
    embedding = model.get_input_embeddings()
    rows = {tuple(sorted(row)) for row in embedding.weight.tolist()}
    found = [item(embedding, content) for content in map(str, range(200))]
    assert len({tuple(row.tolist()) for row in found}) == 200
    assert all(tuple(sorted(row.tolist())) in rows for row in found)
    assert torch.equal(item(embedding, "7"), found[7])
    # What the seed gives, on any machine: a row, and where its elements come from.
    table = torch.nn.Embedding(VOCABULARY, 8)
    table.weight.data = torch.arange(VOCABULARY * 8.0).view(VOCABULARY, 8)
    first = item(table, "cat").long()
    assert first.tolist() == [121 * 8 + i for i in (7, 0, 5, 4, 3, 6, 2, 1)]


@pytest.mark.parametrize(
    ("media", "reason"),
    [
        ([Media(51, "cat")], "a media item stands at position 51 of a prompt of 51 tokens"),
        ([Media(-1, "cat")], "a media item stands at position -1 of a prompt of 51 tokens"),
        ([Media(3, "cat"), Media(3, "dog")], "two of its media items stand at one position"),
    ],
)
def test_media_that_do_not_fit_are_said_in_one_line(model, media, reason):
    engine = engine_on(model)
    with pytest.raises(EngineError, match=f"^r: {reason}$"):
        engine.submit("r", prompts(1)[0], LENGTH, media=media)


def test_a_conversation_takes_no_media(model):
    engine = engine_on(model)
    with pytest.raises(EngineError, match=r"^r: a conversation takes no media$"):
        engine.submit("r", prompts(1)[0], LENGTH, media=CATS, conversation="c")
    engine.submit("r", prompts(1)[0], LENGTH, conversation="c")
    assert finish(engine)["r"].emitted == LENGTH

"""What K/V depend on beside tokens: tenants, adapters, media, weights. None of them may be forgotten in a key."""

from kvfence.adapters.api import Media
from kvfence.conformance.scenarios.cast import Cast, scenario
from kvfence.conformance.scenarios.scenario import CHUNKED, ROOMY, TIGHT
from kvfence.prompts.mirror import Part


@scenario("key.salt", ROOMY)
def salts(cast: Cast) -> None:
    """One prompt by two tenants and by nobody's, each twice."""
    prompt, before = cast.write("P", cast.prefix(2, 3)), None
    for round_ in (0, 1):
        for salt in ("x", "y", None):
            name = f"{salt or 'none'}{round_}"
            before = cast.ask(name, prompt, after=before, salt=salt, n=10, hit=bool(round_))


@scenario("key.salt", CHUNKED)
def salts_on_every_path(cast: Cast) -> None:
    """A tenant's long prompt is chunked, preempted, forked and ended; another asks for it each time."""
    prompt = cast.write("P", cast.prefix(5, 3))
    cast.ask("x", prompt, salt="x", n=24)
    cast.step(2)
    cast.ask("y-early", prompt, salt="y", n=6)
    cast.preempt("x", at=("x", 4))
    cast.ask("y-parked", prompt, salt="y", n=6, at=("x", 6))
    cast.fork("x", 2, at=("x", 9))
    cast.ask("none", prompt, n=6, after="x")
    cast.ask("z", prompt, salt="z", n=6, after="none")
    cast.ask("x-again", prompt, salt="x", n=6, after="z", hit=True)


@scenario("key.salt", ROOMY)
def salted_turns(cast: Cast) -> None:
    """A tenant's conversation, and another who asks for its whole history."""
    opening = cast.write("open", cast.prefix(2))
    cast.ask("turn1", opening, salt="x", talk="talk")
    cast.ask("turn2", cast.write("turn2"), salt="x", talk="talk", after="turn1", n=8, hit=True)
    cast.ask("y", opening, salt="y", after="turn2")
    cast.ask("x", opening, salt="x", after="y", hit=True)


@scenario("key.salt", TIGHT)
def salts_evicted(cast: Cast) -> None:
    """Tenants' prefixes that were pushed out and may lie in another tier."""
    prompt = cast.write("P", cast.prefix(3))
    before = cast.ask("x", prompt, salt="x", n=6)
    for i in range(3):
        before = cast.ask(f"filler{i}", cast.prefix(5, i), after=before, n=10)
    before = cast.ask("y", prompt, salt="y", after=before, n=10)
    cast.ask("x-again", prompt, salt="x", after=before, n=10)


@scenario("key.adapter", ROOMY)
def adapters(cast: Cast) -> None:
    """One prompt with two adapters and without; a tenant who is called like an adapter; an adapter loaded anew."""
    # No other scenario loads these, so that they are the first of their names.
    cast.load("p", Part.KEYS)
    cast.load("q", Part.VALUES)
    prompt, before = cast.write("P", cast.prefix(2, 3)), None
    for round_ in (0, 1):
        for adapter in ("p", "q", None):
            name = f"{adapter or 'none'}{round_}"
            before = cast.ask(name, prompt, after=before, adapter=adapter, n=16, hit=bool(round_))
    before = cast.ask("salt-p", prompt, after=before, salt="p", n=16)
    cast.load("p", Part.VALUES, after=before)
    cast.ask("p-anew", prompt, adapter="p", n=16)


@scenario("key.adapter", TIGHT)
def adapters_evicted(cast: Cast) -> None:
    """A prefix made with an adapter that was pushed out, asked for without, and with its next version."""
    cast.load("a", Part.VALUES)
    prompt = cast.write("P", cast.prefix(3))
    before = cast.ask("a", prompt, adapter="a", n=6)
    for i in range(3):
        before = cast.ask(f"filler{i}", cast.prefix(5, i), after=before, n=10)
    before = cast.ask("none", prompt, after=before, n=20)
    for i in range(3):
        before = cast.ask(f"filler{3 + i}", cast.prefix(5, i), after=before, n=10)
    cast.load("a", Part.KEYS, after=before)
    cast.ask("a-anew", prompt, adapter="a", n=20)


@scenario("key.adapter", ROOMY)
def adapters_by_turns(cast: Cast) -> None:
    """A conversation that changes its adapter from turn to turn."""
    cast.load("a", Part.VALUES)
    cast.ask("turn1", cast.prefix(2), talk="talk", adapter="a")
    cast.ask("turn2", cast.write("turn2"), talk="talk", after="turn1", n=8)
    cast.ask("turn3", cast.write("turn3"), talk="talk", adapter="a", after="turn2", n=8)


@scenario("key.adapter", ROOMY)
def adapters_in_a_batch(cast: Cast) -> None:
    """Requests with two adapters and without, side by side."""
    cast.load("a", Part.KEYS)
    cast.load("b", Part.VALUES)
    prefix = cast.prefix(2)
    for i, adapter in enumerate(("a", None, "b", "a", None)):
        cast.ask(f"A{i}", prefix, adapter=adapter)


@scenario("key.media", ROOMY)
def media(cast: Cast) -> None:
    """One text with other pictures: of other content, in other places, and cut at another point."""
    prompt, before = cast.write("P", cast.prefix(2, 3), share=0.9), None
    shown = {
        "cat": (Media(4, "a picture of a cat 01a7"),),
        "dog": (Media(4, "a picture of a dog 01a7"),),
        "cat-moved": (Media(5, "a picture of a cat 01a7"),),
        "two": (Media(4, "ab"), Media(5, "c")),
        "two-cut": (Media(4, "a"), Media(5, "bc")),
        "long": (Media(4, "f" * 64 + "0"),),
        "long-too": (Media(4, "f" * 64 + "1"),),
        "none": (),
    }
    for name, items in shown.items():
        before = cast.ask(name, prompt, after=before, media=items, n=10)
    for name in ("cat", "none"):
        before = cast.ask(f"{name}-again", prompt, after=before, media=shown[name], n=10, hit=True)


@scenario("key.media", TIGHT)
def media_evicted(cast: Cast) -> None:
    """A prefix with a picture that was pushed out, asked for with another one."""
    prompt = cast.write("P", cast.prefix(3), share=0.9)
    before = cast.ask("cat", prompt, media=(Media(4, "cat"),), n=6)
    for i in range(3):
        before = cast.ask(f"filler{i}", cast.prefix(5, i), after=before, n=10)
    cast.ask("dog", prompt, media=(Media(4, "dog"),), after=before, n=10)


@scenario("key.weights", ROOMY)
def weights(cast: Cast) -> None:
    """A prefix asked for again when the weights were exchanged, and when they are the old ones again."""
    prefix = cast.prefix(3)
    cast.ask("old", prefix)
    cast.ask("turn1", cast.prefix(2), talk="talk")
    cast.exchange(Part.VALUES, after="turn1")
    cast.ask("new", cast.write("new", prefix, share=0.9))
    cast.ask("new-again", cast.write("new-again", prefix), after="new", hit=True)
    cast.ask("turn2", cast.write("turn2"), talk="talk", after="new-again", n=8)
    cast.exchange(None, after="turn2")
    cast.ask("old-again", cast.write("old-again", prefix, share=0.9))


@scenario("key.weights", TIGHT)
def weights_evicted(cast: Cast) -> None:
    """A prefix that was pushed out before the weights were exchanged."""
    prompt = cast.write("P", cast.prefix(3), share=0.9)
    before = cast.ask("old", prompt, n=6)
    for i in range(3):
        before = cast.ask(f"filler{i}", cast.prefix(5, i), after=before, n=10)
    cast.exchange(Part.KEYS, after=before)
    before = cast.ask("new", prompt)
    cast.exchange(None, after=before)
    cast.ask("old-again", prompt)

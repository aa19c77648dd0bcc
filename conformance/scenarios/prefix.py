"""Prefixes found again: at the edges of blocks, whole prompts, near misses, and after they were evicted."""

from kvfence.conformance.scenarios.cast import Cast, scenario
from kvfence.conformance.scenarios.scenario import CHUNKED, ROOMY, TIGHT


@scenario("prefix.same-tokens", ROOMY)
def block_edges(cast: Cast) -> None:
    """A shared prefix that ends with a block, one token before and one behind."""
    for more in (-1, 0, 1):
        prefix = cast.prefix(2, more)
        first = cast.ask(f"first{more}", prefix, n=10)
        cast.ask(f"again{more}", prefix, after=first, hit=True)


@scenario("prefix.same-tokens", ROOMY)
def whole_prompt(cast: Cast) -> None:
    """A prompt that is cached as a whole, at the edge of a block and beside it, and one that is its beginning."""
    for more in (0, 3):
        # Private words and what asks for them fill up the last block.
        prompt = cast.write(f"P{more}", cast.prefix(2, more - 10))
        first = cast.ask(f"first{more}", prompt)
        again = cast.ask(f"again{more}", prompt, after=first, hit=True)
        cast.ask(f"thrice{more}", prompt, after=again, hit=True)


@scenario("prefix.same-tokens", ROOMY)
def one_token_apart(cast: Cast) -> None:
    """Prefixes that differ in the first, the middle and the last token."""
    prefix = cast.prefix(3)
    before = cast.ask("A", prefix)
    for name, at in (("first", 0), ("middle", len(prefix) // 2), ("last", -1)):
        before = cast.ask(name, cast.write(name, cast.changed(prefix, at), share=0.9), after=before)
    cast.ask("same", cast.write("same", prefix, share=0.9), after=before, hit=True)


@scenario("prefix.same-tokens", ROOMY)
def same_block_elsewhere(cast: Cast) -> None:
    """A block of the same tokens behind another block, and at another place."""
    head = cast.prefix(1)
    other = cast.prefix(1, beside=head)
    block = cast.prefix(1, 1, beside=(*head, *other))
    cast.ask("A", cast.write("A", (*head, *block), share=0.9))
    cast.ask("B", cast.write("B", (*other, *block), share=0.9), after="A")
    cast.ask("C", cast.write("C", (*other, *block, *head), share=0.9), after="B", hit=True)


@scenario("prefix.same-tokens", ROOMY)
def polynomial_twins(cast: Cast) -> None:
    """Prefixes that are one under a rolling hash of base 31, block for block: a token one higher, the next 31 lower."""
    words = cast.prefix(3)
    cast.ask("A", cast.write("A", words, share=0.9))
    cast.ask("B", cast.write("B", cast.twin(words), share=0.9), after="A")
    cast.ask("A-again", cast.write("A-again", words, share=0.9), after="B", hit=True)


@scenario("prefix.same-tokens", ROOMY)
def two_go_on(cast: Cast) -> None:
    """Two that go on from where another has ended, within a block, side by side; then one that says the same again."""
    asked = cast.write("A", cast.prefix(1, 3), share=0.9)
    cast.ask("A", asked, n=10)
    for name in ("B", "C"):
        cast.ask(name, cast.going_on(name, asked.tokens, 10), after="A" if name == "B" else None, n=8, hit=True)
    cast.ask("D", cast.going_on("D", asked.tokens, 10), after="B", n=8, hit=True)


@scenario("prefix.same-tokens", ROOMY)
def many(cast: Cast) -> None:
    """More prefixes of one block than a short hash can tell apart."""
    before = None
    for i in range(40):
        prompt = cast.write(f"A{i}", cast.prefix(1, 1), share=0.9)
        before = cast.ask(f"A{i}", prompt, after=before if i % 8 == 0 else None, n=6)


@scenario("evict.forgets", TIGHT)
def evicted(cast: Cast) -> None:
    """A prefix that others have pushed out, asked for again; then again, when it is back."""
    prefix, other = cast.prefix(3), cast.prefix(3)
    before = cast.ask("A", prefix, n=6)
    before = cast.ask("twin", cast.write("twin", other, share=0.9), after=before, n=6)
    for i in range(4):
        before = cast.ask(f"filler{i}", cast.prefix(5, i), after=before, n=10)
    before = cast.ask("A-later", cast.write("A-later", prefix, share=0.9), after=before)
    before = cast.ask("twin-later", cast.write("twin-later", other, share=0.9), after=before)
    cast.ask("A-again", cast.write("A-again", prefix, share=0.9), after=before, hit=True)


@scenario("evict.forgets", ROOMY)
def reset(cast: Cast) -> None:
    """A prefix asked for again after the cache was emptied."""
    prefix = cast.prefix(3)
    before = cast.ask("A", prefix)
    before = cast.ask("A-hit", prefix, after=before, hit=True)
    cast.reset(after=before)
    for i in range(3):
        before = cast.ask(f"B{i}", cast.prefix(3, i), after=before)
    cast.ask("A-later", cast.write("A-later", prefix, share=0.9), after=before)


@scenario("publish.written-only", CHUNKED)
def withdrawn_in_prefill(cast: Cast) -> None:
    """A long prompt withdrawn when half of it is computed; others ask for the same prefix then, and meanwhile."""
    prefix = cast.prefix(8)
    cast.ask("filled", cast.prefix(9), n=4)
    cast.ask("A", prefix, after="filled")
    cast.step(2)
    cast.ask("beside", cast.write("beside", prefix, share=0.9))
    cast.step()
    cast.cancel("A")
    cast.ask("B", cast.write("B", prefix, share=0.9))
    cast.ask("C", cast.write("C", prefix), after="B", hit=True)


@scenario("publish.written-only", CHUNKED)
def at_once(cast: Cast) -> None:
    """Several with one long prefix handed over together, and one a step later."""
    prefix = cast.prefix(5)
    for i in range(3):
        cast.ask(f"A{i}", cast.write(f"A{i}", prefix, share=(0.0, 0.5, 0.9)[i]))
    cast.step()
    cast.ask("late", cast.write("late", prefix, share=0.9))
    cast.ask("last", cast.write("last", prefix, share=0.9), after="late", hit=True)


@scenario("chunk.resumes", CHUNKED)
def long_prompts(cast: Cast) -> None:
    """Prompts of several chunks side by side, with chunks of a hit between them."""
    prefix = cast.prefix(4)
    cast.ask("A", cast.write("A", cast.prefix(6, 5), share=0.9), n=36)
    cast.ask("B", cast.write("B", cast.prefix(5, -3), share=0.9))
    cast.ask("C", cast.write("C", prefix, share=0.9))
    cast.ask("D", cast.write("D", (*prefix, *cast.prefix(4, beside=prefix)), share=0.5), after="C", hit=True)

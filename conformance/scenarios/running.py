"""Operations on requests that run: forks, cancels, preemptions, guesses ahead, and what they leave behind."""

from kvfence.conformance.scenarios.cast import Cast, scenario
from kvfence.conformance.scenarios.scenario import CHUNKED, PRIVATE, ROOMY, SMALL, TIGHT, TIGHT_PRIVATE
from kvfence.prompts import alphabet


@scenario("fork.private-tail", PRIVATE)
def in_a_block(cast: Cast) -> None:
    """A request forked within its first block, and one within a later block; all go on, and read what they wrote."""
    cast.ask("A", cast.write("A"), n=14)
    cast.ask("B", cast.prefix(1), n=44)
    cast.fork("A", 2, at=("A", 3))
    cast.fork("B", 3, at=("B", 9))


@scenario("fork.private-tail", ROOMY)
def at_the_edge(cast: Cast) -> None:
    """Forked where a block is full, one token before and one behind; a stranger runs beside."""
    for more in (-1, 0, 1):
        # 11 tokens stand beside a prefix of 16, and 5 have been emitted: 32 in all.
        cast.ask(f"A{more}", cast.prefix(1, 1 + more), n=44)
    cast.ask("stranger", cast.prefix(2), n=40)
    for more in (-1, 0, 1):
        cast.fork(f"A{more}", 2, at=(f"A{more}", 5))


@scenario("fork.private-tail", ROOMY)
def parent_withdrawn(cast: Cast) -> None:
    """The parent is withdrawn when it has been forked; others take what it lets go of."""
    cast.ask("A", cast.prefix(1), n=44)
    cast.fork("A", 2, at=("A", 6))
    cast.step()
    cast.cancel("A")
    for i in range(3):
        cast.ask(f"B{i}", cast.prefix(2, i))


@scenario("fork.private-tail", TIGHT)
def more_than_fit(cast: Cast) -> None:
    """More children than the batch has places, beside a stranger: they hold blocks while they wait."""
    cast.ask("A", cast.prefix(1), n=30)
    cast.ask("stranger", cast.prefix(2), n=30)
    cast.fork("A", 4, at=("A", 3))


@scenario("cancel.keeps-shared", TIGHT)
def decoding(cast: Cast) -> None:
    """One of two on a prefix is withdrawn; newcomers take its blocks while the other goes on."""
    prefix = cast.prefix(3)
    cast.ask("A", prefix, n=6)
    cast.ask("keeps", cast.write("keeps", prefix, share=0.9), after="A", n=60, hit=True)
    cast.ask("goes", prefix, n=60)
    cast.cancel("goes", at=("goes", 5))
    for i in range(3):
        cast.ask(f"B{i}", cast.prefix(2, i), n=14)
    cast.ask("later", cast.write("later", prefix, share=0.9), after="keeps")


@scenario("cancel.keeps-shared", CHUNKED)
def at_any_point(cast: Cast) -> None:
    """Withdrawn waiting, in prefill, and decoding, each before others with the same prefix."""
    prefix = cast.prefix(6)
    for i, steps in enumerate((0, 1, 3, 6)):
        cast.ask(f"goes{i}", cast.write(f"goes{i}", prefix, share=0.5))
        cast.step(steps)
        cast.cancel(f"goes{i}")
        cast.ask(f"A{i}", cast.prefix(3, i), n=12)
    cast.ask("B", cast.write("B", prefix, share=0.9), n=30)
    cast.ask("C", cast.write("C", prefix), after="B", hit=True)


@scenario("cancel.keeps-shared", TIGHT_PRIVATE)
def retried(cast: Cast) -> None:
    """Withdrawn, handed over again at once, beside one that has nothing to do with it."""
    prompt = cast.write("P", cast.prefix(2, 5), share=0.5)
    cast.ask("goes", prompt, n=50)
    cast.cancel("goes", at=("goes", 7))
    cast.ask("retry", prompt)
    cast.ask("stranger", cast.prefix(2))
    cast.ask("next", cast.prefix(4), after="retry", n=40)


@scenario("cancel.keeps-shared", ROOMY)
def refused(cast: Cast) -> None:
    """One that the engine cannot take, for an adapter that nobody has loaded, on a prefix that others use."""
    prefix = cast.prefix(3)
    cast.ask("A", prefix, n=6)
    cast.ask("keeps", cast.write("keeps", prefix, share=0.9), after="A", n=40, hit=True)
    cast.step(2)
    cast.ask("goes", prefix, adapter="nobody's", refused=True)
    for i in range(3):
        cast.ask(f"B{i}", cast.prefix(2, i), n=14)
    cast.ask("later", cast.write("later", prefix, share=0.9), after="keeps", hit=True)


@scenario("preempt.resumes", ROOMY)
def parked(cast: Cast) -> None:
    """Requests taken out of the batch, in its beginning and later; others use the room."""
    cast.ask("A", cast.write("A", cast.prefix(2, 3), share=0.9), n=36)
    cast.ask("B", cast.write("B", cast.prefix(1, 7), share=0.9), n=36)
    cast.preempt("A", at=("A", 3))
    cast.ask("C", cast.prefix(3))
    cast.preempt("B", at=("B", 17))
    cast.preempt("A", at=("A", 20))
    cast.ask("D", cast.prefix(2))


@scenario("preempt.resumes", TIGHT_PRIVATE)
def for_room_in_answers(cast: Cast) -> None:
    """Four that the pool cannot hold when they have answered so much that they go on to read it."""
    for i in range(4):
        cast.ask(f"A{i}", cast.write(f"A{i}", cast.prefix(1, i - 2), share=1.0), n=44)


@scenario("preempt.resumes", CHUNKED)
def in_its_prompt(cast: Cast) -> None:
    """Taken out of the batch in the middle of a prompt, within a block and at its edge, beside one that goes on."""
    cast.ask("runs", cast.prefix(1), n=60)
    cast.step(2)
    for i in range(3):
        after = f"A{i - 1}" if i else None
        cast.ask(f"A{i}", cast.write(f"A{i}", cast.prefix(5, i), share=0.9), after=after, n=12)
        cast.step(1 + i % 2)
        cast.preempt(f"A{i}", at=(f"A{i}", 0))
    cast.ask("B", cast.write("B", cast.prefix(2), share=0.9), n=12)


@scenario("preempt.resumes", TIGHT_PRIVATE)
def for_room(cast: Cast) -> None:
    """Four that the pool cannot hold at once, so that some must go and come back."""
    for i in range(4):
        cast.ask(f"A{i}", cast.write(f"A{i}", cast.prefix(2, i - 2), share=0.9), n=40)


@scenario("preempt.resumes", TIGHT)
def for_room_with_a_prefix(cast: Cast) -> None:
    """The same with a prefix that they share and others that they push out."""
    prefix = cast.prefix(2)
    cast.ask("first", cast.prefix(4), n=4)
    cast.ask("A0", cast.write("A0", prefix, share=0.9), after="first", n=44)
    for i in range(1, 4):
        cast.ask(f"A{i}", cast.write(f"A{i}", prefix, share=0.9), n=44)
    cast.ask("later", cast.write("later", prefix, share=0.9), after="A0")


@scenario("speculative.rolls-back", ROOMY)
def misled(cast: Cast) -> None:
    """Prompts that mislead who guesses from them, at all offsets of a block; then all that was said is gone on from."""
    for i in range(4):
        cast.ask(f"A{i}", cast.misleading(f"A{i}", 1 + i), n=30)
    for i in range(4):
        prompt = cast.going_on(f"again{i}", cast.prompts[f"A{i}"].tokens, 30)
        cast.ask(f"again{i}", prompt, after=f"A{i}", n=6, hit=True)


@scenario("conversation.follows-history", ROOMY)
def turns(cast: Cast) -> None:
    """Two conversations by turns."""
    for turn in range(3):
        for talk in ("one", "two"):
            after = f"{talk}{turn - 1}" if turn else None
            cast.ask(f"{talk}{turn}", cast.write(talk, cast.prefix(1, turn)), talk=talk, after=after, n=14)
    cast.hits += ["one1", "two1", "one2", "two2"]


@scenario("conversation.follows-history", ROOMY)
def edited(cast: Cast) -> None:
    """Histories truncated, changed in one token, both, lengthened and reordered between two turns."""
    for talk in ("cut", "swapped", "changed-and-cut", "longer", "reordered"):
        opening = cast.write(talk, cast.prefix(1, 4))
        cast.ask(f"{talk}0", opening, talk=talk, n=14)
        # The canary's answer; for another model it is one more edit.
        history = [*opening.tokens, *alphabet.answer(opening.tokens, 14)]
        other = cast.prefix(1, beside=opening.tokens)
        if talk == "cut":
            history = history[:20]
        elif talk == "swapped":
            history[5] = other[0]
        elif talk == "changed-and-cut":
            history = [*history[:5], other[0], *history[6:24]]
        elif talk == "longer":
            history[7:7] = other[:6]
        else:
            history[2:20] = history[19:1:-1]
        cast.edit(talk, history, after=f"{talk}0")
        cast.ask(f"{talk}1", cast.write(f"{talk}1"), talk=talk, n=8)


@scenario("transfer.whole", TIGHT)
def fetched(cast: Cast) -> None:
    """Prefixes pushed out and asked for again: one request goes while its prefix is on its way, others follow."""
    prefix, other = cast.prefix(4), cast.prefix(4)
    before = cast.ask("A", prefix, n=4)
    before = cast.ask("B", other, after=before, n=4)
    for i in range(3):
        before = cast.ask(f"filler{i}", cast.prefix(6, i), after=before, n=8)
    # A step is one forward pass, so that somebody must run while a prefix is on its way.
    cast.ask("runs", cast.prefix(1), after=before, n=40)
    cast.step(2)
    cast.ask("goes", cast.write("goes", prefix, share=0.9))
    cast.step()
    cast.cancel("goes")
    cast.ask("takes", cast.prefix(5), n=20)
    cast.ask("A-later", cast.write("A-later", prefix, share=0.9), after="runs", n=50)
    cast.ask("B-later", cast.write("B-later", other, share=0.9), after="A-later", n=50)
    cast.ask("B-longer", cast.write("B-longer", other, share=0.5), n=20)


@scenario("transfer.whole", TIGHT)
def same_block_elsewhere(cast: Cast) -> None:
    """A prefix that was pushed out; another that has its later blocks behind a first one of its own."""
    head = cast.prefix(1)
    other = cast.prefix(1, beside=head)
    tail = cast.prefix(2, 1, beside=(*head, *other))
    before = cast.ask("A", cast.write("A", (*head, *tail), share=0.9), n=6)
    before = cast.ask("B", cast.write("B", other), after=before, n=6)
    for i in range(3):
        before = cast.ask(f"filler{i}", cast.prefix(6, i), after=before, n=8)
    cast.ask("C", cast.write("C", (*other, *tail), share=0.9), after=before, n=50)


@scenario("transfer.whole", TIGHT)
def withdrawn_on_return(cast: Cast) -> None:
    """Parked, everything else forgotten, taken up again and withdrawn at once; then its prefix is asked for again."""
    prefixes = [cast.prefix(4), cast.prefix(4)]
    cast.ask("runs", cast.prefix(1), n=60)
    cast.step(3)
    for i, prefix in enumerate(prefixes):
        cast.ask(f"goes{i}", prefix, n=30)
        cast.preempt(f"goes{i}", at=(f"goes{i}", 3))
        if i == 0:
            cast.reset()
        cast.step(1 + i)
        cast.cancel(f"goes{i}")
    before = "runs"
    for i in range(3):
        before = cast.ask(f"filler{i}", cast.prefix(6, i), after=before, n=8)
    cast.ask("runs-later", cast.prefix(1), after=before, n=40)
    cast.step(2)
    for i, prefix in enumerate(prefixes):
        cast.ask(f"A{i}", cast.write(f"A{i}", prefix, share=0.9), n=40)


@scenario("transfer.whole", SMALL)
def pushed_out_meanwhile(cast: Cast) -> None:
    """A prefix on its way back from a small store, while others put what they write into it."""
    prefix = cast.prefix(3)
    before = cast.ask("A", prefix, n=4)
    before = cast.ask("B", cast.prefix(4), after=before, n=4)
    cast.ask("runs", cast.prefix(1), after=before, n=40)
    cast.step(2)
    cast.ask("A-later", cast.write("A-later", prefix, share=0.9))
    cast.ask("C", cast.prefix(2), n=20)
    cast.ask("A-again", cast.write("A-again", prefix, share=0.9), after="A-later")


@scenario("transfer.whole", SMALL)
def just_pushed_out(cast: Cast) -> None:
    """Prefixes that have left the pool, and are about to leave a small store, asked for again; three times."""
    before = cast.ask("first", cast.prefix(3), n=4)
    for i in range(3):
        prefix = cast.prefix(3)
        before = cast.ask(f"A{i}", prefix, after=before, n=4)
        before = cast.ask(f"filler{i}", cast.prefix(5), after=before, n=4)
        again = cast.write(f"A{i}-later", prefix, share=0.9)
        before = cast.ask(f"A{i}-later", again, after=before, n=36)


@scenario("transfer.whole", SMALL)
def asked_for_again(cast: Cast) -> None:
    """A prefix that a small store still has, asked for while others put what they write into it; at four moments."""
    before = None
    for i in range(4):
        prefix = cast.prefix(3)
        before = cast.ask(f"A{i}", prefix, after=before, n=4)
        before = cast.ask(f"B{i}", cast.prefix(4), after=before, n=4)
        runs = cast.ask(f"runs{i}", cast.prefix(1), after=before, n=40)
        cast.ask(f"A{i}-later", cast.write(f"A{i}-later", prefix, share=0.9), at=(runs, 2 + 4 * i))
        cast.ask(f"C{i}", cast.prefix(2), at=(runs, 2 + 4 * i), n=20)
        before = cast.ask(f"A{i}-again", cast.write(f"A{i}-again", prefix, share=0.9), after=runs)


@scenario("accounting.returns-all", TIGHT)
def churn(cast: Cast) -> None:
    """Many that come, are withdrawn and end; at the end one that needs almost the whole pool."""
    prefix, before = cast.prefix(2), None
    for i in range(6):
        cast.ask(f"goes{i}", prefix, after=before)
        cast.step(i)
        cast.cancel(f"goes{i}")
        before = cast.ask(f"A{i}", cast.write(f"A{i}", prefix, share=0.9), n=6)
    cast.ask("large", cast.prefix(8), after=before, n=60)

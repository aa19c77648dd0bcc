"""What is known of the requests of one schedule, and what must hold of their outputs."""

from collections import Counter
from dataclasses import dataclass, field

from ref_subjects import Canary, Tiny

from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.sequence import Finish, Sequence

TIE = 1e-3  # logits; two tokens that near may change places where a sum is rounded in another order


@dataclass
class Tally:
    """What happened in all schedules so far."""

    counts: Counter[str] = field(default_factory=Counter)
    schedules: Counter[str] = field(default_factory=Counter)  # those in which a thing happened
    worst: float = 0.0  # logits, of a tie

    def close(self, counts: Counter[str], worst: float) -> None:
        """A schedule has ended."""
        self.counts += counts
        self.schedules.update((+counts).keys())
        self.worst = max(self.worst, worst)

    def share(self, name: str) -> float:
        """The part of the schedules in which a thing happened."""
        return self.schedules[name] / self.schedules["schedules"]

    def __str__(self) -> str:
        lines = [f"{name:>20} {n:>9} in {self.schedules[name]:>6} schedules" for name, n in sorted(self.counts.items())]
        return "\n".join([*lines, f"{'widest tie':>20} {self.worst:>9.1e}"])


@dataclass(eq=False)
class Known:
    """A request as the schedule knows it."""

    sequence: Sequence
    first: int  # output tokens that were there when it began
    forced: frozenset[int]  # places of its output that were forced
    chosen: list[int]  # under which weights each token of its output was chosen
    conversation: str | None = None  # whose turn it is
    cancelled: bool = False
    told: list[int] = field(default_factory=list)  # tokens handed out

    @property
    def output(self) -> list[int]:
        """Tokens emitted, also those that launched steps gave after the end."""
        return self.sequence.tokens[self.sequence.prompt :]

    def choose(self, weights: int) -> None:
        """What has no weights yet was chosen under these."""
        self.chosen += [weights] * (len(self.output) - len(self.chosen))


class Judge:
    """Follows the requests of an engine; raises AssertionError where one ends otherwise than it must."""

    def __init__(self, engine: ReferenceEngine, subject: Tiny | Canary) -> None:
        self.engine, self.subject = engine, subject
        self.known: dict[str, Known] = {}
        self.counts: Counter[str] = Counter()
        self.worst = 0.0

    def begin(self, sequence: Sequence, conversation: str | None = None) -> None:
        """A request was submitted."""
        self.known[sequence.id] = Known(sequence, 0, frozenset(), [], conversation)
        self.counts["requests"] += 1

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """A request was forked off another one's last token."""
        known = self.known[parent.id]
        known.choose(self.subject.weights)
        at = len(known.output) - 1
        self.known[child.id] = Known(child, at, known.forced | {at}, known.chosen[:at])
        self.counts["forks"] += 1

    def hear(self, told: dict[str, tuple[int, ...]]) -> None:
        """A step handed these tokens out."""
        for id, tokens in told.items():
            self.known[id].told += tokens

    def new_weights(self) -> None:
        """Everything in flight has landed, and the weights are about to change."""
        for known in self.known.values():
            known.choose(self.subject.weights)

    def collect(self) -> None:
        """Judge what has ended."""
        for sequence in self.engine.finished():
            known = self.known[sequence.id]
            self._end(known, sequence, known.output[: sequence.emitted])
            self._compare(known, sequence)

    def close(self) -> None:
        """Judge all, once everything has ended and been handed out."""
        for id, known in self.known.items():
            assert known.sequence.finish, f"{id} has not ended"
            assert known.told == known.output[known.first : known.sequence.emitted], f"{id} was told other tokens"
            self._compare(known, known.sequence)

    def _end(self, known: Known, sequence: Sequence, output: list[int]) -> None:
        """Whether a request ended as it should."""
        self.counts[str(sequence.finish)] += 1
        match sequence.finish:
            case Finish.LENGTH:
                assert len(output) == sequence.max_tokens
            case Finish.STOP:
                assert output[-1] in sequence.stop
            case Finish.TIMED_OUT:
                assert sequence.deadline is not None
                assert sequence.deadline <= self.engine.clock.now
            case Finish.CANCELLED:
                assert known.cancelled
            case _:
                raise AssertionError(f"{sequence.id} failed: {sequence.error}")
        early = [i for i, token in enumerate(output[:-1]) if token in sequence.stop and i not in known.forced]
        assert not early, f"{sequence.id} went on after a stop token"
        if known.conversation and sequence.finish in (Finish.LENGTH, Finish.STOP):
            history = self.engine.conversations[known.conversation].history
            assert history == [*sequence.tokens[: sequence.prompt], *output]

    def _compare(self, known: Known, sequence: Sequence) -> None:
        """Compare an output with golden's, token by token."""
        known.choose(self.subject.weights)
        prompt, output = tuple(sequence.tokens[: sequence.prompt]), tuple(known.output)
        # After a second question or a forced word the canary may hesitate.
        most = 0 if self.subject.exact and not known.conversation and not sequence.origin else TIE
        margins = {weights: self.subject.margins(weights, prompt, output) for weights in set(known.chosen)}
        for i, weights in enumerate(known.chosen):
            margin = margins[weights][i]
            if i not in known.forced and margin != 0:
                told = f"{sequence.id}: token {i} of {output} is {margin} below golden's, after {prompt}"
                assert margin <= most, told
                self.counts["ties"] += 1
                self.worst = max(self.worst, margin)
        self.counts["tokens"] += len(output)

"""A session of the reference engine: all that it can do, step by step."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvfence.adapters.api import Completion, EngineFaultError, RefusedError, Request
from kvfence.adapters.collected import CollectedSession
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.engine import EngineError, ReferenceEngine
from kvfence.reference_impl.key import Media
from kvfence.reference_impl.sequence import Finish

IDLE_STEPS = 16  # that bring nobody on before a session gives up


class ReferenceSession(CollectedSession):
    """The reference engine, driven step by step."""

    def __init__(self, engine: ReferenceEngine) -> None:
        super().__init__()
        self._engine = engine

    def submit(self, request: Request) -> None:
        """Hand a request over. Raises RefusedError for one that the engine refuses."""
        with refused():
            self._engine.submit(
                request.id,
                request.prompt,
                request.max_tokens,
                salt=request.salt,
                adapter=request.adapter,
                media=[Media(item.position, item.content) for item in request.media],
                conversation=request.conversation,
            )

    def step(self) -> Mapping[str, tuple[int, ...]]:
        for _ in range(IDLE_STEPS):
            if not self._engine.sequences:
                return {}
            emitted = self._engine.step()
            self._collect()
            if emitted or self._engine.metrics.steps[-1].computed or self._engine.clock.in_flight(Stream.STEPS):
                running = [sequence.id for sequence in self._engine.scheduler.running]
                return {**dict.fromkeys(running, ()), **emitted}
        left = ", ".join(sorted(self._engine.sequences))
        raise EngineFaultError(f"no progress in {IDLE_STEPS} steps; left are the requests {left}")

    def cancel(self, id: str) -> None:
        """Withdraw a request. One that has ended is not touched: its completion stays."""
        if id in self._engine.sequences:
            self._engine.cancel(id)

    def fork(self, id: str, first: Sequence[int]) -> Sequence[str]:
        with refused():
            return [child.id for child in self._engine.fork(id, first)]

    def preempt(self, id: str) -> None:
        with refused():
            self._engine.preempt(id)

    def edit(self, conversation: str, history: Sequence[int]) -> None:
        with refused():
            self._engine.edit_history(conversation, history)

    def close(self) -> None:
        self.closed = True
        for id in list(self._engine.sequences):
            self._engine.cancel(id)
        self._engine.settle()
        self._engine.finished()

    def _collect(self) -> None:
        for sequence in self._engine.finished():
            if sequence.finish is Finish.FAILED:
                self.failed[sequence.id] = sequence.error
            if sequence.finish is Finish.LENGTH:
                self.done.append(
                    Completion(
                        sequence.id,
                        tuple(sequence.output),
                        tuple(sequence.logprobs),
                        tuple(sequence.top_logprobs),
                        sequence.cached,
                        sequence.forced,
                    )
                )


@contextmanager
def refused() -> Iterator[None]:
    """Tell what the engine refuses in the contract's words."""
    try:
        yield
    except EngineError as error:
        raise RefusedError(str(error)) from error

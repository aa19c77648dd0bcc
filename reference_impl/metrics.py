"""Monitoring: what each step did, and all of them together."""

from dataclasses import dataclass, field

from kvfence.reference_impl.scheduler import Scheduler
from kvfence.reference_impl.sequence import Row


@dataclass(frozen=True)
class StepMetrics:
    """One step of the engine."""

    step: int
    running: int  # sequences
    waiting: int
    computed: int  # tokens, of prompts and outputs
    emitted: int  # tokens
    used: int  # blocks in tables
    cached: int  # blocks published and not in use
    preempted: int  # sequences, since the step before
    rejected: int  # tokens guessed and not accepted


@dataclass
class Metrics:
    """Sums over all steps, and the steps themselves."""

    steps: list[StepMetrics] = field(default_factory=list)
    requests: int = 0
    prompt_tokens: int = 0  # of admitted requests
    cached_tokens: int = 0  # of these, taken from the prefix pool or a conversation
    hits: int = 0  # requests that took any
    queued: int = 0  # steps between submission and first forward pass, summed over requests
    preemptions: int = 0
    computed: int = 0  # tokens
    emitted: int = 0  # tokens
    accepted: int = 0  # guessed tokens that were right
    rejected: int = 0  # guessed tokens that were not
    _told: int = 0  # of these, those in `steps`

    def admitted(self, prompt: int, cached: int, queued: int) -> None:
        """A request had its first forward pass."""
        self.requests += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.hits += cached > 0
        self.queued += queued

    def stepped(self, step: int, scheduler: Scheduler, rows: list[Row], emitted: int) -> None:
        """A step has ended, which launched `rows` and emitted so many tokens."""
        pool = scheduler.cache.pool
        told = StepMetrics(
            step=step,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            computed=sum(row.stop - row.start for row in rows),
            emitted=emitted,
            used=pool.used,
            cached=pool.cached,
            preempted=scheduler.preempted - self.preemptions,
            rejected=self.rejected - self._told,
        )
        self.steps.append(told)
        self.preemptions, self._told = scheduler.preempted, self.rejected
        self.computed += told.computed
        self.emitted += told.emitted

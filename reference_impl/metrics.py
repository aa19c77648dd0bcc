"""Monitoring: what each step did, and all of them together."""

from dataclasses import dataclass, field


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
    preempted: int  # sequences
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

    def admitted(self, prompt: int, cached: int, queued: int) -> None:
        """A request had its first forward pass."""
        self.requests += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.hits += cached > 0
        self.queued += queued

    def stepped(self, step: StepMetrics) -> None:
        """A step has ended."""
        self.steps.append(step)
        self.preemptions += step.preempted
        self.computed += step.computed
        self.emitted += step.emitted

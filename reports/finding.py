"""A finding: one victim of one case and all that is known of what happened to it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """A run of another request's words, in their order, in a victim's output."""

    request: str
    case: str
    start: int  # first output position
    length: int  # words
    words: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """A victim's output position by position; every tuple has one entry per output token unless it is empty."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    expected_texts: tuple[str, ...]  # the golden continuation of the prompt alone
    margins: tuple[float, ...]  # golden's max logit minus the emitted token's, given the engine's own tokens before
    golden_logprobs: tuple[float, ...]  # nats, of the emitted token
    logprobs: tuple[float, ...]  # nats, as the engine reported them; empty if it does not
    owners: tuple[str | None, ...]  # request whose private words the token spells; None = its own or nobody's


@dataclass(frozen=True)
class Key:
    """A key of large attention, as seen from one query."""

    position: int  # the request's own position; negative = before its own first token
    token: int | None  # there; None = not its own
    text: str
    probability: float | None  # None = not kept


@dataclass(frozen=True)
class AttentionRecord:
    """How a victim's attention differs from golden's, given the engine's own tokens before.

    A shift is the total variation distance (0 to 1) of two attention distributions; its excess is the shift over what
    was measured as noise for that layer and head: above 1 it is no noise.
    """

    first_step: int  # 0-based output position at which attention first moved
    layer: int  # where it moved most at that step
    head: int
    shift: float
    shifts: tuple[float, ...]  # largest over layers and heads, per output step
    excess: tuple[float, ...]  # likewise
    map: tuple[tuple[float, ...], ...]  # [layers][heads] shifts at `first_step`
    engine_top: tuple[Key, ...]  # keys of largest attention at `first_step`, layer and head; best first
    golden_top: tuple[Key, ...]
    engine_maximum: float
    golden_maximum: float
    engine_entropy: float  # nats
    golden_entropy: float
    # By owner tags: whose keys were met ("" = nobody's), and the most probability that went there at any step.
    foreign: tuple[tuple[str, float], ...] = ()  # largest first


@dataclass(frozen=True)
class KVRow:
    """Cells of one KV head of one layer, K or V, that do not hold what they should."""

    part: str  # K or V
    layer: int
    head: int
    stretches: tuple[tuple[int, int], ...]  # first and last position of each, ascending
    excess: float  # largest error over its tolerance


@dataclass(frozen=True)
class KVRecord:
    """What a victim's cache held when it ended, against golden's K/V of the same tokens."""

    layers: int
    heads: int  # KV heads
    positions: int  # that were compared
    rows: tuple[KVRow, ...]
    source: str | None  # request whose K/V the first wrong position holds; None = nobody's that is known
    source_case: str | None
    source_position: int | None  # the position there that they belong to


@dataclass(frozen=True)
class LogLine:
    """One use of a slot of the engine's cache."""

    step: int  # forward passes of the engine before it
    request: str
    action: str  # allocate, write, copy, restore, fetch, publish, reuse, fork, evict or free
    slot: int
    start: int  # offset in the slot, tokens
    length: int  # tokens
    position: int  # the request's own position of the first of them
    key: str  # what publish and reuse go by


@dataclass(frozen=True)
class Telltale:
    """A rule of ownership that the log of the cache breaks, or what running a case under a global lock has shown."""

    kind: str  # length, key, overlap, owner, free, table, fork or lock
    victim: str  # request; "" for lock
    source: str | None
    source_case: str | None
    told: str  # one sentence
    step: int | None = None  # forward passes of the engine before the use that breaks it; None = of no one use
    slot: int | None = None


@dataclass(frozen=True)
class Explanation:
    """What made a victim of a request, and which known class of faults shows itself in that way."""

    triggers: tuple[str, ...]  # requests without each of which it is not hit
    trigger_how: str  # what leaving out its neighbours has shown
    fault_class: str | None  # None = no row of the class-naming table is like it
    family: str | None  # of classes, that it belongs to
    confidence: float | None  # 0 to 1: how often rows of its kind were right on planted faults; None without a class
    class_how: str  # what is known that the row goes by
    class_kind: str  # rules, domains, cache, reading or answers: what the row goes by first; empty without a class


@dataclass(frozen=True)
class Finding:
    """One victim of one case, with the evidence against it."""

    victim: str
    first_step: int  # first wrong output position, 0-based; where the output is right, the step attention moved at
    oracles: tuple[str, ...]
    summary: str
    source: str | None  # request that leaked; None = not attributed
    source_case: str | None  # its case, which may be an earlier one
    source_how: str  # how the source was found
    epsilon: float
    spellings: tuple[Spelling, ...]
    prompt: tuple[int, ...]
    prompt_text: str
    trace: Trace
    attention: AttentionRecord | None = None  # None = not observed, not judged, or not moved
    block: int | None = None  # of the cache, that it went through; None = not seen
    explanation: Explanation | None = None  # None = not looked for
    kv: KVRecord | None = None  # None = not observed, not judged, or nothing was off

"""Sample evidence: what a finding and a case hold of an engine that lets itself be observed."""

from kvfence.reports.finding import AttentionRecord, Key, KVRecord, KVRow, LogLine, Telltale

STEPS, LAYERS, HEADS = 32, 6, 8


def attention(step: int = 4, layer: int = 2, head: int = 5) -> AttentionRecord:
    """Attention that moves at ``step``, two thirds of it in one head, to a key before the request's own first."""
    shifts = tuple(0.66 - 0.01 * i if i >= step else 2e-6 for i in range(STEPS))
    moved = tuple(
        tuple(round(0.66 / (1 + abs(i - layer) * 3 + abs(j - head)), 4) for j in range(HEADS)) for i in range(LAYERS)
    )
    own = (Key(63, 1201, " assistant", 0.41), Key(64, 77, "", 0.17), Key(12, 5, "\n", None))
    return AttentionRecord(
        first_step=step,
        layer=layer,
        head=head,
        shift=moved[layer][head],
        shifts=shifts,
        excess=tuple(shift / 1.5e-5 for shift in shifts),
        map=moved,
        engine_top=(Key(-33, None, "", 0.58), *own[:2]),
        golden_top=own,
        engine_maximum=0.58,
        golden_maximum=0.41,
        engine_entropy=1.37,
        golden_entropy=2.25,
        foreign=(("B0", 0.58), ("", 0.03)),
    )


def kv(source: str | None = "B0", case: str | None = None) -> KVRecord:
    """Positions 64 to 79 of two heads, of which one is V alone, and one position of the answer."""
    rows = (KVRow("K", 1, 0, ((64, 79), (100, 100)), 812.5), KVRow("V", 2, 3, ((64, 79),), 4.2))
    return KVRecord(3, 4, 120, rows, source, case, None if source is None else 64)


def log(source: str, victim: str, *, n: int = 5) -> tuple[LogLine, ...]:
    """A victim that begins in a slot behind what its source left there, and C0 beside them."""
    lines = (
        LogLine(0, source, "write", 0, 0, 97, 0, ""),
        LogLine(0, source, "publish", 0, 0, 64, 0, "9f3c01d2"),
        LogLine(1, victim, "reuse", 0, 0, 64, 0, "9f3c01d2"),
        LogLine(1, victim, "write", 0, 97, 33, 64, ""),
        LogLine(2, source, "free", 0, 0, 0, 0, ""),
    )
    return (*lines, *(LogLine(2 + i, "C0", "write", 1, 97 + i, 1, 97 + i, "") for i in range(n - len(lines))))


def telltales(source: str, victim: str) -> tuple[Telltale, ...]:
    return (
        Telltale(
            "length", victim, source, None, f"{victim} begins at offset 97 of slot 0 with its token 64: "
            f"what is before it was left by {source}", 1, 0,
        ),
        Telltale("key", source, victim, None, f"{source} takes 64 tokens of K/V by key 9f3c01d2 from slot 0"),
        Telltale("lock", "", None, None, f"one request at a time, on a fresh engine, {victim} still left golden"),
    )  # fmt: skip

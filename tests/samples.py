"""Sample runs: the records a conforming, a violating and a killed run leave behind."""

import json
import random
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from watched import attention, kv, log, telltales

from kvfence.reports.finding import Explanation, Finding, Key, KVRow, LogLine, Spelling, Telltale, Trace
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import (
    SCHEMA,
    CaseRecord,
    EndRecord,
    EngineRecord,
    NoiseRecord,
    Record,
    RequestRecord,
    Run,
    RunRecord,
)

STEPS = 32
HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202eevil\ud800<img src=x onerror=alert(2)>\"'&amp;{{ 7*7 }}"
NAMES = ("A0", "B0", "C0")


def words(seed: str, n: int) -> list[str]:
    """The n words a sample request keeps to itself."""
    rng = random.Random(seed)
    return ["".join(rng.choice(part) for part in ("bdfgklmnprstvz", "aeiou") * 3)[:5] for _ in range(n)]


def header(**changes: Any) -> RunRecord:
    record = RunRecord(
        run="20261129T031204-7f3a",
        command="kvfence run --engine vllm --model canary --profile default --report out/kvfence",
        started="2026-11-29T03:12:04+00:00",
        kvfence="0.1.0",
        engine="vllm",
        engine_args={"block_size": "32"},
        model="canary",
        model_kind="canary",
        profile="default",
        seed=7,
        cases=24,
        versions={"python": "3.11.7", "torch": "2.13.0", "transformers": "5.1.0"},
    )
    return replace(record, **changes)


def engine(dtype: str = "float32", *, sharing: bool = True) -> EngineRecord:
    return EngineRecord(
        config={"dtype": dtype, "sharing": sharing, "max_concurrency": 8, "seed": 7},
        name="vllm",
        version="0.32.0",
        block_size=32,
        capabilities={
            "token_prompts": {"state": "supported", "reason": ""},
            "cached_tokens": {"state": "supported", "reason": ""},
            "reset_cache": {"state": "unknown", "reason": "the engine has no call that says so"},
            "top_logprobs": {"state": "unsupported", "reason": "built without --max-logprobs"},
        },
        seconds=4.2,
    )


def noise(dtype: str = "float32") -> NoiseRecord:
    scale = 1.0 if dtype == "float32" else 900.0
    return NoiseRecord(
        dtype=dtype,
        bucket=512,
        resolution=4.8e-6 * scale,
        shapes_positions=10_240,
        shapes_max=2.4e-5 * scale,
        solo_positions=10_016,
        solo_max=3.1e-5 * scale,
        solo_outliers=0,
        epsilon=1.24e-4 * scale,
        held_out_positions=1_024,
        held_out_max=2.8e-5 * scale,
        attention_positions=512 if dtype == "float32" else 0,
        attention_max=3.7e-6 if dtype == "float32" else 0.0,
        attention_held_out=0.31 if dtype == "float32" else 0.0,
        attention_judged=dtype == "float32",
    )


def request(name: str, case: str, *, cached: int | None = 0) -> RequestRecord:
    return RequestRecord(
        request=name,
        group=name[0],
        prompt_tokens=97,
        prefix_tokens=64,
        secret=" ".join(words(f"{case}/{name}", 5)),
        output=tuple(random.Random(f"{case}/{name}/out").choices(range(4096), k=STEPS)),
        cached_tokens=cached,
        edit_distance=0,
        largest_margin=2e-5,
        attention_shift=3e-6 if "float32" in case else None,
    )


def case(
    mode: str = "shared", dtype: str = "float32", concurrency: int = 3, edge: str = "block", **changes: Any
) -> CaseRecord:
    """A case that conforms, of as many requests as run at once (three at most)."""
    name = f"isolation.{mode}.canary-{edge}-mixed-{concurrency}-{dtype}"
    cached = 64 if mode == "shared" and concurrency > 1 else 0
    record = CaseRecord(
        case=name,
        requirement=f"isolation.{mode}",
        outcome=Outcome.CONFORMS,
        reason="every output equals golden",
        mode=mode,
        layout="canary",
        edge=edge,
        company="mixed" if concurrency > 1 else "alone",
        concurrency=concurrency,
        dtype=dtype,
        reproduce=f"kvfence run --engine vllm --model canary --seed 7 --only '{name}'",
        engine_seconds=1.31,
        suite_seconds=0.22,
        shareable_tokens=128 if cached else 0,
        cached_tokens=cached * 2,
        positions=STEPS * concurrency,
        requests=tuple(request(each, name, cached=cached) for each in NAMES[: min(3, concurrency)]),
    )
    return replace(record, **changes)


def trace(victim: str, source: str | None, start: int, length: int, *, source_case: str, case: str) -> Trace:
    """A victim that follows golden to ``start``, then spells ``length`` words of the source or nobody's."""
    own, other = words(f"{case}/{victim}", STEPS), words(f"{source_case}/{source}", STEPS)
    foreign = range(start, start + length)
    margins = [round(0.00001 * (step % 3), 6) for step in range(STEPS)]
    for step in foreign:
        margins[step] = 19.4 - 0.7 * (step - start)
    golden = tuple(-0.0004 - margin for margin in margins)
    return Trace(
        tokens=tuple(random.Random(f"{case}/{victim}").choices(range(4096), k=STEPS)),
        texts=tuple(other[step] if step in foreign else own[step] for step in range(STEPS)),
        expected_texts=tuple(own),
        margins=tuple(margins),
        golden_logprobs=golden,
        logprobs=tuple(-0.0006 if step in foreign else value for step, value in enumerate(golden)),
        owners=tuple(source if step in foreign else None for step in range(STEPS)),
    )


def finding(
    victim: str, source: str | None, start: int, length: int, *, case: str, source_case: str | None = None
) -> Finding:
    of = source_case or case
    evidence = trace(victim, source, start, length, source_case=of, case=case)
    spelled = Spelling(str(source), of, start, length, evidence.texts[start : start + length])
    return Finding(
        victim=victim,
        first_step=start,
        oracles=("golden", "canary") if source else ("golden",),
        summary=f"{victim} left golden at step {start}"
        + (f" and spelled {length} words of {source} in their order" if source else f" for {length} steps"),
        source=source,
        source_case=of if source else None,
        source_how="owner of the spelled words" if source else "no request's words fit",
        epsilon=noise(case.rpartition("-")[2]).epsilon,
        spellings=(spelled,) if source else (),
        prompt=tuple(range(900, 997)),
        prompt_text="<bos> " + " ".join(evidence.expected_texts[:20]) + " <ask> " + evidence.expected_texts[0],
        trace=evidence,
        block=7,
        explanation=Explanation(
            ("B",), "it does not happen without B", "KEY-HASH", "key", 0.9, "K/V of other tokens were found", "rules"
        ),
    )


def grid() -> list[CaseRecord]:
    return [
        case(mode, dtype, concurrency, edge)
        for mode, dtype, concurrency, edge in product(
            ("serial", "independent", "shared"), ("float32", "bfloat16"), (1, 3), ("block", "block-plus-1")
        )
    ]


def conforming() -> list[Record]:
    return [header(), engine(), engine("bfloat16"), noise(), noise("bfloat16"), *grid(), EndRecord(191.4, 0)]


def violating() -> list[Record]:
    """Two violations: B0's words in A0 of its batch, and in C0 words of an earlier case's B0."""
    cases = {each.case: each for each in grid()}
    neighbour, late, silent = (
        case("shared", "float32", 3, "block-plus-1"),
        case("shared", "bfloat16", 3, "block"),
        case("shared", "float32", 1),
    )
    found = {
        neighbour.case: (finding("A0", "B0", 6, 5, case=neighbour.case),),
        late.case: (
            finding("C0", "B0", 11, 4, case=late.case, source_case=neighbour.case),
            finding("B0", None, 3, 2, case=late.case),
        ),
    }
    for name, findings in found.items():
        reason = "; ".join(each.summary for each in findings)
        cases[name] = replace(cases[name], outcome=Outcome.VIOLATES, reason=reason, findings=findings)
    cases[neighbour.case] = observed(cases[neighbour.case])
    cases[silent.case] = replace(
        cases[silent.case], outcome=Outcome.INCONCLUSIVE, reason="nothing was cached: the prefix never hit"
    )
    opened: list[Record] = [header(), engine(), engine("bfloat16"), noise(), noise("bfloat16")]
    return [*opened, *cases.values(), EndRecord(204.9, 1)]


def observed(violating: CaseRecord) -> CaseRecord:
    """A case in which A0 answered B0's words from step 6 on, with all that was observed of it."""
    first, *others = violating.requests
    hit = replace(first, edit_distance=5, first_changed=6, largest_margin=19.4, attention_step=4, attention_shift=0.66)
    return replace(
        violating,
        requests=(hit, *others),
        findings=tuple(replace(each, attention=attention(), kv=kv(case=violating.case)) for each in violating.findings),
        log=log("B0", "A0", n=9),
        telltales=telltales("B0", "A0"),
    )


def incomplete() -> list[Record]:
    return [header(), engine(), noise(), *grid()[:9]]


def hostile() -> list[Record]:
    """Every text of a run under the control of somebody who wants out of the page."""
    base = case()
    evidence = finding("A0", "B0", 2, 3, case=base.case)
    trace = replace(
        evidence.trace,
        texts=(HOSTILE,) * STEPS,
        expected_texts=("x" * 1_000_000, *[""] * (STEPS - 1)),
    )
    spelled = replace(evidence.spellings[0], request=HOSTILE, case=HOSTILE, words=(HOSTILE,))
    vague = Explanation((HOSTILE,), HOSTILE, HOSTILE, HOSTILE, 0.5, HOSTILE, "cache")
    bad = replace(
        evidence,
        victim=HOSTILE, summary=HOSTILE, source=HOSTILE, source_case=HOSTILE, source_how=HOSTILE, oracles=(HOSTILE,),
        explanation=vague, prompt_text=HOSTILE, spellings=(spelled,),
        trace=replace(trace, owners=(HOSTILE,) * STEPS),
        attention=replace(
            attention(), engine_top=(Key(3, 1, HOSTILE, 0.5),), golden_top=(Key(4, 2, HOSTILE, None),),
            foreign=((HOSTILE, 0.5),),
        ),
        kv=replace(kv(HOSTILE, HOSTILE), rows=(KVRow(HOSTILE, 0, 0, ((1, 2),), 5.0),)),
    )  # fmt: skip
    sender = replace(base.requests[0], request=HOSTILE, group=HOSTILE, secret=HOSTILE)
    worst = replace(
        base,
        case=HOSTILE, requirement=HOSTILE, reason=HOSTILE, layout=HOSTILE, edge=HOSTILE, company=HOSTILE, dtype=HOSTILE,
        reproduce=HOSTILE, outcome=Outcome.VIOLATES, requests=(sender,), findings=(bad,),
        log=(LogLine(0, HOSTILE, HOSTILE, 0, 0, 1, 0, HOSTILE),),
        telltales=(Telltale(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 0, 0),),
    )  # fmt: skip
    opened = replace(
        engine(),
        name=HOSTILE, version=HOSTILE, config={HOSTILE: HOSTILE},
        capabilities={HOSTILE: {"state": HOSTILE, "reason": HOSTILE}},
    )  # fmt: skip
    first = header(
        run=HOSTILE, command=HOSTILE, started=HOSTILE, kvfence=HOSTILE, engine=HOSTILE, engine_args={HOSTILE: HOSTILE},
        model=HOSTILE, model_kind=HOSTILE, profile=HOSTILE, versions={HOSTILE: HOSTILE},
    )  # fmt: skip
    measured = replace(noise(), dtype=HOSTILE, attention_reason=HOSTILE, solo_fault=HOSTILE)
    silent = replace(worst, case="silent", outcome=Outcome.SUITE_ERROR, findings=())
    return [first, opened, measured, worst, silent, EndRecord(1.0, 1)]


def line(record: Record) -> dict[str, Any]:
    """A record as it comes back from its line."""
    loaded = json.loads(json.dumps({"kind": record.kind, "schema": SCHEMA, **asdict(record)}))
    assert isinstance(loaded, dict)
    return loaded


def as_run(records: list[Record]) -> Run:
    lines = [line(record) for record in records]
    of_kind = {kind: [each for each in lines if each["kind"] == kind] for kind in ("engine", "noise", "case", "end")}
    return Run(
        header=lines[0],
        engines=of_kind["engine"],
        noise=of_kind["noise"],
        cases=sorted(of_kind["case"], key=lambda each: str(each["case"])),
        end=of_kind["end"][-1] if of_kind["end"] else None,
    )

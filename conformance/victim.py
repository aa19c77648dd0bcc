"""A victim written down: the finding that records and reports hold."""

from collections.abc import Iterable, Sequence

import numpy as np

from kvfence.conformance.evidence import Evidence, Observation
from kvfence.conformance.oracles.attention import AttentionEvidence, Peak
from kvfence.conformance.oracles.kv import KVEvidence
from kvfence.prompts.groups import Layout
from kvfence.prompts.prompt import Prompt
from kvfence.reports.finding import AttentionRecord, Finding, Key, KVRecord, Spelling, Trace


def finding(
    case: str,
    observation: Observation,
    evidence: Evidence,
    expected: Sequence[int],
    secrets: dict[str, str],
    layout: Layout,
    epsilon: float,
) -> Finding:
    """Write down one victim. `secrets` names the request of this case that a private word belongs to."""
    prompt, completion, verification = observation.prompt, observation.completion, observation.verification
    source = evidence.source
    return Finding(
        victim=prompt.name,
        first_step=evidence.first_step,
        oracles=evidence.oracles,
        summary=_summary(prompt.name, evidence, case),
        source=source.request if source else None,
        source_case=source.case if source else None,
        source_how=evidence.how.replace(f"{case}/", ""),
        epsilon=epsilon,
        spellings=tuple(
            Spelling(run.owner.request, run.owner.case, run.steps[0], len(run.words), run.words)
            for run in evidence.runs
        ),
        prompt=prompt.tokens,
        prompt_text=layout.text(prompt.tokens),
        trace=Trace(
            tokens=completion.tokens,
            texts=tuple(layout.texts(completion.tokens)),
            expected_texts=tuple(layout.texts(expected)),
            margins=verification.margins,
            golden_logprobs=verification.logprobs,
            logprobs=completion.logprobs or (),
            owners=_owners(completion.tokens, prompt, evidence, secrets, layout),
        ),
        attention=_attention(evidence.attention, prompt.tokens, completion.tokens, case, layout),
        kv=_kv(evidence.kv),
    )


def _attention(
    moved: AttentionEvidence | None, prompt: Sequence[int], output: Sequence[int], case: str, layout: Layout
) -> AttentionRecord | None:
    if moved is None:
        return None
    tokens, query = (*prompt, *output), len(prompt) - 1 + moved.step
    return AttentionRecord(
        first_step=moved.step,
        layer=moved.layer,
        head=moved.head,
        shift=_decimal([moved.shifts[moved.step, moved.layer, moved.head]])[0],
        shifts=_decimal(moved.shifts.max(axis=(1, 2))),
        excess=_decimal(moved.excess.max(axis=(1, 2))),
        map=tuple(map(_decimal, moved.shifts[moved.step])),
        engine_top=_keys(moved.engine, query, tokens, layout),
        golden_top=_keys(moved.golden, query, tokens, layout),
        engine_maximum=moved.engine.maximum,
        golden_maximum=moved.golden.maximum,
        engine_entropy=moved.engine.entropy,
        golden_entropy=moved.golden.entropy,
        foreign=tuple((owner.removeprefix(f"{case}/"), probability) for owner, probability in moved.foreign),
    )


def _decimal(values: Iterable[np.float32]) -> tuple[float, ...]:
    """Numbers in as few digits as tell them apart in float32: those behind say nothing, and fill the records."""
    return tuple(float(str(value)) for value in values)


def _kv(wrong: KVEvidence | None) -> KVRecord | None:
    if wrong is None:
        return None
    name, case = (wrong.source.request, wrong.source.case) if wrong.source else (None, None)
    return KVRecord(*wrong.shape, wrong.rows, name, case, wrong.source_position)


def _keys(peak: Peak, query: int, tokens: Sequence[int], layout: Layout) -> tuple[Key, ...]:
    keys = []
    for distance, probability in peak.top:
        position = query - distance
        token = tokens[position] if position >= 0 else None
        keys.append(Key(position, token, "" if token is None else layout.texts([token])[0], probability))
    return tuple(keys)


def _owners(
    tokens: Sequence[int], prompt: Prompt, evidence: Evidence, secrets: dict[str, str], layout: Layout
) -> tuple[str | None, ...]:
    """The request each output token belongs to: that of a spelling, else of this case whose private word it is."""
    owners: list[str | None] = [None] * len(tokens)
    for word, step in layout.words(tokens):
        if word not in prompt.words:
            owners[step] = secrets.get(word)
    if evidence.source in {splice.owner for splice in evidence.splices} and evidence.source and not evidence.runs:
        owners[evidence.first_step] = evidence.source.request
    for run in evidence.runs:
        for step in run.steps:
            owners[step] = run.owner.request
    return tuple(owners)


def _summary(victim: str, evidence: Evidence, case: str) -> str:
    source, divergence = evidence.source, evidence.golden.divergence
    where = f" of {source.case}" if source and source.case != case else ""
    if evidence.runs:
        best = max(evidence.runs, key=lambda run: len(run.words))
        words = " ".join(best.words[:6]) + (" …" if len(best.words) > 6 else "")
        whose = best.owner.request + (f" of {best.owner.case}" if best.owner.case != case else "")
        return f"request {victim} answered with {len(best.words)} words of request {whose}: {words}"
    if source and divergence and evidence.splices and source in {splice.owner for splice in evidence.splices}:
        first = next(splice for splice in evidence.splices if splice.owner == source)
        return f"request {victim} answered {first.word}, part {first.foreign} of request {source.request}{where}"
    by = f", by the K/V of request {source.request}{where}" if source else ""
    if divergence and evidence.golden.overflowed:
        return f"request {victim} has a {divergence.by} that is no number at output token {divergence.step}{by}"
    if divergence:
        size = f"{divergence.size:.3g} {'logits' if divergence.by == 'margin' else 'nats'}"
        return f"request {victim} left golden at output token {divergence.step} ({divergence.by} off by {size}){by}"
    if moved := evidence.attention:
        shift = moved.shifts[moved.step, moved.layer, moved.head]
        where_moved = f"layer {moved.layer}, head {moved.head}, shift {shift:.3g}"
        if moved.excess[moved.step].max() <= 1:
            return f"request {victim} attends to keys that are not its own from output token {moved.step} on{by}"
        return f"request {victim} attends otherwise than golden from output token {moved.step} on ({where_moved}){by}"
    if not evidence.breaches:
        return f"request {victim} {_unseen(evidence)}{by}"
    breach = evidence.breaches[0]
    return f"request {victim} {breach.told}".replace(f"{case}/", "")


def _unseen(evidence: Evidence) -> str:
    """What is wrong where the answer itself is right."""
    if wrong := evidence.kv:
        where = f"layers {_listed(wrong.layers)}, KV heads {_listed(wrong.heads)}, {' and '.join(wrong.parts)}"
        return f"has K/V that are not its own at positions {_listed(wrong.positions)} ({where})"
    if times := evidence.times:
        than = f"of {times.other * 1e3:.2f} ms where another tenant has sent the prefix, {times.fresh * 1e3:.2f} where"
        return f"and its like have a first token {than} nobody has (medians; KS distance {times.distance:.2f})"
    if told := evidence.side:
        return f"had {told.cached} tokens cached where its own domain could have had {told.possible}"
    return "changes when only its neighbours' secrets do"


def _listed(numbers: Sequence[int]) -> str:
    """Numbers in ascending order, those that follow each other as a range."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvfence.adapters.api import EngineFaultError
from kvfence.adapters.observation import Attention
from kvfence.conformance import noise
from kvfence.conformance.oracles.attention import FACTOR, Comparison, Thresholds
from kvfence.reference_impl.attention import summarise

N, LAYERS, HEADS, KEYS = 3, 2, 2, 6


def distributions(seed=0):
    """Probabilities [layers, heads, n, keys] of the last n queries."""
    scores = torch.randn(LAYERS, HEADS, N, KEYS, generator=torch.Generator().manual_seed(seed))
    at = torch.arange(KEYS - N, KEYS)
    return scores.masked_fill(torch.arange(KEYS) > at[:, None], -torch.inf).softmax(-1), at


def engine(p, at):
    rows, maximum, entropy, top = (np.moveaxis(array, 2, 0) for array in summarise(p, at))
    return Attention(rows, maximum, entropy, top)


def compared(p, golden):
    return shown(Comparison(engine(*p), LAYERS), golden)


def shown(comparison, golden):
    for layer in range(LAYERS):
        comparison(layer, golden[layer])
    return comparison


LIMITS = Thresholds(np.full((LAYERS, HEADS), 0.01, np.float32))


def test_equal_attention_has_not_moved():
    p, at = distributions()
    comparison = compared((p, at), p)
    assert comparison.shifts.max() == 0
    assert comparison.examine(LIMITS) is None


def test_the_first_moved_step_and_there_the_layer_and_head_that_moved_most():
    golden, at = distributions()
    moved = golden.clone()
    moved[0, 0, 1] += torch.tensor([0.02, -0.02, 0, 0, 0, 0])
    moved[1, 1, 1] += torch.tensor([0.05, -0.05, 0, 0, 0, 0])
    moved[0, 1, 2] += torch.tensor([0.2, -0.2, 0, 0, 0, 0])
    evidence = compared((moved, at), golden).examine(LIMITS)
    assert (evidence.step, evidence.layer, evidence.head) == (1, 1, 1)
    assert evidence.shifts[1, 1, 1] == pytest.approx(0.05, abs=1e-6)
    assert evidence.excess[2, 0, 1] == pytest.approx(20, abs=1e-3)
    own = golden[1, 1, 1, : KEYS - 1]
    assert evidence.golden.maximum == pytest.approx(float(own.max()))
    assert [key for key, _ in evidence.golden.top] == (KEYS - 2 - own.topk(3).indices).tolist()
    assert [p for _, p in evidence.golden.top] == pytest.approx(own.topk(3).values.tolist())


def test_each_layer_and_head_has_its_own_threshold():
    golden, at = distributions()
    moved = golden.clone()
    moved[1, 0, 0] += torch.tensor([0.05, -0.05, 0, 0, 0, 0])
    limits = LIMITS.values.copy()
    limits[1, 0] = 0.06
    assert compared((moved, at), golden).examine(LIMITS).step == 0
    assert compared((moved, at), golden).examine(Thresholds(limits)) is None


def test_not_a_number_is_a_shift():
    golden, at = distributions()
    broken = golden.clone()
    broken[1, 0, 2] = torch.nan
    evidence = compared((broken, at), golden).examine(LIMITS)
    assert (evidence.step, evidence.layer, evidence.head) == (2, 1, 0)
    assert compared((broken, at), golden).examine(Thresholds.boundless()) is None


def test_keys_that_golden_does_not_have_are_a_shift_of_their_whole_mass():
    golden, at = distributions()
    longer = torch.cat([torch.full((LAYERS, HEADS, N, 2), 0.15), 0.7 * golden], dim=-1)
    comparison = compared((longer, at + 2), golden)
    np.testing.assert_allclose(comparison.shifts, 0.3, atol=1e-6)
    farthest = [max(key for key, _ in comparison.examine(LIMITS).engine.top)]
    assert all(key < KEYS + 2 for key in farthest)
    assert comparison.examine(LIMITS).beyond == pytest.approx(0, abs=1e-6)


def test_what_is_read_behind_the_end_is_told():
    golden, at = distributions()
    rows = engine(0.6 * golden, at)
    evidence = shown(Comparison(rows, LAYERS), golden).examine(LIMITS)
    assert evidence.beyond == pytest.approx(0.4, abs=1e-6)


def test_a_key_of_anothers_is_no_noise_however_little_is_given_to_it():
    golden, at = distributions()
    seen = engine(golden, at)
    mass = {name: np.zeros((N, LAYERS, HEADS), np.float32) for name in ("case/B", "", "case/C")}
    none = shown(Comparison(replace(seen, foreign=mass), LAYERS), golden)
    assert none.examine(LIMITS) is None
    mass["case/B"][2, 1, 0], mass[""][1, 0, 1] = 1e-6, 2e-6
    evidence = shown(Comparison(replace(seen, foreign=mass), LAYERS), golden).examine(LIMITS)
    assert (evidence.step, evidence.layer, evidence.head) == (1, 0, 1)
    assert evidence.foreign == (("", pytest.approx(2e-6)), ("case/B", pytest.approx(1e-6)))
    moved = golden.clone()
    moved[0, 0, 2] += torch.tensor([0.05, -0.05, 0, 0, 0, 0])
    assert compared((moved, at), golden).examine(Thresholds.boundless()) is None
    unjudged = shown(Comparison(replace(engine(moved, at), foreign=mass), LAYERS), golden)
    assert unjudged.examine(Thresholds.boundless()).step == 1
    plain = shown(Comparison(replace(engine(moved, at), foreign=mass), LAYERS), golden).examine(LIMITS)
    assert (plain.step, plain.foreign) == (2, evidence.foreign)


def test_thresholds_are_four_times_the_noise_of_clean_runs_and_never_finer_than_a_probability_can_be_told():
    clean = np.zeros((5, LAYERS, HEADS), np.float32)
    clean[3, 0, 1] = 0.02
    values = Thresholds.of(clean, resolution=0.001).values
    assert values.ravel().tolist() == pytest.approx([0.001 * FACTOR, 0.02 * FACTOR, *[0.001 * FACTOR] * 2])


def clean(solo, shapes=(), runs=None):
    made = [[np.full((4, LAYERS, HEADS), shift, np.float32) for shift in shifts] for shifts in (shapes, solo)]
    return noise.Clean(True, *made, runs=len(solo) if runs is None else runs)


def test_every_second_clean_run_is_held_against_the_thresholds_of_the_others():
    thresholds, figures = noise.attention_noise(clean([0.01, 0.01, 0.01, 0.05]), resolution=1e-6)
    assert thresholds.values.max() == pytest.approx(0.04)
    assert figures == {
        "attention_positions": 8,
        "attention_max": pytest.approx(0.01),
        "attention_held_out": pytest.approx(1.25),
        "attention_judged": False,
        "attention_reason": "its noise is not bounded: held-out runs shift it by 1.25 times the thresholds",
    }


@pytest.mark.parametrize(
    ("solo", "shapes", "limit", "judged"),
    [
        # Equal shapes of golden widen the thresholds of solo runs, and solo runs those of equal shapes.
        ([0.01] * 2, [0.02] * 2, 0.08, True),
        ([0.02] * 2, [0.01] * 2, 0.08, True),
        # Both are held out too.
        ([0.01] * 2, [0.01, 0.05], 0.04, False),
        ([0.01, 0.05], [0.01] * 2, 0.04, False),
        ([], [0.02] * 2, 0.08, True),
    ],
)
def test_golden_in_equal_shapes_counts_as_much_as_the_engine_alone(solo, shapes, limit, judged):
    thresholds, figures = noise.attention_noise(clean(solo, shapes), resolution=1e-6)
    assert thresholds.values.max() == pytest.approx(limit)
    assert figures["attention_judged"] is judged
    assert figures["attention_positions"] == 4 * (len(solo) + len(shapes)) // 2


@pytest.mark.parametrize(("shift", "reason"), [
    (0.2, ""),
    (0.3, "it shifts by 0.3 of total variation in runs that should be clean, above 0.25"),
    (np.nan, "it shifts by nan of total variation in runs that should be clean, above 0.25"),
])  # fmt: skip
def test_runs_that_are_not_clean_are_not_taken_for_noise(shift, reason):
    figures = noise.attention_noise(clean([shift] * 2), resolution=1e-6)[1]
    assert (figures["attention_judged"], figures["attention_reason"]) == (not reason, reason)


def test_equal_shapes_alone_do_not_judge_an_engine_that_showed_nothing():
    figures = noise.attention_noise(clean([], [0.01] * 2, runs=4), resolution=1e-6)[1]
    assert figures["attention_judged"] is False
    assert figures["attention_reason"] == "the engine showed it in none of its solo runs"


@pytest.mark.parametrize(
    ("layers", "heads", "told"),
    [
        (1, HEADS, "1 layers; the model has 2"),
        (3, HEADS, "3 layers; the model has 2"),
        (LAYERS, 3, "3 heads; layer 0 has 2"),
    ],
)
def test_attention_of_another_shape_than_the_models_is_a_fault_of_the_engine(layers, heads, told):
    golden, _ = distributions()
    shape = (N, layers, heads)
    other = Attention(*(np.zeros((*shape, *more), np.float32) for more in ((KEYS,), (), (), (3,))))
    with pytest.raises(EngineFaultError, match=f"shows attention of {told}"):
        shown(Comparison(other, LAYERS), golden)

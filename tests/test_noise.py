import math
from dataclasses import replace
from itertools import count, repeat

import numpy as np
import pytest

from kvfence.adapters.api import Completion
from kvfence.adapters.observation import Action, CacheEvent
from kvfence.conformance import noise
from kvfence.conformance.driven import Answer
from kvfence.conformance.oracles.attention import Thresholds
from kvfence.conformance.oracles.golden import Tolerance
from kvfence.conformance.oracles.kv import KVTolerance
from kvfence.conformance.oracles.slots import Breach
from kvfence.conformance.yardstick import Calibration
from kvfence.prompts.prompt import Prompt
from kvfence.prompts.word_layout import WordLayout
from kvfence.reference_impl import shapes
from kvfence.reference_impl.attention import LastQueries, total_variation
from kvfence.reference_impl.golden import Golden


def source(error=lambda i: 0.01, length=100):
    return ([error(i)] * length for i in count())


def calibrate(shapes, solo=None, positions=(10_000, 0), resolution=0.001):
    return noise.calibrate(shapes, solo, positions, resolution, "float32", 128)


def test_epsilon_is_four_times_the_maximum_over_ten_thousand_positions():
    record = calibrate(source(lambda i: 0.5 if i == 99 else 0.01))
    assert (record.shapes_positions, record.shapes_max, record.epsilon) == (noise.POSITIONS, 0.5, 2.0)
    assert (record.held_out_positions, record.held_out_max) == (1_000, 0.01)
    assert noise.complaint(record) is None


def test_solo_runs_count_as_much_as_golden():
    record = calibrate(source(), source(lambda i: 0.05), (10_000, 200))
    assert (record.solo_positions, record.solo_max, record.epsilon) == (200, 0.05, 0.2)
    assert record.held_out_max == 0.01


def test_positions_are_held_out_of_the_source_that_calibrates():
    record = calibrate(source(), source(lambda i: 0.3 if i == 100 else 0.02), (10_000, 10_000))
    assert record.held_out_max == 0.3


def test_epsilon_is_never_finer_than_a_logit_can_be_told():
    assert calibrate(source(lambda i: 0.0), resolution=0.25).epsilon == 1.0


def test_held_out_positions_must_stay_below():
    record = calibrate(source(lambda i: 0.5 if i == 100 else 0.01))
    assert "held-out error 0.5 above epsilon 0.04 logits" in noise.complaint(record)


@pytest.mark.parametrize("where", [0, 99, 100])
def test_nan_anywhere_is_a_complaint(where):
    assert noise.complaint(calibrate(source(lambda i: math.nan if i == where else 0.01)))


def test_solo_runs_far_noisier_than_golden_are_not_taken_for_noise():
    assert "solo runs that are not clean" in noise.complaint(calibrate(source(), source(lambda i: 0.09), (10_000, 100)))
    assert noise.complaint(calibrate(source(), source(lambda i: 0.07), (10_000, 100))) is None


@pytest.mark.parametrize("wrong", [math.nan, 0.09])
def test_what_stands_apart_in_solo_runs_is_no_noise(wrong):
    quiet = source(lambda i: wrong if i == 1 else 1e-5, length=32)
    record = calibrate(source(), quiet, (10_000, 640))
    assert (record.solo_positions, record.solo_outliers, record.solo_max) == (640, 32, 1e-5)
    assert record.epsilon == 4 * 0.01
    assert noise.solo_left(record)
    assert noise.other_model(record) is None


def test_an_engine_of_another_model_is_told_from_noise_that_is_not_bounded():
    other = calibrate(source(), source(lambda i: 0.09), (10_000, 100))
    assert noise.other_model(other) == noise.complaint(other)
    unbounded = calibrate(source(lambda i: 0.5 if i == 100 else 0.01))
    assert noise.other_model(unbounded) is None
    assert noise.other_model(calibrate(source(), source(lambda i: math.nan), (10_000, 100)))


@pytest.mark.parametrize(("length", "bucket"), [(1, 128), (128, 128), (129, 512), (2049, 8192), (100_000, 8192)])
def test_buckets(length, bucket):
    assert noise.bucket_of(length) == bucket


@pytest.fixture(scope="module", params=["canary_folder", "random_folder"])
def golden(request):
    return Golden.load(request.getfixturevalue(request.param).path, "bfloat16")


def test_equal_shapes_of_bfloat16_are_noisy_but_bounded(golden):
    layout = WordLayout(0, reach=32)
    errors = list(noise.equal_shapes(golden, iter([layout.sample(60) for _ in range(8)]), 10, noise.Clean(False)))
    # Eight padded rows of 60 to 53 tokens, and every second one on a reused prefix too.
    assert sorted(map(len, errors)) == sorted([50 - i for i in range(8)] + [50 - i for i in range(1, 8, 2)])
    step = golden.resolution(layout.sample(60))
    assert max(map(max, errors)) <= 8 * step


def test_of_a_short_sequence_the_second_half_counts(golden):
    errors = noise.equal_shapes(golden, iter([WordLayout(0, reach=32).sample(60)]), 40, noise.Clean(False))
    assert list(map(len, errors)) == [30]


def test_equal_shapes_see_rounding(random_folder):
    golden = Golden.load(random_folder.path, "bfloat16")
    layout = WordLayout(0, reach=32)
    errors = noise.equal_shapes(golden, iter([layout.sample(60) for _ in range(16)]), 0, noise.Clean(False))
    assert any(map(max, errors))


def test_solo_runs_measure_the_engine_against_golden(golden):
    shift = 0.25

    def solo(prompt, n):
        output = golden.generate(prompt, n)
        tops = golden.logits([*prompt, *output[:-1]], n).log_softmax(-1).topk(3)
        # The engine's runner-up is too near by `shift`.
        best = [
            ((ids[0], v[0]), (ids[1], v[1] + shift), (ids[2], v[2]))
            for ids, v in zip(tops.indices.tolist(), tops.values.tolist(), strict=True)
        ]
        return Answer(Prompt("", "", prompt, 0, (), ()), Completion("x", output, top_logprobs=tuple(best)))

    runs = noise.solo_runs(golden, solo, iter([tuple(range(8, 20))]), 4, noise.Clean(False))
    assert next(runs) == pytest.approx([shift] * 4, abs=1e-4)


def test_attention_of_equal_shapes_is_compared_until_that_is_enough(random_folder, monkeypatch):
    golden = Golden.load(random_folder.path, "float16")
    layout = WordLayout(0, reach=32)
    sequences = [layout.sample(60) for _ in range(24)]
    clean = noise.Clean(True)
    noise.watch_on(clean, noise.equal_shapes(golden, iter(sequences), 0, clean), iter(()), 0)
    # Eight padded rows and four reused prefixes; the second batch is watched until there are sixteen.
    assert [shift.shape for shift in clean.shapes] == [(32, 6, 8)] * noise.ATTENTION_RUNS
    # Half precision rounds otherwise in a batch, where a row is padded; each shape has noise of its own.
    moved = [shift for shift in clean.shapes if shift.max() > 0]
    assert len(moved) >= noise.ATTENTION_RUNS - 2
    assert all(shift.max() < 0.02 for shift in moved)
    assert len({float(shift.sum()) for shift in moved}) == len(moved)
    quiet = noise.Clean(False)
    noise.watch_on(quiet, noise.equal_shapes(golden, iter(sequences), 0, quiet), iter(()), 0)
    assert quiet.shapes == []


def test_clean_runs_go_on_where_margins_need_fewer():
    clean = noise.Clean(True, [np.zeros(1)] * (noise.ATTENTION_RUNS - 2), runs=1)

    def more(step):
        while True:
            step()
            yield []

    def run():
        clean.runs += 1

    noise.watch_on(clean, more(lambda: clean.shapes.append(np.zeros(1))), more(run), 4)
    assert (len(clean.shapes), clean.runs) == (noise.ATTENTION_RUNS, 4)


@pytest.mark.parametrize("n", [5, 60])
def test_attention_in_equal_shapes_is_that_of_a_sequence_alone(random_folder, n):
    golden = Golden.load(random_folder.path)
    layout = WordLayout(0, reach=32)
    sequences = [layout.sample(60)[: 60 - 7 * i] for i in range(4)]
    batch = LastQueries([len(tokens) for tokens in sequences], n)
    shapes.padded(golden.model, sequences, visit=batch)
    for i, tokens in enumerate(sequences):
        alone, reused, other = (LastQueries([len(tokens)], n) for _ in range(3))
        shapes.alone(golden.model, tokens, alone)
        shapes.prefix_reused(golden.model, tokens, len(tokens) // 2, 4, reused)
        shapes.alone(golden.model, (*tokens[1:], tokens[0]), other)
        expected = alone.rows(0)
        assert expected.shape == (min(n, len(tokens)), 6, 8, len(tokens))
        np.testing.assert_allclose(expected.sum(-1), 1, atol=1e-5)
        for rows in (batch.rows(i), reused.rows(0)):
            assert total_variation(expected, rows).max() < 1e-4
        # A positive control: attention is no constant.
        assert total_variation(expected, other.rows(0)).max() > 0.01


def test_what_is_wrong_with_solo_runs(golden):
    event = CacheEvent(0, "noise/2", Action.WRITE, 0, 7, 1)
    breach = Breach("length", "noise/2", None, event, "begins at offset 7")

    def solo(prompt, n):
        answer = Answer(Prompt("", "", prompt, 0, (), ()), Completion("x", golden.generate(prompt, n)))
        return replace(answer, breaches=(breach,)) if clean.runs == 1 else answer

    clean = noise.Clean(False)
    runs = noise.solo_runs(golden, solo, repeat(tuple(range(8, 12))), 1, clean)
    told = []
    for _ in range(3):
        next(runs)
        told.append(noise.solo_fault(clean))
    assert told == ["", *["solo runs broke a rule of ownership: noise/2 begins at offset 7"] * 2]
    assert noise.solo_fault(noise.Clean(True, [], [np.zeros(1)] * 3, runs=3)) == ""
    assert noise.solo_fault(noise.Clean(True, [], [np.zeros(1)] * 2, runs=3)) == (
        "the engine says it shows attention, and showed it in 2 of 3 solo runs"
    )


def test_errors_that_stand_apart_are_no_noise():
    clean = [1e-6 * (1 + i % 5) for i in range(95)]
    assert noise._noise([*clean, 3.0, 0.02, 1e-5], 1e-6) == clean
    assert noise._noise([*clean, 2e-5], 1e-6) == [*clean, 2e-5]  # within a thousand times the smallest of ten
    coarse = [0.1 + 0.01 * (i % 7) for i in range(100)]
    assert noise._noise(coarse, 1e-6) == coarse
    assert noise._noise([], 1e-6) == []


def test_where_an_adapter_is_added_up_more_is_rounded():
    kv = KVTolerance(np.full((2, 3, 2), 1e-6, np.float32))
    scale = Calibration(Tolerance(0.5, True), Thresholds(np.full((3, 2), 0.25, np.float32)), True, "", "", "", kv=kv)
    wide = scale.widened(3)
    assert wide.tolerance == Tolerance(1.5, True)
    np.testing.assert_array_equal(wide.thresholds.values, np.full((3, 2), 0.75, np.float32))
    np.testing.assert_array_equal(wide.kv.values, np.float32(3) * kv.values)
    blind = Calibration(Tolerance(0.5, True), None, False, "", "", "")
    assert (blind.widened(3).thresholds, blind.widened(3).kv) == (None, None)


@pytest.mark.parametrize(
    ("errors", "told", "apart"),
    [
        ([2e-6, 1e-6, 2e-6, 1e-6], 8e-6, 0),
        ([2e-6, 3e-1, 2e-6, 1e-6], 8e-6, 1),  # one that is wrong is no measure
        ([3e-1, 1e-6, 2e-1, math.nan], 4e-6, 3),
        ([2e-2, 2e-2, 3e-2, 1e-2], 12e-2, 0),  # a cache of another precision is off everywhere
        ([1e-6, 9e-6, 1e-6, 1e-6], None, 0),
        ([math.nan, math.nan], None, 2),
    ],
)
def test_k_v_that_no_rounding_explains_are_no_measure(errors, told, apart):
    clean = noise.Clean(False, kv=[np.full((2, 3, 2), error, np.float32) for error in errors])
    clean.kv_scale = np.ones((2, 3, 2), np.float32)
    tolerance = noise.kv_tolerance(clean, 1e-7)
    if told is None:
        assert tolerance is None
    else:
        np.testing.assert_allclose(tolerance.values, told, rtol=1e-6)
    assert clean.kv_apart == apart
    assert bool(apart) == ("solo runs are off as no rounding explains" in noise.solo_fault(clean))

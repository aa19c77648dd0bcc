import math
from itertools import count

import pytest

from kvfence.adapters.api import Completion
from kvfence.conformance import noise
from kvfence.prompts.word_layout import WordLayout
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


@pytest.mark.parametrize(("length", "bucket"), [(1, 128), (128, 128), (129, 512), (2049, 8192), (100_000, 8192)])
def test_buckets(length, bucket):
    assert noise.bucket_of(length) == bucket


@pytest.fixture(scope="module", params=["canary_folder", "random_folder"])
def golden(request):
    return Golden.load(request.getfixturevalue(request.param).path, "bfloat16")


def test_equal_shapes_of_bfloat16_are_noisy_but_bounded(golden):
    layout = WordLayout(0, reach=32)
    errors = list(noise.equal_shapes(golden, iter([layout.sample(60) for _ in range(8)]), floor=10))
    # Eight padded rows of 60 to 53 tokens, and every second one on a reused prefix too.
    assert sorted(map(len, errors)) == sorted([50 - i for i in range(8)] + [50 - i for i in range(1, 8, 2)])
    step = golden.resolution(layout.sample(60))
    assert max(map(max, errors)) <= 8 * step


def test_equal_shapes_see_rounding(random_folder):
    golden = Golden.load(random_folder.path, "bfloat16")
    layout = WordLayout(0, reach=32)
    errors = noise.equal_shapes(golden, iter([layout.sample(60) for _ in range(16)]), floor=0)
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
        return Completion("x", output, top_logprobs=tuple(best)), None

    runs = noise.solo_runs(golden, solo, iter([tuple(range(8, 20))]), 4, [])
    assert next(runs) == pytest.approx([shift] * 4, abs=1e-4)

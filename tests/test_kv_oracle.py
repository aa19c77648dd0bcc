"""Oracle kv: which cells are off, and whose they are."""

import numpy as np
import pytest

from kvfence.adapters.api import EngineFaultError
from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.kv import KVTolerance, examine

LAYERS, HEADS, T, WIDTH = 3, 2, 12, 4
ME, YOU, HER = (Owner("case", name) for name in ("me", "you", "her"))
NOISE = 1e-5


def drawn(seed):
    return np.random.default_rng(seed).normal(size=(2, LAYERS, HEADS, T, WIDTH)).astype(np.float32)


MINE, YOURS, HERS = drawn(0), drawn(1), drawn(2)
KNOWN = {ME: MINE, YOU: YOURS, HER: HERS}
TOLERANCE = KVTolerance.of(np.full((4, 2, LAYERS, HEADS), NOISE, np.float32), np.ones((2, LAYERS, HEADS)), 1e-7)


def look(shown):
    return examine(shown, MINE, TOLERANCE, KNOWN, ME)


def test_what_is_its_own_up_to_noise_is_right():
    assert np.allclose(TOLERANCE.values, 4 * NOISE)
    noisy = MINE + np.random.default_rng(3).uniform(-3.9, 3.9, MINE.shape).astype(np.float32) * NOISE
    assert look(noisy) is None
    assert look(noisy[..., : T - 2, :]) is None  # the last ones were not written


def test_a_block_of_another_is_found_and_named():
    shown = MINE.copy()
    shown[..., 4:8, :] = YOURS[..., 4:8, :]
    found = look(shown)
    assert (found.positions, found.layers, found.heads, found.parts) == ((4, 5, 6, 7), (0, 1, 2), (0, 1), ("K", "V"))
    assert (found.source, found.source_position) == (YOU, 4)
    assert (found.whole, found.scaled) == (True, False)
    assert found.shape == (LAYERS, HEADS, T)
    cells = {(row.part, row.layer, row.head): row.stretches for row in found.rows}
    assert cells == {(part, i, j): ((4, 7),) for part in "KV" for i in range(LAYERS) for j in range(HEADS)}


def test_rows_tell_where_cells_are_off_and_how_far():
    shown = MINE.copy()
    for at in (0, 5, 6, 7, 9):
        shown[1, 2, 1, at] = MINE[1, 2, 1, at] + 8 * NOISE * (1 + at)
    (row,) = look(shown).rows
    assert (row.part, row.layer, row.head, row.stretches) == ("V", 2, 1, ((0, 0), (5, 7), (9, 9)))
    assert row.excess == pytest.approx(20, rel=0.02)


def test_what_is_its_own_but_for_a_factor_is_told_apart():
    shown = MINE.copy()
    shown[..., 5, :] *= 1.5
    assert look(shown).scaled
    shown[..., 5, :] *= -1
    assert not look(shown).scaled
    shown[..., 5, :] = 0
    assert not look(shown).scaled


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(("layer", "head", "at"), [(0, 0, 0), (1, 1, 6), (2, 0, T - 1)])
def test_one_cell_is_enough(part, layer, head, at):
    shown = MINE.copy()
    shown[part, layer, head, at] = HERS[part, layer, head, 3]
    found = look(shown)
    assert (found.positions, found.layers, found.heads, found.parts) == ((at,), (layer,), (head,), ("KV"[part],))
    assert (found.source, found.source_position, found.whole) == (HER, 3, False)


def test_one_head_of_a_deeper_layer_alone_was_stored_wrong():
    shown = MINE.copy()
    shown[:, 1, 0, 4:8] = YOURS[:, 1, 0, 4:8]
    assert look(shown).one_head
    shown[:, 2] = YOURS[:, 2]  # what is computed from it is off everywhere
    assert look(shown).one_head
    shown[0, 1, 1, 5] = HERS[0, 1, 1, 5]
    assert not look(shown).one_head
    shown[:, 1] = MINE[:, 1]
    assert not look(shown).one_head
    few = MINE.copy()
    few[:, 1, 0, 4:7] = YOURS[:, 1, 0, 4:7]
    assert not look(few).one_head
    few[:, 0, 0, 4:8] = YOURS[:, 0, 0, 4:8]
    assert not look(few).one_head  # layer 0 tells by itself


def test_its_own_at_another_position_is_its_own_fault():
    shown = MINE.copy()
    shown[..., 5, :] = MINE[..., 4, :]
    found = look(shown)
    assert (found.positions, found.source, found.source_position) == ((5,), ME, 4)


def test_junk_is_nobodys_and_nan_is_junk():
    for junk in (7.0, np.nan):
        shown = MINE.copy()
        shown[0, 1, 1, 2, 3] = junk
        found = look(shown)
        assert (found.positions, found.source, found.source_position) == ((2,), None, None)


def test_kv_of_another_shape_is_the_engines_fault():
    with pytest.raises(EngineFaultError, match=r"shows K/V of shape \[2, 3, 1, 12, 4\]; the model's are"):
        look(MINE[:, :, :1])

import pytest
import torch

from kvfence.reference_impl import shapes
from kvfence.reference_impl.golden import load_model

SEQUENCES = [tuple(range(10 + i, 60 - 5 * i)) for i in range(4)]


@pytest.fixture(scope="module", params=["canary_folder", "random_folder"])
def model(request):
    return load_model(request.getfixturevalue(request.param).path)


def test_padded_batch_and_reused_prefix_equal_alone_up_to_rounding(model):
    padded = shapes.padded(model, SEQUENCES)
    for tokens, row in zip(SEQUENCES, padded, strict=True):
        reference = shapes.alone(model, tokens)
        assert row.shape == reference.shape == (len(tokens), model.config.vocab_size)
        for other in (row, shapes.prefix_reused(model, tokens, len(tokens) // 3, decoded=5)):
            assert max(shapes.margin_errors(reference, other)) < 1e-3


def test_another_prefix_is_not_rounding(model):
    tokens = SEQUENCES[0]
    other = shapes.alone(model, (*range(500, 520), *tokens[20:]))
    assert max(shapes.margin_errors(shapes.alone(model, tokens)[20:], other[20:])) > 0.01


def test_margin_error_is_the_change_of_a_distance_to_the_top():
    reference = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    shifted = reference + 7
    moved = torch.tensor([[5.0, 4.5, 3.0, 2.0, 9.0]])
    assert shapes.margin_errors(reference, shifted).tolist() == [0.0]
    assert shapes.margin_errors(reference, moved).tolist() == [0.5]

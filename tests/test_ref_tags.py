import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.reference_impl.key import AdapterId, Media, Namespace
from kvfence.reference_impl.tags import NOBODY, Lineages, Owner, OwnerTags

SIZE = 4
NAMESPACE = Namespace("tenant", epoch=3)


@pytest.fixture
def tags():
    """Tags of 5 blocks; block 2 holds positions 4 to 7 of a request, of the tokens 14 to 17."""
    tags = OwnerTags(5 * SIZE, SIZE)
    tags.write(tags.slots([2]), "a", 4, [14, 15, 16, 17], NAMESPACE, [104, 105, 106, 107])
    return tags


def test_slots_that_were_never_written_are_nobodys(tags):
    assert tags.owner(0) is None
    assert tags.lineage(tags.slots([0, 1])).tolist() == [NOBODY] * 2 * SIZE


def test_slots_of_blocks_are_block_times_size_plus_offset(tags):
    assert tags.slots([2, 0]).tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    assert tags.slots([]).tolist() == []


def test_a_slot_says_whose_position_and_token_it_holds(tags):
    assert [tags.owner(slot) for slot in (8, 11)] == [Owner("a", 4, 14, "tenant", 3), Owner("a", 7, 17, "tenant", 3)]
    assert tags.lineage(np.array([9, 11])).tolist() == [105, 107]
    assert tags.owner(12) is None


def test_a_later_write_takes_the_slots_it_names_only(tags):
    tags.write(np.array([9]), "b", 0, [7], Namespace(), [1])
    assert [tags.owner(slot) for slot in (8, 9, 10)] == [
        Owner("a", 4, 14, "tenant", 3),
        Owner("b", 0, 7, None, 0),
        Owner("a", 6, 16, "tenant", 3),
    ]


def test_a_request_and_a_tenant_of_one_name_are_told_apart():
    tags = OwnerTags(SIZE, SIZE)
    tags.write(np.array([0, 1]), "x", 0, [1, 2], Namespace("y"), [0, 1])
    tags.write(np.array([2]), "y", 0, [1], Namespace("x"), [2])
    assert tags.owner(1) == Owner("x", 1, 2, "y", 0)
    assert tags.owner(2) == Owner("y", 0, 1, "x", 0)


def test_a_copied_block_has_the_owners_of_its_source(tags):
    tags.copy(2, 4)
    assert [tags.owner(slot) for slot in tags.slots([4])] == [tags.owner(slot) for slot in tags.slots([2])]
    assert tags.lineage(tags.slots([4])).tolist() == [104, 105, 106, 107]
    tags.clear(tags.slots([2]))
    assert tags.owner(16) == Owner("a", 4, 14, "tenant", 3)


def test_tags_go_out_and_come_back_with_their_blocks(tags):
    before = [tags.owner(slot) for slot in tags.slots([2, 1])]
    kept = tags.read([2, 1])
    tags.write(tags.slots([2]), "b", 0, [1, 2, 3, 4], Namespace(), [1, 2, 3, 4])
    tags.restore([0, 3], kept)
    assert [tags.owner(slot) for slot in tags.slots([0, 3])] == before
    assert before[0] is not None
    assert tags.owner(8) == Owner("b", 0, 1, None, 0)


def test_cleared_slots_are_nobodys(tags):
    tags.clear(np.array([9, 10]))
    assert [tags.owner(slot) is None for slot in tags.slots([2])] == [False, True, True, False]
    assert tags.lineage(tags.slots([2])).tolist() == [104, NOBODY, NOBODY, 107]


TOKENS = st.lists(st.integers(0, 2), max_size=6)
NAMESPACES = st.sampled_from(
    [
        Namespace(),
        Namespace("x"),
        Namespace(epoch=1),
        Namespace(adapter=AdapterId("x", 0)),
        Namespace(adapter=AdapterId("x", 1)),
        Namespace(media=(Media(0, "x"),)),
    ]
)


@given(st.lists(st.tuples(NAMESPACES, TOKENS)))
def test_a_lineage_stands_for_one_prefix_in_one_namespace(sequences):
    lineages, prefixes = Lineages(), {}
    for namespace, tokens in sequences:
        numbers = lineages.after(namespace, tokens)
        assert len(numbers) == len(tokens)
        for i, number in enumerate(numbers):
            assert prefixes.setdefault(number, (namespace, tokens[: i + 1])) == (namespace, tokens[: i + 1])
        assert NOBODY not in numbers
    assert len({(namespace, tuple(tokens)) for namespace, tokens in prefixes.values()}) == len(prefixes)


@given(NAMESPACES, TOKENS, TOKENS)
def test_a_lineage_can_be_continued_from_its_number(namespace, tokens, more):
    lineages = Lineages()
    known = lineages.after(namespace, tokens)
    assert known + lineages.after(known[-1] if known else namespace, more) == lineages.after(namespace, tokens + more)

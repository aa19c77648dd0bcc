import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.reference_impl.key import AdapterId, Media, Namespace
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.radix import Node, PrefixTree, common_prefix

NAMESPACE = Namespace()
SIZE = 3


def tree_of(*sequences, namespace=NAMESPACE):
    """A tree of sequences, and the number of blocks that were used: each sequence brings blocks of its own."""
    tree, first = PrefixTree(SIZE), 1
    for tokens in sequences:
        blocks = range(first, first + len(tokens))
        tree.insert(namespace, tokens, blocks)
        first += len(tokens)
    return tree


def test_nothing_is_found_in_an_empty_tree():
    assert PrefixTree(SIZE).match(NAMESPACE, (1, 2, 3)) == ([], 0)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ((), ([], 0)),
        ((9, 2, 3), ([], 0)),
        ((1, 2), ([11], 2)),
        ((1, 9, 3), ([11], 1)),
        ((1, 2, 3), ([11], 3)),
        ((1, 2, 3, 9), ([11], 3)),
        ((1, 2, 3, 4, 5, 9), ([11, 12], 5)),
        ((1, 2, 3, 4, 5, 6, 7, 8), ([11, 12, 13], 7)),
        ((9, 1, 2, 3), ([], 0)),
    ],
)
def test_the_longest_prefix_is_found_to_the_token(tokens, found):
    tree = PrefixTree(SIZE)
    assert tree.insert(NAMESPACE, (1, 2, 3, 4, 5, 6, 7), (11, 12, 13)) == [11, 12, 13]
    assert tree.match(NAMESPACE, tokens) == found


@pytest.mark.parametrize(
    "other",
    [
        Namespace(salt="x"),
        Namespace(adapter=AdapterId("x", 0)),
        Namespace(adapter=AdapterId("x", 1)),
        Namespace(media=(Media(0, "x"),)),
        Namespace(media=(Media(1, "x"),)),
        Namespace(epoch=1),
    ],
)
def test_nothing_is_found_in_another_namespace(other):
    tree = tree_of((1, 2, 3))
    assert tree.match(other, (1, 2, 3)) == ([], 0)
    tree.insert(other, (1, 2, 3), (7,))
    assert tree.match(other, (1, 2, 3)) == ([7], 3)
    assert tree.match(NAMESPACE, (1, 2, 3)) == ([1], 3)


def test_what_is_published_already_stays_in_its_block():
    tree = tree_of((1, 2, 3, 4, 5))
    assert tree.insert(NAMESPACE, (1, 2, 3, 4), (7, 8)) == []
    assert tree.insert(NAMESPACE, (1, 2, 3, 4, 5, 6), (7, 8)) == [8]
    assert tree.match(NAMESPACE, (1, 2, 3, 4, 5, 6)) == ([1, 8], 6)
    assert sorted(block for _, _, block in tree.entries()) == [1, 2, 8]


def test_a_hole_in_the_table_ends_what_is_published():
    tree = PrefixTree(SIZE)
    assert tree.insert(NAMESPACE, tuple(range(9)), (7, SCRATCH, 8)) == [7]
    assert tree.match(NAMESPACE, tuple(range(9))) == ([7], 3)


def test_a_block_is_removed_with_all_that_continue_it():
    tree = tree_of((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 9))
    assert tree.match(NAMESPACE, (1, 2, 3, 9)) == ([1, 9], 4)
    assert sorted(tree.remove(2)) == [2, 3]
    assert tree.match(NAMESPACE, (1, 2, 3, 4, 5, 6, 7)) == ([1], 3)
    assert tree.match(NAMESPACE, (1, 2, 3, 9)) == ([1, 9], 4)
    with pytest.raises(KeyError):
        tree.remove(3)


def test_everything_is_cleared():
    tree = tree_of((1, 2, 3, 4), (5, 6))
    assert sorted(tree.clear()) == [1, 2, 5]
    assert tree.match(NAMESPACE, (1, 2, 3)) == ([], 0)
    assert list(tree.entries()) == []


TOKENS = st.lists(st.integers(0, 2), max_size=4 * SIZE).map(tuple)
NAMESPACES = st.sampled_from((NAMESPACE, Namespace("x")))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), NAMESPACES, TOKENS),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("clear")),
    ),
    max_size=12,
)


@given(OPERATIONS, NAMESPACES, TOKENS)
def test_as_a_dictionary_of_all_prefixes(operations, namespace, query):
    """A second implementation: every published prefix that ends at a block's or a sequence's end, and its block."""
    tree, known, last = PrefixTree(SIZE), {}, 0
    for what, *arguments in operations:
        if what == "insert":
            space, tokens = arguments
            blocks = range(last + 1, last + 1 + -(-len(tokens) // SIZE))
            last = blocks.stop - 1
            # A partial block whose tokens are the first of another block's brings nothing that could not be found.
            new = {
                (space, tokens[: (i + 1) * SIZE]): block
                for i, block in enumerate(blocks)
                if (i + 1) * SIZE <= len(tokens) or not found_whole(known, space, tokens)
            }
            added = {key: block for key, block in new.items() if key not in known}
            assert tree.insert(space, tokens, blocks) == list(added.values())
            known |= added
        elif what == "clear":
            assert sorted(tree.clear()) == sorted(known.values())
            known = {}
        elif known:
            space, tokens = list(known)[arguments[0] % len(known)]
            gone = {key for key in known if key[0] == space and key[1][: len(tokens)] == tokens}
            gone = {key for key in gone if len(tokens) % SIZE == 0 or key[1] == tokens}
            assert sorted(tree.remove(known[space, tokens])) == sorted(known[key] for key in gone)
            known = {key: block for key, block in known.items() if key not in gone}
        assert {(space, tokens): block for space, tokens, block in tree.entries()} == known
        assert_ordered(tree)
    blocks, length = tree.match(namespace, query)
    assert length == max((common_prefix(query, tokens) for space, tokens in known if space == namespace), default=0)
    assert len(blocks) == -(-length // SIZE)
    for i, block in enumerate(blocks):
        (held,) = (tokens for (space, tokens), b in known.items() if b == block and space == namespace)
        assert (len(held) - 1) // SIZE == i
        assert held[: (i + 1) * SIZE][:length] == query[: min(length, (i + 1) * SIZE)]


def found_whole(known, namespace, tokens):
    return any(space == namespace and held[: len(tokens)] == tokens for space, held in known)


def assert_ordered(tree):
    """Children are in the order of their tokens, which differ, and are their parent's."""
    stack: list[Node] = list(tree._roots.values())
    while stack:
        node = stack.pop()
        assert node.edges == [child.tokens for child in node.children] == sorted(set(node.edges))
        assert all(child.parent is node and tree._nodes[child.block] is child for child in node.children)
        stack += node.children

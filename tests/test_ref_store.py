"""The remote store's own rules: what is found, what goes, what stays."""

import pytest

from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.remote import RemoteStore, TransferError
from kvfence.reference_impl.storage import Pages


def pages(n):
    return Pages(n, None)


def test_the_store_forgets_what_was_not_used_for_longest():
    store = RemoteStore(3)
    for n in range(3):
        store.put(Namespace(), [n], pages(n))
    store.unpin(store.pin((Namespace(), (0,))))
    store.put(Namespace(), [1], pages("no second copy"))
    store.put(Namespace(), [3], pages(3))
    found = {n for n in range(4) if store.match(Namespace(), [n], 0, 1)}
    assert found == {0, 1, 3}
    slots = {n: store.pin((Namespace(), (n,))) for n in found}
    assert {n: store.read(slot).kv for n, slot in slots.items()} == {0: 0, 1: 1, 3: 3}
    store.put(Namespace(), [4], pages(4))
    assert not store.match(Namespace(), [4], 0, 1)
    store.unpin(slots[1])
    store.clear()
    assert [n for n in range(5) if store.match(Namespace(), [n], 0, 1)] == [0, 3]
    with pytest.raises(TransferError, match=f"slot {slots[1]} of the remote store is empty"):
        store.read(slots[1])


def test_a_key_is_the_namespace_and_every_token():
    store = RemoteStore(9)
    store.put(Namespace("a"), [1, 2, 3, 4], pages(0))
    store.put(Namespace("a"), [1, 2], pages(1))
    assert len(store.match(Namespace("a"), [1, 2, 3, 4, 5], 0, 2)) == 2
    assert len(store.match(Namespace("a"), [1, 2, 3, 4, 5], 1, 2)) == 1
    for namespace, tokens in [("b", [1, 2, 3, 4]), (None, [1, 2, 3, 4]), ("a", [2, 1, 3, 4]), ("a", [1])]:
        assert store.match(Namespace(namespace), tokens, 0, 2) == []
    assert store.match(Namespace("a", epoch=1), [1, 2], 0, 2) == []
    assert len(store.match(Namespace("a"), [1, 2, 3, 5], 0, 2)) == 1

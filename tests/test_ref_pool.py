import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.reference_impl.pool import SCRATCH, BlockPool, OutOfBlocksError


def test_a_new_pool_is_free_but_for_the_scratch_block():
    pool = BlockPool(4)
    assert sorted(pool.free) == [1, 2, 3]
    assert (pool.available, pool.cached, pool.used) == (3, 0, 0)


def test_every_block_is_handed_out_once_and_the_scratch_block_never():
    pool = BlockPool(4)
    assert sorted(pool.allocate() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(OutOfBlocksError):
        pool.allocate()


def test_a_block_is_free_when_the_last_table_lets_go_of_it():
    pool = BlockPool(3)
    block = pool.allocate()
    pool.share(block)
    pool.release(block)
    assert (block in pool.free, pool.used) == (False, 1)
    pool.release(block)
    assert (block in pool.free, pool.used) == (True, 0)


def test_a_block_that_nobody_holds_cannot_be_released():
    pool = BlockPool(3)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(ValueError, match=f"block {block} is released by nobody"):
        pool.release(block)
    assert pool.free.count(block) == 1


def test_only_a_private_block_is_writable():
    pool = BlockPool(3)
    block = pool.allocate()
    assert pool.writable(block)
    pool.share(block)
    assert not pool.writable(block)
    pool.release(block)
    pool.publish(block)
    assert not pool.writable(block)
    pool.withdraw(block)
    assert pool.writable(block)


def test_a_published_block_that_nobody_holds_is_idle_until_it_is_shared_or_withdrawn():
    pool = BlockPool(4)
    first, second = pool.allocate(), pool.allocate()
    for block in (first, second):
        pool.publish(block)
        pool.release(block)
    assert pool.idle == [first, second]
    assert (pool.cached, pool.available, pool.used) == (2, 3, 0)
    pool.share(first)
    assert pool.idle == [second]
    pool.release(first)
    assert (pool.idle, pool.oldest_idle()) == ([second, first], second)
    pool.withdraw(second)
    assert pool.idle == [first]
    assert second in pool.free


def test_a_used_block_that_is_withdrawn_stays_used():
    pool = BlockPool(3)
    block = pool.allocate()
    pool.publish(block)
    pool.withdraw(block)
    assert pool.used == 1
    pool.release(block)
    assert block in pool.free
    assert pool.oldest_idle() is None


SIZE = 5
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(("allocate", "share", "release", "publish", "withdraw")), st.integers(1, SIZE - 1))
)


@given(OPERATIONS)
def test_as_a_model_that_counts_every_time(operations):
    """A second implementation: a list of holders, a set of published blocks, and the order of the last releases."""
    pool = BlockPool(SIZE)
    held, published, idle = [], set(), []
    for what, block in operations:
        if what == "allocate" and pool.free:
            block = pool.allocate()
            assert block not in (SCRATCH, *held, *published)
            held.append(block)
        elif what == "share" and (block in held or block in idle):
            pool.share(block)
            held.append(block)
        elif what == "release" and block in held:
            pool.release(block)
            held.remove(block)
            idle += [block] * (block in published and block not in held)
        elif what == "publish" and block in held:
            pool.publish(block)
            published.add(block)
        elif what == "withdraw" and block in published:
            pool.withdraw(block)
            published.remove(block)
        idle = [one for one in idle if one in published and one not in held]
        assert pool.references == [held.count(one) for one in range(SIZE)]
        assert [bool(flag) for flag in pool.published] == [one in published for one in range(SIZE)]
        assert pool.idle == idle
        assert sorted(pool.free) == [one for one in range(1, SIZE) if one not in held and one not in idle]
        assert pool.used == len(set(held))
        assert pool.available == SIZE - 1 - len(set(held))
        assert [pool.writable(one) for one in range(SIZE)] == [
            held.count(one) == 1 and one not in published for one in range(SIZE)
        ]

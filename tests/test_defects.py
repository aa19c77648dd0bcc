"""The registry of planted faults: names that stay, classes that are known, seams that exist."""

import re
from dataclasses import fields

import pytest

from kvfence.reference_impl.defects import DEFECTS, LATER, Sentinel
from kvfence.reference_impl.defects.defect import defect
from kvfence.reference_impl.settings import PARTS, Parts, Settings

CLASSES = {
    *("KEY-HASH", "KEY-LORA", "KEY-MM", "KEY-SALT", "KEY-EMB", "KEY-EPOCH", "PUB-EARLY", "PUB-FAIL", "STALE-IDX"),
    *("UAF-STEP", "UAF-DST", "UAF-SRC", "XFER-EARLY", "XFER-MAP", "REFCOUNT", "STALE-TABLE", "SLOT-REUSE"),
    *("REC-STATE", "COW", "ROLLBACK", "OFF-BY-ONE", "RESUME-READ", "PAD-READ", "NAN-SLOT", "PAD-WRITE", "WINDOW"),
    *("PREEMPT", "COMMON-PFX", "MOVE", "QUANT-DEP"),
}
SETTINGS = {field.name for field in fields(Settings)}
# What the article tells of that the engine grew out of.
ARTICLE = {"slot-reuse.length", "key-hash.rolling", "refcount.two-writers", "refcount.exception", "cow.forgotten"}
ARTICLE |= {"stale-idx.history"}


def test_every_class_is_planted_or_said_to_come_later():
    assert len(CLASSES) == 30
    planted = {one.fault_class for one in DEFECTS.values()}
    assert planted | LATER.keys() == CLASSES
    assert not planted & LATER.keys()
    assert all(LATER.values())


def test_there_are_enough_of_them_and_of_subtle_ones():
    assert len(DEFECTS) >= 64
    assert sum(bool(one.subtle) for one in DEFECTS.values()) >= 8
    assert DEFECTS.keys() >= ARTICLE


@pytest.mark.parametrize("name", DEFECTS)
def test_what_is_said_of_it_makes_sense(name):
    one = DEFECTS[name]
    assert one.name == name
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*\.[a-z]+(-[a-z]+)*", name)
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", one.report)
    assert one.about[0].isupper()
    assert one.about.endswith((".", ".)"))
    assert one.needs.keys() <= SETTINGS
    assert Settings(**one.needs).unfit() is None


@pytest.mark.parametrize("name", DEFECTS)
def test_it_is_built_anew_for_each_engine(name):
    first, second = (DEFECTS[name].build(Sentinel()) for _ in range(2))
    changed = [field.name for field in fields(Parts) if getattr(first, field.name) is not getattr(PARTS, field.name)]
    assert changed
    for part in changed:
        assert issubclass(getattr(first, part), getattr(PARTS, part))
    assert any(getattr(first, part) is not getattr(second, part) for part in changed)


def test_no_two_say_the_same():
    assert len({one.about for one in DEFECTS.values()}) == len(DEFECTS)


def test_a_name_is_given_once():
    register = defect("cow.forgotten", "COW", "owner/repository#1", "Again.")
    with pytest.raises(ValueError, match=r"there is a defect cow\.forgotten already"):
        register(lambda ran: PARTS)


def test_a_sentinel_counts():
    ran = Sentinel()
    assert ran.count == 0
    ran()
    ran()
    assert ran.count == 2

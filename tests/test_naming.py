"""The class-naming table: whole, every row of use, and the first that matches names the class."""

from itertools import combinations

import pytest

from kvfence.conformance.clauses import CLAUSES, PROBED, told
from kvfence.conformance.naming import FAMILIES, FAMILY, TABLE, suggest
from kvfence.conformance.probes import PROBES
from kvfence.conformance.scenarios import REPERTOIRE
from kvfence.reference_impl.defects import DEFECTS, LATER


def test_every_class_is_of_one_family():
    assert len(FAMILY) == sum(map(len, FAMILIES.values()))
    assert {defect.fault_class for defect in DEFECTS.values()} | set(LATER) == set(FAMILY)
    assert {row.fault_class for row in TABLE} <= set(FAMILY)


def test_no_row_is_hidden_by_one_before_it():
    for first, second in combinations(TABLE, 2):
        assert not set(first.facts) <= set(second.facts), (first, second)


@pytest.mark.parametrize(
    ("known", "named"),
    [
        ({"first:key", "first:key:salt", "kv:foreign", "side:salt"}, "KEY-SALT"),
        ({"side:media", "out:margin"}, "KEY-MM"),
        ({"first:overlap", "first:overlap:padding", "kv:nobody"}, "PAD-WRITE"),
        ({"out:no-number", "kv:nobody"}, "NAN-SLOT"),
        ({"kv:foreign", "kv:adapter", "kv:stored", "kv:turned", "got:write"}, "KEY-LORA"),
        ({"out:margin"}, None),
    ],
)
def test_the_first_row_that_matches_names_the_class(known, named):
    found = suggest({"other": frozenset(), "victim": frozenset(known)})
    assert (found and (found[0].fault_class, found[1])) == (named and (named, "victim"))


def test_every_fact_of_the_table_can_be_told():
    told_of = {fact for row in TABLE for fact in row.facts}
    probed = {fact for fact in told_of if fact.partition(":")[0] in PROBED}
    assert told_of - probed | {"first:fork:media", "side:token"} == set(CLAUSES)
    assert all(name in PROBES for group, _, name in (fact.partition(":") for fact in probed) if group != "only")
    requirements = {REPERTOIRE.requirement(name) for name in REPERTOIRE.names()}
    assert {fact.removeprefix("only:") for fact in probed if fact.startswith("only:")} <= requirements
    assert (
        told(["only:key.salt", "holds:evict.reset"]) == "of the probes only those of key.salt fail, evict.reset holds"
    )

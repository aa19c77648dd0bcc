"""Oracle side: hits that cross domains."""

import pytest

from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.side import Domain, Sent, TimeEvidence, examine, examine_times, times_differ

PROMPT = tuple(range(40))
X, Y, NOBODY = Domain("x"), Domain("y"), Domain()


def sent(name, domain, tokens=PROMPT):
    return Sent(Owner("case", name), domain, tuple(tokens))


def test_hits_in_ones_own_domain_are_fine():
    before = [sent("a", X), sent("b", Y, PROMPT[:8])]
    assert examine(X, PROMPT, 39, before) is None
    assert examine(Y, PROMPT, 8, before) is None
    assert examine(NOBODY, PROMPT, 0, before) is None
    assert examine(Y, PROMPT, None, before) is None  # it does not tell


@pytest.mark.parametrize(
    ("asks", "had", "differs"),
    [
        (Y, X, "salt"),
        (NOBODY, X, "salt"),
        (X, NOBODY, "salt"),
        (Domain(adapter=("a", "one")), Domain(adapter=("a", "two")), "adapter"),
        (Domain(weights="new"), Domain(), "weights"),
        (Domain(media=((0, "cat"),)), Domain(media=((0, "dog"),)), "media"),
    ],
)
def test_a_hit_across_domains_names_whose_and_what_was_forgotten(asks, had, differs):
    found = examine(asks, PROMPT, 16, [sent("a", had)])
    assert (found.cached, found.possible, found.source, found.differs) == (16, 0, Owner("case", "a"), differs)


def test_more_hits_than_anybodys_tokens_explain():
    found = examine(X, PROMPT, 16, [sent("a", X, (*PROMPT[:9], 99, *PROMPT[10:]))])
    assert (found.possible, found.source, found.differs) == (9, None, "")


def test_what_stands_before_a_picture_may_be_shared_whatever_it_shows():
    cat, dog = Domain(media=((16, "cat"),)), Domain(media=((16, "dog"),))
    assert examine(cat, PROMPT, 16, [sent("a", dog)]) is None
    assert examine(cat, PROMPT, 17, [sent("a", dog)]).differs == "media"
    assert examine(cat, PROMPT, 17, [sent("a", cat)]) is None


def test_the_nearest_domain_is_named():
    found = examine(X, PROMPT, 30, [sent("far", Domain("y", ("a", "f"))), sent("near", Y)])
    assert (found.source.request, found.differs) == ("near", "salt")


def test_times_differ_beyond_chance_only():
    slow, fast = range(100), range(-50, 50)
    assert times_differ(slow, fast) == 0.5
    assert times_differ(slow, range(-38, 62)) is None  # chance makes 0.381 once in a million
    assert times_differ(slow, range(-39, 61)) == pytest.approx(0.39)
    assert examine_times(fast, slow) == TimeEvidence(0.5, -0.5, 49.5)
    assert examine_times(slow, slow) is None

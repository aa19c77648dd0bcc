"""Oracle side: hits that cross domains."""

import pytest

from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.side import Domain, Sent, examine

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

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.conformance.oracles.canary import MIN_RUN, Owner, Owners, Splice, spellings, splices
from kvfence.conformance.oracles.golden import FLOOR, Divergence, Tolerance, examine
from kvfence.reference_impl.golden import Verification

TOLERANCE = Tolerance(epsilon=0.5, exact=False)


def verification(margins, logprobs=None, choices=None):
    n = len(margins)
    return Verification(tuple(choices or [7] * n), tuple(margins), tuple(logprobs or [-1.0] * n))


def test_goldens_own_tokens_pass():
    evidence = examine((7, 7), (-1.0, -1.05), verification([0, 0]), TOLERANCE)
    assert (evidence.divergence, evidence.ties) == (None, ())


def test_a_margin_within_epsilon_is_a_tie_and_one_above_a_divergence():
    evidence = examine((7, 8, 9), None, verification([0, 0.5, 0.51]), TOLERANCE)
    assert evidence.ties == (1,)
    assert evidence.divergence == Divergence(2, "margin", 0.51)


def test_an_exact_model_has_no_ties():
    assert examine((8,), None, verification([1e-6]), Tolerance(1.0, exact=True)).divergence == Divergence(
        0, "margin", 1e-6
    )


def test_a_logprob_off_is_a_divergence_though_tokens_agree():
    evidence = examine((7, 7), (-1.0, -1.5), verification([0, 0]), TOLERANCE)
    assert evidence.divergence == Divergence(1, "logprob", pytest.approx(0.5))


@given(st.floats(1e-6, 3.0), st.lists(st.floats(-20, 20), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_logprobs_may_move_as_far_as_distances_between_logits_do_and_no_further(epsilon, logits, random):
    def logprob(values):
        return values[0] - math.log(sum(map(math.exp, values)))

    golden, tolerance = logprob(logits), Tolerance(epsilon, exact=False)
    moved = [logits[0]] + [value + random.uniform(-epsilon, epsilon) for value in logits[1:]]
    assert abs(logprob(moved) - golden) <= tolerance.logprob(golden)
    # The bound is reached when every other logit rises by epsilon, so it is not too wide either.
    worst = [logits[0]] + [value + epsilon for value in logits[1:]]
    assert golden - logprob(worst) == pytest.approx(tolerance.logprob(golden) - FLOOR, abs=1e-9)


def test_a_certain_token_has_no_room_and_a_boundless_epsilon_all():
    assert Tolerance(1.0, exact=True).logprob(0.0) == FLOOR
    assert Tolerance(1e9, exact=True).logprob(-1.0) == math.inf


@pytest.mark.parametrize(("margin", "logprob"), [(math.nan, -1.0), (0.0, math.nan)])
def test_nan_is_a_divergence(margin, logprob):
    assert examine((7,), (logprob,), verification([margin]), TOLERANCE).divergence is not None


def words(text):
    return [(word, i) for i, word in enumerate(text.split())]


@pytest.fixture
def owners():
    owners = Owners()
    owners.add(Owner("now", "A0"), ["p", "q", "r", "a1", "a2", "a3", "a4", "a5"])
    owners.add(Owner("now", "B0"), ["p", "q", "r", "b1", "b2", "b3", "b4", "b5"])
    owners.add(Owner("before", "A0"), ["o1", "o2", "o3", "o4"])
    return owners


def find(output, owners, own="p q r a1 a2 a3 a4 a5"):
    return [(r.owner, " ".join(r.words), r.steps) for r in spellings(words(output), own.split(), owners, "now")]


def test_three_foreign_words_in_order_name_their_owner(owners):
    assert MIN_RUN == 3
    assert find("p q b2 b3 b4 a1", owners) == [(Owner("now", "B0"), "b2 b3 b4", (2, 3, 4))]
    assert find("b1 b2 o1 o2 o3 o4", owners) == [(Owner("before", "A0"), "o1 o2 o3 o4", (2, 3, 4, 5))]


@pytest.mark.parametrize(
    "output", ["b2 b3", "b3 b2 b1", "b1 b3 b5", "b1 x b2 y b3", "a1 a2 a3 a4", "p q r", "q r b1 b2", ""]
)
def test_what_is_no_spelling(owners, output):
    assert find(output, owners) == []


def test_several_runs_are_all_found(owners):
    found = find("b1 b2 b3 x o1 o2 o3 b3 b4 b5", owners)
    assert [(owner.request, text) for owner, text, _ in found] == [
        ("B0", "b1 b2 b3"),
        ("A0", "o1 o2 o3"),
        ("B0", "b3 b4 b5"),
    ]


def test_a_shared_prefix_is_given_to_the_request_whose_words_go_on(owners):
    # To a stranger the prefix is foreign; only B's passphrase follows.
    assert find("p q r b1 b2", owners, own="z")[0][0] == Owner("now", "B0")


def test_a_run_that_fits_two_cases_is_given_to_this_one():
    owners = Owners()
    for case in ("before", "now"):
        owners.add(Owner(case, "C0"), ["s", "t", "u"])
    assert find("s t u", owners, own="z")[0][0] == Owner("now", "C0")


@given(st.lists(st.sampled_from("abcdefgh"), max_size=12), st.lists(st.permutations("abcdefgh"), max_size=4))
def test_every_run_is_words_of_its_owner_in_order_and_maximal(output, others):
    owners = Owners()
    for i, other in enumerate(others):
        owners.add(Owner("now", str(i)), other)
    named = [(word, i) for i, word in enumerate(output)]
    for run in spellings(named, own=(), owners=owners, case="now"):
        theirs = "".join(others[int(run.owner.request)])
        assert "".join(run.words) in theirs
        assert [output[step] for step in run.steps] == list(run.words)
        longer = ["".join(output[run.steps[0] - 1 : run.steps[-1] + 1])] if run.steps[0] else []
        longer += ["".join(output[run.steps[0] : run.steps[-1] + 2])] if run.steps[-1] + 1 < len(output) else []
        assert not any(text in theirs for text in longer)
    brute = [i for other in others for i in range(len(output) - 2) if "".join(output[i : i + 3]) in "".join(other)]
    covered = {step for run in spellings(named, (), owners, "now") for step in run.steps}
    assert all({i, i + 1, i + 2} <= covered for i in brute)


def test_a_word_of_letters_of_two_is_a_splice():
    owners = Owners()
    for name, text in (("A0", "rone bodu hyne"), ("B0", "rone lili luvu"), ("C0", "rone tedu"), ("D0", "rone luvu")):
        owners.add(Owner("now", name), text.split())
    own = ["myko", "rone", "lili", "luvu"]
    expected = Splice(Owner("now", "A0"), 1, "lidu", "lili", "bodu", "rone")
    assert splices(words("rone lidu"), own, owners, 1) == [
        expected,
        Splice(Owner("now", "C0"), 1, "lidu", "lili", "tedu", "rone"),
    ]
    assert splices(words("rone bodu"), own, owners, 1)[0].owner == Owner("now", "A0")
    # A foreign word that is the victim's own too, letters of neither, the word that was due, another position, a word
    # before that is not the victim's.
    for output, step in (("rone luli", 1), ("rone lida", 1), ("rone lili", 1), ("rone lidu", 0), ("hyne lidu", 1)):
        assert splices(words(output), own, owners, step) == []

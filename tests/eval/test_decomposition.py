"""Decompositions of a difference in EM: by hand, by another formula in fractions, and with planted causes."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import t
from support import CARD, QUESTIONS, TitleRetriever

from searchgym.agents.base import LoadedAgent
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.eval.compare import t_interval, two_way_ci
from searchgym.eval.decomposition import FACTORS, HEAD, decompose, decompose_runs
from searchgym.eval.run_folder import FinishedRun, read_finished
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.records import Answer, Search

ANSWERS = {"e": "Paris!", "c": "It is Paris, I think", "w": "Parisian food", "-": None}
PAGES = {"a": "all", "s": "some", "n": "none"}
ALL_KINDS = [*("".join(kind) for kind in itertools.product("asn", "ecw")), "a-"]


def row(*kinds):
    """A question's row with one attempt for each kind: evidence and answer by their letters, or ``?`` without golds."""
    exact = [kind[1] == "e" for kind in kinds]
    return {
        "em": sum(exact) / len(exact),
        "exact": exact,
        "golds": ["Paris"],
        "answers": [ANSWERS[kind[1]] for kind in kinds],
        "evidence": None if "?" in kinds[0] else [PAGES[kind[0]] for kind in kinds],
    }


def rows(kinds):
    return {f"q{number}": row(kind) for number, kind in enumerate(kinds)}


def kinds_of(count, answered, pages, contains, exact):
    """Exactly as many questions of each kind as these probabilities say."""
    kinds = []
    for letter, share, right in zip("asn", pages, contains, strict=True):
        sizes = [answered * share * part for part in (right * exact, right * (1 - exact), 1 - right)]
        for answer, size in zip("ecw", sizes, strict=True):
            assert count * size == pytest.approx(round(count * size))
            kinds += [letter + answer] * round(count * size)
    return kinds + ["a-"] * (count - len(kinds))


def terms_of(found):
    return {name: found.terms[name].mean for name in FACTORS}


def expected(**terms):
    return dict.fromkeys(FACTORS, 0.0) | terms


# -- values --------------------------------------------------------------------------------------------------------


def test_answering_and_reading_by_hand():
    """EM is 1/2 · 1/2, then 1 · 1/2, then 1 · 3/4; if reading comes first, 1/2 · 3/4 lies between."""
    found = decompose([rows(["a-", "a-", "aw", "ae"])], [rows(["ae", "ae", "aw", "ae"])])
    assert (found.first, found.second, found.questions, found.without_golds) == (0.25, 0.75, 4, 0)
    assert terms_of(found) == expected(answered=0.25, reading=0.25)
    answered, reading, form = (found.terms[name] for name in ("answered", "reading", "form"))
    assert (answered.least, answered.most, reading.least, reading.most) == (0.25, 0.375, 0.125, 0.25)
    assert (form.mean, form.least, form.most) == (0.25, 0.25, 0.375)
    assert abs(found.residual) < 1e-15


def test_searching_memory_and_wording_by_hand():
    """A quarter has all pages, then half; of those without, none is right, then half."""
    found = decompose([rows(["ae", "nw", "nw", "nw"])], [rows(["ae", "ae", "ne", "nw"])])
    assert terms_of(found) == expected(searching=0.25, memory=0.25)
    found = decompose([rows(["ac", "sc", "ae", "se"])], [rows(["ae", "se", "ae", "se"])])
    assert terms_of(found) == expected(wording=0.5)


def probability(episodes, event, condition):
    cases = [episode for episode in episodes if condition(*episode)]
    return Fraction(sum(event(*episode) for episode in cases), len(cases)) if cases else None


def of_pair(first, second, event, condition, second_first):
    """The probability of an event in one run, or in the other where the condition never holds; 0 if in neither."""
    both = [probability(run, event, condition) for run in ((second, first) if second_first else (first, second))]
    return next((value for value in both if value is not None), Fraction(0))


def mixed_em(first, second, changed):
    """EM with the changed factors of the second run, case by case in fractions."""

    def likely(factor, event, condition):
        return of_pair(first, second, event, condition, factor in changed)

    total = Fraction(0)
    for e in "asn":
        em = likely("answered", lambda _, a: a != "-", lambda *_: True)
        em *= likely("searching", lambda p, _, e=e: p == e, lambda _, a: a != "-")
        right = "memory" if e == "n" else "reading"
        em *= likely(right, lambda _, a: a in "ec", lambda p, a, e=e: p == e and a != "-")
        em *= likely("wording", lambda _, a: a == "e", lambda p, a, e=e: p == e and a in "ec")
        total += em
    return total


def brute_terms(first, second, order):
    steps = [mixed_em(first, second, order[:count]) for count in range(len(order) + 1)]
    return {factor: float(after - before) for factor, before, after in zip(order, steps, steps[1:], strict=False)}


@pytest.mark.parametrize("seed", range(8))
def test_terms_and_their_orders_agree_with_fractions(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(3, 40))
    first, second = ([str(kind) for kind in rng.choice(ALL_KINDS, size, p=rng.dirichlet([0.4] * 10))] for _ in "ab")
    found = decompose([rows(first)], [rows(second)], resamples=2)
    ems = [sum(kind[1] == "e" for kind in run) / size for run in (first, second)]
    assert [mixed_em(first, second, ()), mixed_em(first, second, tuple(FACTORS))] == pytest.approx(ems)  # the identity
    assert [found.first, found.second] == pytest.approx(ems)
    assert terms_of(found) == pytest.approx(brute_terms(first, second, tuple(FACTORS)))
    assert sum(terms_of(found).values()) == pytest.approx(ems[1] - ems[0])
    assert abs(found.residual) < 1e-12
    every = [brute_terms(first, second, order) for order in itertools.permutations(FACTORS)]
    for name in FACTORS:
        ends = [end(terms[name] for terms in every) for end in (min, max)]
        assert [found.terms[name].least, found.terms[name].most] == pytest.approx(ends)
    form = [terms["answered"] + terms["wording"] for terms in every]
    assert [found.terms["form"].least, found.terms["form"].most] == pytest.approx([min(form), max(form)])


BASE = {"answered": 0.8, "pages": (0.25, 0.25, 0.5), "contains": (0.6, 0.4, 0.1), "exact": 0.5}


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("form", {"answered": 1.0, "exact": 0.9}),
        ("searching", {"pages": (0.6, 0.3, 0.1)}),
        ("memory", {"contains": (0.6, 0.4, 0.5)}),
        ("reading", {"contains": (0.9, 0.8, 0.1)}),
    ],
)
def test_a_planted_cause_has_the_whole_difference(cause, change):
    found = decompose([rows(kinds_of(2000, **BASE))], [rows(kinds_of(2000, **BASE | change))], resamples=200)
    difference = found.second - found.first
    assert difference > 0.05
    causes = {"form", *FACTORS} - ({"form"} if cause != "form" else {"answered", "wording"})
    for name in causes:
        assert found.terms[name].mean == pytest.approx(difference if name == cause else 0.0, abs=1e-12)
    assert found.terms[cause].low > 0


def test_identical_runs_have_no_terms_and_no_width():
    runs = [rows(ALL_KINDS * 3)]
    found = decompose(runs, runs)
    for term in found.terms.values():
        assert (term.mean, term.low, term.high, term.least, term.most) == (0.0, 0.0, 0.0, 0.0, 0.0)
    assert found.residual == 0.0


@pytest.mark.parametrize(
    ("first", "second", "answered"),
    [(["a-"] * 4, ["ae", "sc", "nw", "ne"], 0.5), (["ae", "sc", "nw", "ne"], ["a-"] * 4, -0.5), (["a-"], ["s-"], 0.0)],
)
def test_runs_without_an_answer(first, second, answered):
    """The factors after the first one have no case and are those of the other run."""
    found = decompose([rows(first)], [rows(second)])
    assert terms_of(found) == expected(answered=answered)
    assert all(math.isfinite(value) for term in found.terms.values() for value in vars(term).values())


def test_an_exact_answer_counts_as_one_that_contains_a_gold():
    """By an alias that the row does not list."""
    alias = rows(["ae"]) | {"q1": row("aw") | {"em": 1.0, "exact": [True]}}
    found = decompose([rows(["aw", "aw"])], [alias])
    assert (found.second, terms_of(found)["reading"], found.residual) == (1.0, 1.0, 0.0)


# -- rows ----------------------------------------------------------------------------------------------------------


def test_questions_without_golds_are_left_out_and_counted():
    found = decompose([rows(["ae", "?e", "?w", "aw"])], [rows(["ae", "?e", "?e", "ae"])])
    assert (found.questions, found.without_golds, found.first, found.second) == (2, 2, 0.5, 1.0)
    assert found.scope == "2 questions; 2 that name no gold pages are left out"
    with pytest.raises(UsageError, match="names its gold pages"):
        decompose([rows(["?e"])], [rows(["?e"])])


def test_attempts_share_their_question():
    several = {"q0": row("ae", "aw"), "q1": row("a-", "ae", "sc", "ne")}
    found = decompose([several], [rows(["ae", "ae"])])
    assert (found.first, found.second) == (0.5, 1.0)
    equal = decompose([{"q0": row("ae", "ae", "aw", "aw"), "q1": several["q1"]}], [rows(["ae", "ae"])])
    assert terms_of(found) == pytest.approx(terms_of(equal))
    assert sum(terms_of(found).values()) == pytest.approx(0.5)


def test_rows_of_earlier_versions_have_no_exact_but_one_attempt_tells_it():
    def earlier(kinds):
        return {id: {name: row[name] for name in row if name != "exact"} for id, row in rows(kinds).items()}

    first, second = ["ae", "sw", "a-", "nc"], ["ac", "se", "ae", "nw"]
    whole = decompose([rows(first)], [rows(second)])
    assert decompose([earlier(first)], [earlier(second)]) == whole
    several = row("ae", "aw")
    del several["exact"]
    with pytest.raises(UsageError, match=r"run 1 of the second side: question 'q0': 'exact' is missing; .* --resume"):
        decompose([rows(["ae"])], [{"q0": several}])


@pytest.mark.parametrize(
    "change",
    [{"answers": None}, {"answers": []}, {"answers": ["x", "y"]}, {"answers": [3]}, {"evidence": ["most"]},
     {"evidence": 1}, {"exact": [0.5]}, {"em": 0.5, "exact": None}, {"golds": None, "exact": [False]},
     {"golds": "Paris", "exact": [False]}, {"golds": [1], "exact": [False]}, {"answers": [None]}],
)  # fmt: skip
def test_damaged_rows_are_named(change):
    damaged = {"q0": row("ae") | change}
    with pytest.raises(UsageError, match=r"run 1 of the first side: question 'q0': .*writes this row again"):
        decompose([damaged], [rows(["ae"])])


def test_each_run_is_decomposed_against_the_first_or_the_reason_is_told():
    def run(name, its_rows):
        return FinishedRun(name, {}, its_rows, {})

    lacking = {"q0": {"em": 1.0, "answers": ["x"]}}  # as `predictions score` writes them
    runs = [run("a", rows(["aw"])), run("b", rows(["ae"])), run("c", lacking), run("d", rows(["a-"]))]
    parts, notes = decompose_runs(runs)
    assert {number: part.second for number, part in parts.items()} == {1: 1.0, 3: 0.0}
    (note,) = notes
    assert note.startswith("the difference in EM is not decomposed: c: question 'q0': 'evidence' is missing")
    parts, (note,) = decompose_runs(runs[2:] + runs[:2])
    assert not parts and ": c: question" in note
    parts, notes = decompose_runs([run(name, rows(["?e"])) for name in "xyz"])
    assert (parts, len(notes)) == ({}, 1)
    assert decompose_runs([run("x", {"q0": {"f1": 1.0}}), run("y", {})]) == ({}, [])


def test_an_evaluation_writes_what_is_needed(tmp_path):
    """Two attempts: the first searches for the gold page and answers right, the second answers with more words."""

    class Twice:
        async def run(self, question, io):
            if io.sort_key[1] == 0:
                await io.step(Search(("Beta",)))
            await io.step(Answer(question.answers[0] if io.sort_key[1] == 0 else f"it is {question.answers[0]}"))

    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    for name, samples in (("two", 2), ("one", 1)):
        evaluate(task, LoadedAgent("own", Twice()), tmp_path / name, options=EvalOptions(samples=samples))
    two, one = (read_finished(tmp_path / name) for name in ("two", "one"))
    assert all(row["exact"] == [True, False] for row in two.rows.values())
    found = decompose([two.rows], [one.rows])
    assert (found.first, found.second) == (0.5, 1.0)
    assert sum(terms_of(found).values()) == pytest.approx(0.5)


# -- the table -----------------------------------------------------------------------------------------------------


def test_the_ends_over_orders_are_told_where_the_order_matters():
    found = decompose([rows(["a-", "a-", "aw", "ae"])], [rows(["ae", "ae", "aw", "ae"])])
    cells = {cells[0]: dict(zip(HEAD, cells, strict=True)) for cells in found.rows()}
    assert list(cells) == [*FACTORS, "form", "difference", "residual"]
    assert (cells["answered"]["EM"], cells["answered"]["least"], cells["answered"]["most"]) == (
        "+0.2500", "+0.2500", "+0.3750",
    )  # fmt: skip
    assert (cells["wording"]["EM"], cells["wording"]["least"], cells["wording"]["most"]) == ("0.0000", "", "")
    assert (cells["difference"]["EM"], cells["residual"]["EM"]) == ("+0.5000", "0.0000")
    assert decompose([rows(["ae"])], [rows(["aw"])]).rows()[2][2] == "-1.0000"


# -- intervals -----------------------------------------------------------------------------------------------------

LIKELY = (
    np.array([0.14, 0.08, 0.12, 0.06, 0.06, 0.12, 0.05, 0.03, 0.22, 0.12]),
    np.array([0.26, 0.08, 0.12, 0.08, 0.05, 0.10, 0.06, 0.03, 0.16, 0.06]),
)
"""Probabilities of `ALL_KINDS` in two runs."""


def drawn_pair(rng, size):
    """Kinds of questions in two runs; half of the questions have one random number for both."""
    points = rng.random((2, size))
    points[1] = np.where(rng.random(size) < 0.5, points[0], points[1])
    ends = [np.cumsum(likely)[:-1] for likely in LIKELY]
    numbers = [np.searchsorted(*pair, side="right") for pair in zip(ends, points, strict=True)]
    return [[ALL_KINDS[number] for number in run] for run in numbers]


def test_intervals_cover_the_truth():
    truth = brute_terms(*([k for k, p in zip(ALL_KINDS, run, strict=True) for _ in range(round(100 * p))]
                          for run in LIKELY), tuple(FACTORS))  # fmt: skip
    truth |= {"form": truth["answered"] + truth["wording"], "difference": sum(truth.values())}
    rng, inside = np.random.default_rng(11), dict.fromkeys(truth, 0)
    for _ in range(200):
        found = decompose(*([rows(kinds)] for kinds in drawn_pair(rng, 200)), resamples=200, seed=1)
        for name, value in truth.items():
            inside[name] += found.terms[name].low <= value <= found.terms[name].high
    assert all(0.88 <= count / 200 <= 0.99 for count in inside.values()), inside


def test_intervals_do_not_depend_on_ids_and_are_deterministic():
    first, second = drawn_pair(np.random.default_rng(2), 60)
    found = decompose([rows(first)], [rows(second)])
    assert decompose([rows(first[::-1])], [rows(second[::-1])]) == found
    assert decompose([rows(first)], [rows(second)], seed=1) != found


def test_the_interval_of_the_difference_is_that_of_a_mean():
    """Close to the normal interval of paired differences, as any bootstrap of a mean of 2,000."""
    first, second = drawn_pair(np.random.default_rng(4), 2000)
    gaps = np.array([(b[1] == "e") - (a[1] == "e") for a, b in zip(first, second, strict=True)], float)
    term = decompose([rows(first)], [rows(second)], resamples=2000).terms["difference"]
    half = 1.96 * gaps.std() / math.sqrt(2000)
    assert (term.low, term.high) == pytest.approx((gaps.mean() - half, gaps.mean() + half), abs=half * 0.1)


def test_seeds_widen_the_interval_to_students_t():
    """The second method's seeds differ by far more than questions do; every question is alike within a seed."""
    counts = (10, 50, 90)
    first = [rows(["ae"] * 10 + ["aw"] * 90)] * 3
    second = [rows(["ae"] * count + ["aw"] * (100 - count)) for count in counts]
    found = decompose(first, second)
    gaps = np.array([count - 10 for count in counts]) / 100
    half = t.ppf(0.975, 2) * gaps.std(ddof=1) / math.sqrt(3)
    assert found.terms["reading"].mean == pytest.approx(0.4)
    assert found.terms["reading"].low == pytest.approx(0.4 - half)
    assert found.terms["reading"].high == pytest.approx(0.4 + half)


def test_seeds_and_questions_are_resampled_as_by_the_two_way_interval():
    """Where each question of the first method is wrong, the difference is the mean EM of the second."""
    rng = np.random.default_rng(8)
    right = rng.random((12, 100)) < rng.choice([0.2, 0.8], 100) + rng.uniform(-0.17, 0.17, (12, 1))
    second = [rows(["ae" if one else "aw" for one in seed]) for seed in right]
    found = decompose([rows(["aw"] * 100)] * 12, second, resamples=3000)
    low, high = two_way_ci(right, resamples=3000)
    bounds = t_interval(right.mean(axis=1))
    assert high - low > 1.2 * (bounds[1] - bounds[0])  # the interval is not Student's
    for name in ("difference", "reading"):
        term = found.terms[name]
        assert term.mean == pytest.approx(right.mean())
        assert (term.low, term.high) == pytest.approx((low, high), abs=0.06 * (high - low))


def test_seeds_that_agree_have_the_interval_of_one():
    first, second = (rows(kinds) for kinds in drawn_pair(np.random.default_rng(5), 300))
    one, three = decompose([first], [second], 4000), decompose([first] * 3, [second] * 3, 4000)
    for name in one.terms:
        a, b = one.terms[name], three.terms[name]
        assert b.mean == pytest.approx(a.mean)
        assert (b.low, b.high) == pytest.approx((a.low, a.high), abs=0.15 * (a.high - a.low))


def test_sides_with_other_numbers_of_seeds_are_refused():
    with pytest.raises(UsageError, match="one run of each seed on both sides, got 1 and 2 runs"):
        decompose([rows(["ae"])], [rows(["ae"])] * 2)
    with pytest.raises(UsageError, match="got 0 and 0"):
        decompose([], [])

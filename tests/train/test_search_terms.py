"""Terms for searches, plans and stated candidates: by hand, and what the cheapest cheat earns."""

import dataclasses
import itertools

import numpy as np
import pytest
from credit_terms import terms_of
from test_credit import team

from searchgym.errors import DataError, SearchGymError
from searchgym.records import Answer, Hit, Hop, Passage, Question, Searched, SupportingFact, Triple
from searchgym.scoring import exact_match
from searchgym.scoring.confidence import Candidate, brier_reward, candidate_scores, candidates_of
from searchgym.train import load_recipe
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext
from searchgym.train.credit.terms.plan import plan_score
from searchgym.train.credit.terms.ranks import rank_value

PAGES = {title: Passage(title, title, f"{title} is here. {more}") for title, more in
         {"A": "Her son is B.", "B": "He was born in Ulm.", "X": "Nothing.", "Y": "Nothing."}.items()}  # fmt: skip
QUESTION = Question(
    "q", "Where was the son of A born?", ("Ulm",), supporting_facts=(SupportingFact("A"), SupportingFact("B")),
    evidences=(Triple("A", "son", "B"), Triple("B", "born in", "Ulm")),
    hops=(Hop("Who is the son of A?", "B"), Hop("Where was #1 born?", "Ulm")),
)  # fmt: skip
EMPTY = Question("q", "?", ("Ulm",))


def searched(*pages):
    """Returns one search per turn, each with the pages of a text such as "AX" as its hits."""
    return [
        Searched(turn, f"query {page}", tuple(Hit(PAGES[title], 1.0) for title in page))
        for turn, page in enumerate(pages, start=1)
    ]


def episode(*pages, answer="Ulm", calls=(), **fields):
    """Returns an episode that searches and answers; its reward is that of exact match."""
    return team(
        [*calls, {"role": "searcher"}], searches=searched(*pages), answer=Answer(answer), stop_reason="answer",
        **{"reward": exact_match(answer, ["Ulm"]), **fields},
    )  # fmt: skip


def earned(*group, question=QUESTION, **terms):
    """Returns what each episode of a group earns with its last call that is no trial."""
    context = CreditContext({}, lambda _, text: exact_match(text, question.golds), lambda _: question)
    rows = Credit(terms_of(**terms), context).allocate(list(group))
    return [row[-1] if not e.calls[-1].prefix else row[-2] for row, e in zip(rows, group, strict=True)]


# -- judgement -----------------------------------------------------------------------------------------------------


def judged(pages, said, answer="Ulm", stop_reason="answer", **terms):
    """Earnings of an episode that says these things after its searches, one letter each: yes, no or nothing."""
    texts = ["<search>", *({"y": "<judge>Yes</judge>", "n": "<judge> no </judge>", "-": "well"}[one] for one in said)]
    made = dataclasses.replace(episode(*pages, answer=answer), stop_reason=stop_reason)
    calls = [
        dataclasses.replace(made.calls[-1], turn=turn, text=text, context=0) for turn, text in enumerate(texts, start=1)
    ]
    return earned(dataclasses.replace(made, calls=calls), judgement=terms or 1)[0]


@pytest.mark.parametrize(
    ("pages", "said", "expected"),
    [
        ("AB", "yy", 0.4),  # both searches found a new gold page, the answer is right
        ("AXB", "yny", 0.4),
        ("AAB", "yny", 0.4),  # the same page again is not new
        ("AXB", "yyy", (0.4 - 0.6 + 0.4) / 3),
        ("AXB", "nnn", (-0.3 + 0.4 - 0.3) / 3),
        ("AB", "y-", (0.4 - 0.3) / 2),
        ("AX", "y-", (0.4 - 0.3) / 2),
        ("", "", 0.0),
    ],
)
def test_judgements_by_hand(pages, said, expected):
    assert judged(pages, said) == pytest.approx(expected)
    right = said.replace("-", "n").count("y") if said else 0
    assert judged(pages, said, answer="Bonn") <= judged(pages, said) and right <= len(pages)


def test_judgements_summed_and_without_an_answer():
    assert judged("AXB", "yyy", summed=True) == pytest.approx(0.4 - 0.6 + 0.4)
    assert judged("AB", "yy", answer="Bonn") == pytest.approx(0.3)


@pytest.mark.parametrize(("said", "answered", "silent"), [("yy", 0.4, 0.0), ("yn", 0.05, 0.0), ("nn", -0.3, -0.3)])
def test_not_answering_saves_nothing(said, answered, silent):
    """In the source an episode without an answer gets 0: with wrong judgements it would pay not to answer."""
    assert judged("AB", said) == pytest.approx(answered)
    assert judged("AB", said, stop_reason="turns") == pytest.approx(silent)
    assert judged("AB", said, answer="Bonn") >= silent - 1e-9


def test_no_habit_of_judging_earns_more_than_judging_rightly():
    """Over all orders of two gold pages and two useless ones: always yes, always no, nothing; and searching on."""
    for pages in set(itertools.permutations("ABXY")):
        honest = judged(pages, "".join("y" if page in "AB" else "n" for page in pages))
        assert all(judged(pages, habit * 4) < honest for habit in "yn-")
    assert judged("AB" + "XY" * 4, "yy" + "nn" * 4) == pytest.approx(judged("AB", "yy"))  # the mean of more is no more
    assert judged("AB" + "XY" * 4, "yy" + "nn" * 4, summed=True) > judged("AB", "yy", summed=True)  # the source's sum


# -- ranks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "options", "expected"),
    [
        (("AB",), {}, 2 + 17 / 9),  # ranks 1 and 2
        (("AB", "AB"), {}, 2 + 17 / 9),  # both lists agree
        (("A", "B"), {}, 2 + 17 / 9),  # rank 1 in both lists: the first list leads
        (("AX", "BY"), {}, 2 + 17 / 9),
        (("XA", "XA"), {}, 17 / 9),
        (("XA", "A"), {}, 2.0),  # A: 1 / (1/2 + 1), before X
        (("XA", "XB"), {}, 17 / 9 + 16 / 9),
        (("XA", "XB", "A"), {}, 17 / 9 + 16 / 9),  # X twice first, A, B
        (("XA", "A", "B"), {"optimistic": True}, 2 + 17 / 9),
        (("XY", "AB"), {}, 17 / 9 + 15 / 9),  # X, A, Y, B: of equal sums the earlier list leads
        (("XY", "AB"), {"optimistic": True}, 2 + 17 / 9),
        (("AB",), {"decay": 0.6}, 2 + 0.6 * 17 / 9),
        (("AB",), {"bonus": 0.5, "bonus_ranks": 1}, 2.5 + 17 / 9),
        (("AB",), {"bonus": 0.5}, 2.5 + 17 / 9 + 0.5 / np.log2(3)),
        (("X", "Y"), {}, 0.0),
        ((), {"optimistic": True}, 0.0),
    ],
)  # fmt: skip
def test_ranks_by_hand(pages, options, expected):
    for answer in ("Ulm", "Bonn"):
        assert earned(episode(*pages, answer=answer), ranks=options or 1) == [pytest.approx(expected)]


def test_scores_decide_between_pages_of_equal_ranks():
    made = episode("X", "A")
    made.searches[1] = dataclasses.replace(made.searches[1], hits=(Hit(PAGES["A"], 2.0),))
    assert earned(made, ranks=1) == [2.0]


def test_the_value_of_a_rank():
    assert [rank_value(rank) for rank in (1, 10, 55, 100, 101, 5000)] == pytest.approx([2, 1, 0.5, 0, 0, 0])
    values = [rank_value(rank) for rank in range(1, 200)]
    assert values == sorted(values, reverse=True)


def test_the_best_subset_is_worth_at_least_every_subset_and_illegal_queries_nothing():
    rng = np.random.default_rng(0)
    for _ in range(50):
        pages = ["".join(rng.permutation(list("ABXY"))[: rng.integers(1, 5)]) for _ in range(rng.integers(1, 5))]
        (best,) = earned(episode(*pages), ranks={"optimistic": True})
        subsets = [some for n in range(len(pages)) for some in itertools.combinations(pages, n + 1)]
        assert best == pytest.approx(max(earned(episode(*some), ranks=1)[0] for some in subsets))
    many = episode(*["X"] * 30)
    assert earned(many, ranks={"optimistic": True}) == [0.0], "only the first searches are combined"
    made = episode("AB")
    illegal = dataclasses.replace(made, calls=[dataclasses.replace(call, legal=False) for call in made.calls])
    assert earned(illegal, ranks=1) == [0.0]


def test_ranks_without_gold_pages_are_those_of_the_first_passage_with_an_answer():
    assert earned(episode("XB"), question=EMPTY, ranks=1) == [pytest.approx(17 / 9)]
    assert earned(episode("BB"), question=EMPTY, ranks=1) == [2.0]
    assert earned(episode("XY"), question=EMPTY, ranks=1) == [0.0]


# -- density -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "answer", "expected"),
    [
        (("A", "B"), "Ulm", 2.0),  # an oracle
        (("A", "B", "B"), "Ulm", 1 + 2 / 3),  # one search repeated
        (("AB",), "Ulm", 2.0),
        (("AB", "A"), "Ulm", 1.5),  # a page that returns counts once
        (("X", "Y"), "Ulm", 1.0),
        ((), "Ulm", 1.0),  # from memory
        (("A", "B"), "Bonn", 0.0),
        (("A", "B", *"XYXYXY"), "Ulm", 1.25),  # searching on
    ],
)
def test_density_by_hand(pages, answer, expected):
    assert earned(episode(*pages, answer=answer), outcome=1, density=1) == [pytest.approx(expected)]


def test_density_of_opened_and_of_written_pages():
    written = dataclasses.replace(PAGES["A"], id="simulated:1")
    made = episode("B")
    made.searches.insert(0, Searched(1, "q", (Hit(written, 1.0),)))
    assert earned(made, density=1) == [0.5]
    assert earned(episode("A"), question=EMPTY, density=1) == [0.0]


# -- pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "answer", "options", "expected"),
    [
        (("A", "B"), "Ulm", {}, 1.0),
        (("A", "B"), "Bonn", {}, 0.1),
        (("A",), "Ulm", {}, 5 / 9),  # precision 1, recall 1/2: 5 x 1/2 / (4 + 1/2)
        (("A", "B", "X", "Y"), "Ulm", {"beta": 1.0}, 2 / 3),
        (("X",), "Ulm", {}, 0.0),
        ((), "Ulm", {}, 0.0),
        (("A", "B"), "Ulm", {"of": "opened"}, 0.0),
    ],
)
def test_the_score_of_pages_by_hand(pages, answer, options, expected):
    assert earned(episode(*pages, answer=answer), pages=options) == [pytest.approx(expected)]


# -- completeness --------------------------------------------------------------------------------------------------


def read(answer):
    """Returns the call of a second answer."""
    return {"role": "reader", "prefix": True, "answer": answer}


@pytest.mark.parametrize(
    ("pages", "answer", "second", "expected"),
    [
        (("A", "B"), "Ulm", "Ulm", 1.0),
        (("A", "B"), "Ulm", "Bonn", 0.0),
        (("A", "B"), "Bonn", "Ulm", 0.0),  # a wrong answer earns nothing, whatever the reader says
        (("X",), "Ulm", "", 0.0),  # a reader that only reads
        (("X",), "Ulm", "Ulm", 0.0),  # one that knows the answer: no page states it
    ],
)
def test_completeness_by_hand(pages, answer, second, expected):
    assert earned(episode(*pages, answer=answer, calls=[read(second)]), completeness=1) == [expected]


def test_a_reader_that_knows_may_count_if_asked():
    made = episode("X", calls=[read("Ulm")])
    assert earned(made, completeness={"grounded": False}) == [1.0]


def test_completeness_without_second_answers():
    assert earned(episode(), completeness=1) == [0.0]  # no pages, no second answer
    with pytest.raises(DataError, match=r"no second answer from its pages.*search-r1-reread"):
        earned(episode("A"), completeness=1)


# -- boundary ------------------------------------------------------------------------------------------------------


def tried(answer):
    """Returns the call of a trial answer from memory."""
    return {"role": "knower", "prefix": True, "answer": answer}


def group(*attempts, trials):
    """Returns attempts (number of searches, answer), with the trial answers of a group."""
    return [
        episode(*"ABXY"[:searches], answer=answer, calls=[tried(trial)])
        for (searches, answer), trial in zip(attempts, trials, strict=True)
    ]


def test_boundary_of_a_known_a_searched_and_an_undetermined_question():
    attempts = [(2, "Ulm"), (3, "Ulm"), (4, "Bonn"), (0, "Ulm")]
    known = group(*attempts, trials=["Ulm", "Ulm", "x", "x"])
    assert earned(*known, boundary=1) == pytest.approx([-0.1, -0.15, 0, 0])
    searched_for = group(*attempts[:3], (2, "Ulm"), trials=["Ulm", "x", "x", "x"])
    assert earned(*searched_for, boundary=1) == pytest.approx([0, -0.05, 0, 0])
    undetermined = group((2, "Bonn"), (4, "Bonn"), trials=["x", "x"])
    assert earned(*undetermined, boundary=1) == [0, 0]


def test_costs_of_needed_searches_do_not_change_with_the_least():
    one = earned(*group((1, "Ulm"), (3, "Ulm"), trials="xx"), boundary=1)
    two = earned(*group((2, "Ulm"), (4, "Ulm"), trials="xx"), boundary=1)
    assert one == two


def test_repeated_queries_are_charged_in_the_form_of_the_script():
    made = episode("A", "B", answer="Bonn", calls=[tried("x")])
    made.searches[1] = dataclasses.replace(made.searches[1], query="Query  a!")
    assert earned(made, boundary={"repeat": 0.1}) == [-0.1]
    with pytest.raises(DataError, match=r"no trial answer from memory.*saas"):
        earned(episode("A"), boundary=1)


# -- plan ----------------------------------------------------------------------------------------------------------


def parts(*texts):
    return "".join(f"<q{n}>{text}</q{n}>" for n, text in enumerate(texts, start=1))


FIRST, SECOND = (hop.question for hop in QUESTION.hops)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ((FIRST, SECOND), 1.0),
        ((SECOND, FIRST), 1.0),
        ((FIRST, "Where was B born?"), 1.0),  # the mark of an answer, or the answer
        ((FIRST,), 2 / 3),  # precision 1, recall 1/2
        ((FIRST, SECOND, SECOND), 0.8),  # precision 2/3, recall 1
        (("zebra",), 0.0),
    ],
)
def test_plans_by_hand(stated, expected):
    made = team([{"role": "planning", "text": parts(*stated)}, {"role": "answer", "text": parts(FIRST, SECOND)}])
    (row,) = Credit(terms_of(plan=1), CreditContext(question=lambda _: QUESTION)).allocate([made])
    assert row == [pytest.approx(expected), 0]


@pytest.mark.parametrize("call", [{"text": ""}, {"text": parts(FIRST, SECOND), "legal": False}])
def test_no_plan_and_one_that_is_not_legal_earn_nothing(call):
    made = team([{"role": "planning", **call}])
    for question in (QUESTION, EMPTY):
        (row,) = Credit(terms_of(plan=1), CreditContext(question=lambda _, q=question: q)).allocate([made])
        assert row == [0.0]


def test_the_matching_is_the_best_not_the_first():
    """Greedy: "p q" to "p q r s" (2/3), then "p q r s t" to "p x" (2/7). The best: 8/9 and 1/2."""
    best = plan_score(["p q", "p q r s t"], [["p q r s"], ["p x"]])
    assert best == pytest.approx((8 / 9 + 1 / 2) / 2)


# -- candidates and confidences ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Ada Park (0.6); Bo Lind (0.3)", [("Ada Park", 0.6), ("Bo Lind", 0.3)]),
        ("Ada (60 %)\nBo (.3)\nCy", [("Ada", 0.6), ("Bo", 0.3), ("Cy", None)]),
        ("Zor (film); Zor (1990)", [("Zor (film)", None), ("Zor (1990)", None)]),
        ("Ada (1.5); Bo (nan); Cy (-0.2)", [("Ada", 1.5), ("Bo", "nan"), ("Cy", -0.2)]),
        ("Zor (film) (1)", [("Zor (film)", 1.0)]),
        ("", []),
    ],
)
def test_candidates_are_read(answer, expected):
    found = [(c.text, "nan" if c.confidence is not None and np.isnan(c.confidence) else c.confidence)
             for c in candidates_of(answer)]  # fmt: skip
    assert found == [(text, p if p in (None, "nan") else pytest.approx(p)) for text, p in expected]


@pytest.mark.parametrize(
    ("answer", "any_of", "calibrated"),
    [
        ("Ulm (1)", 1, 1),
        ("Ulm (0.5); Bonn (0.5)", 1, 0.75),
        ("Bonn (0.2); Ulm (0.6); Kiel (0.1)", 1, 1 - (0.04 + 0.16 + 0.01) / 3),
        ("Bonn (0); Kiel (0); Rom (0)", 0, 1),
        ("Ulm (0.5); ulm (0.5)", 1, 0),  # stated twice
        ("Ulm (0.9); Bonn (0.9)", 1, 0),  # more than 1 in sum
        ("Ulm (nan)", 1, 0),
        ("Ulm (1.5)", 1, 0),
        ("Ulm; Bonn", 1, 0),  # no confidence
        ("Ulm (0.25); Bonn (0.25); Kiel (0.25); Rom (0.25)", 0, 0.8125),  # more candidates than three
        ("", 0, 0),
    ],
)
def test_candidates_by_hand(answer, any_of, calibrated):
    made = episode(answer=answer)
    assert earned(made, **{"any-of": 1}) == [any_of]
    assert earned(made, calibrated=1) == [pytest.approx(calibrated)]


def test_several_right_answers():
    several = dataclasses.replace(QUESTION, metadata={"wanted": [["Ulm"], ["Bonn", "Bonna"], ["Kiel"]]})
    for answer, expected in [("Ulm", 1 / 3), ("Ulm; Bonn; Bonna", 2 / 3), ("Ulm; Bonna; Kiel", 1)]:
        assert earned(episode(answer=answer), question=several, **{"any-of": 1}) == [pytest.approx(expected)]


def test_scores_of_candidates():
    answers = ["Ulm (0.6); Bonn (0.4)", "Bonn (0.2); Ulm (0.5)", "Ulm", "", "Kiel (nan)"]
    scores = candidate_scores(answers, [["Ulm"]] * 5)
    brier = [1 - (0.16 + 0.16) / 2, 1 - (0.04 + 0.25) / 2, 0, 0, 0]
    stated = ((0.6, True), (0.4, False), (0.2, False), (0.5, True))
    assert scores == {
        "n": 5, "first": 0.4, "likeliest": 0.6, "any": 0.6, "candidates": 6 / 5, "brier": pytest.approx(sum(brier) / 5),
        "expected_calibration_error": pytest.approx(sum(abs(p - right) for p, right in stated) / 4),
    }  # fmt: skip
    assert candidate_scores(["Ulm; Bonn", ""], [["Ulm"]] * 2) is None


def test_the_brier_reward_is_proper():
    """Where the right answer is drawn from a known distribution, to state that distribution earns most."""
    truth = [0.5, 0.3, 0.2]

    def mean(stated):
        candidates = [Candidate(name, p) for name, p in zip("abc", stated, strict=True)]
        return sum(p * brier_reward(candidates, [n == right for n in range(3)]) for right, p in enumerate(truth))

    grid = [step / 20 for step in range(21)]
    stated = [row for row in itertools.product(grid, repeat=3) if sum(row) <= 1]
    assert max(stated, key=mean) == pytest.approx(tuple(truth))


# -- what a cheat earns --------------------------------------------------------------------------------------------

HONEST = episode("A", "B", answer="Ulm", calls=[tried("x"), read("Ulm")])
CHEATS = {
    "density": [episode("A", "B", "B"), episode(*"ABXYXYXY"), episode("A", "B", answer="A; B; Ulm; Bonn"), episode()],
    "ranks": [episode("X", "Y", "AB"), episode("XYAB"), episode(), episode("A", "A")],
    "pages": [episode(*"ABXYXYXY"), episode(), episode("X", "Y"), episode("A", "B", answer="A; B; Ulm; Bonn")],
    "completeness": [episode("X", calls=[read("Ulm")]), episode(), episode("A", "B", answer="", calls=[read("Ulm")]),
                     episode(*"XYXY", calls=[read("A; B; Ulm")])],
}  # fmt: skip


@pytest.mark.parametrize("term", CHEATS)
def test_a_cheat_earns_less_than_honest_play(term):
    (honest,) = earned(HONEST, outcome=1, **{term: 1})
    for cheat in CHEATS[term]:
        assert earned(cheat, outcome=1, **{term: 1})[0] < honest - 0.1


def test_cheats_against_the_boundary():
    honest, repeated, endless, never = earned(
        *group((2, "Ulm"), trials=["x"]),
        *group((3, "Ulm"), (4, "Ulm"), (0, "Bonn"), trials="xxx"), outcome=1, boundary=1,
    )  # fmt: skip
    assert honest == 1 and max(repeated, endless, never) < honest


def test_cheats_against_plans_and_candidates():
    everything = [FIRST, SECOND, *(f"Who is {name}?" for name in "CDEFGHI")]
    assert plan_score(everything, [[FIRST], [SECOND]]) < 0.6
    honest = earned(episode(answer="Ulm (0.8); Bonn (0.1)"), **{"any-of": 1, "calibrated": 1})[0]
    for answer in ("Bonn (0); Kiel (0); Rom (0)", "a (.1); b (.1); c (.1); Ulm (.1)", "Ulm (1); Bonn (1); Kiel (1)",
                   "Ulm (0); Bonn (0); Kiel (0)", ""):  # fmt: skip
        assert earned(episode(answer=answer), **{"any-of": 1, "calibrated": 1})[0] < honest


@pytest.mark.parametrize(
    ("credit", "message"),
    [
        ("{outcome: 1, any-of: 1}", "any-of: it replaces outcome"),
        ("{calibrated: 1}", "calibrated: wrong candidates with confidence 0 earn everything"),
        ("{outcome: 1, completness: 1}", "completeness"),
        ("{outcome: 1, boundary: {min_right: 0}}", "min_right"),
    ],
)
def test_recipes_with_wrong_terms_are_refused(credit, message):
    with pytest.raises(SearchGymError, match=message):
        load_recipe("tiny-grpo", [f"credit={credit}"])

"""Rubrics and the scores made of verdicts, by hand."""

import itertools
import math
import re
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
from annotated_types import Gt
from judges_in_tests import asks_model, find_judge

from searchgym.errors import CardError, DataError, NoVerdictError, UsageError
from searchgym.options import read
from searchgym.records import Question
from searchgym.scoring.confidence import parts_of
from searchgym.scoring.judges.judge import Checked, Criterion, Judge
from searchgym.scoring.judges.kinds.rules import RuleJudge
from searchgym.scoring.judges.rubric import (
    best_of_candidates,
    coverage,
    gated,
    rubric_of,
    wanted_of,
    weighted_share,
    weightings,
)
from searchgym.scoring.judges.tournament import tournament

ONE, TWO, LINE = Criterion("a", (("a",),)), Criterion("b", (("b",),), weight=3), Criterion("c", (("c",),), bottom=True)


def question(**metadata):
    return Question("q", "Q?", ("Ada Bel", "Ada"), aliases=("A. Bel",), metadata=metadata)


def test_shares_are_weighted():
    assert weighted_share([True, False], [ONE, TWO]) == 0.25
    assert weighted_share([False, True], [ONE, TWO]) == 0.75
    assert weighted_share([True, True], [ONE, TWO]) == 1


def test_the_gate_by_hand():
    """Two bottom lines, c and the calls' form: ((b1 + d)(b2 + d))^(1/2) - d, times the share of a and b."""
    d = 0.05
    assert gated([True, True, True], [ONE, TWO, LINE], 1.0, d) == pytest.approx(1)
    assert gated([False, True, True], [ONE, TWO, LINE], 1.0, d) == pytest.approx(0.75)
    closed = math.sqrt((0 + d) * (1 + d)) - d
    assert gated([True, True, False], [ONE, TWO, LINE], 1.0, d) == pytest.approx(closed) and closed < 0.2
    half = math.sqrt((1 + d) * (0.5 + d)) - d
    assert gated([True, True, True], [ONE, TWO, LINE], 0.5, d) == pytest.approx(half)
    assert gated([True], [LINE], 1.0, d) == pytest.approx(1), "a rubric of bottom lines alone: the gate is the reward"
    assert gated([False, False, False], [ONE, TWO, LINE], 0.0, d) == 0
    assert gated([False], [LINE], 1.0, d) == gated([False] * 2, [LINE] * 2, 1.0, d) == 0, (
        "legal calls alone earn nothing"
    )


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Zor; Kim Vos", 1),
        ("kim vos\nthe Zor", 1),
        ("Zor", 2 / 3),
        ("Zor; Zor", 2 / 4),
        ("Zor; Kim Vos; Rox", 4 / 5),
        ("Zor; Vos", 1),
        ("Rox", 0),
        ("; ;", 0),
        ("Zor, Kim Vos", 0),
    ],
)
def test_coverage_by_hand(answer, score):
    assert coverage(answer, [("Zor",), ("Kim Vos", "Vos")]) == pytest.approx(score)


def test_sets_of_candidates_by_hand():
    """w = (1, 0), (0, 1), (1/2, 1/2): the best candidate is worth 1, 1 and 1/2; one compromise (1/2, 1/2) is 1/2."""
    weights = np.array([[1, 0], [0, 1], [0.5, 0.5]])
    assert best_of_candidates(np.array([[1.0, 0], [0, 1]]), weights) == pytest.approx(2.5 / 3)
    assert best_of_candidates(np.array([[0.5, 0.5]]), weights) == pytest.approx(0.5)
    assert best_of_candidates(np.array([[1.0, 1]]), weights) == 1
    assert best_of_candidates(np.zeros((3, 2)), weights) == 0


def test_weightings_depend_on_the_question_alone():
    drawn = weightings("q1", 3, 2000)
    assert np.array_equal(drawn, weightings("q1", 3, 2000)) and not np.array_equal(drawn, weightings("q2", 3, 2000))
    assert drawn.shape == (2000, 3) and np.allclose(drawn.sum(axis=1), 1) and (drawn >= 0).all()
    assert np.allclose(drawn.mean(axis=0), 1 / 3, atol=0.03), "Dirichlet(1) has equal means"


def test_rubrics_are_data():
    rows = [{"text": "It names Zor.", "says": [["Zor"]], "weight": 2, "bottom": True}, {"text": "Short."}]
    found = rubric_of(question(rubric=rows))
    assert found == (Criterion("It names Zor.", (("Zor",),), weight=2.0, bottom=True), Criterion("Short."))
    (default,) = rubric_of(question())
    assert default.says == (("Ada Bel", "Ada", "A. Bel"),)
    assert wanted_of(question()) == [("Ada Bel", "Ada", "A. Bel")]
    assert wanted_of(question(wanted=[["a", "b"], ["c"]])) == [("a", "b"), ("c",)]
    assert parts_of("a; b\n\nc;") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rubric", "says"),
    [
        ([], "expected a list of criteria"),
        ("good", "expected a list of criteria"),
        ([{"txt": "x"}], "txt: unknown key; did you mean 'text'"),
        ([{"text": "x", "says": "Zor"}], r"question 'q': rubric\[0\]: says"),
        ([{"says": [["x"]]}], "text: missing key"),
    ],
)
def test_a_broken_rubric_is_named(rubric, says):
    with pytest.raises(DataError, match=says):
        rubric_of(question(rubric=rubric))


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf])
def test_weights_are_positive(weight):
    with pytest.raises(DataError, match=rf"question 'q': rubric\[0\].* weight.* got {weight}"):
        rubric_of(question(rubric=[{"text": "x", "weight": weight}]))
    with pytest.raises(UsageError, match="weight is a number above 0"):
        Criterion("x", weight=weight)


@pytest.mark.parametrize("wanted", [[], "Zor", ["Zor"], [[]], [[1]]])
def test_a_broken_list_of_answers_is_named(wanted):
    with pytest.raises(DataError, match="question 'q': wanted"):
        wanted_of(question(wanted=wanted))


@pytest.mark.parametrize(
    ("answer", "met"),
    [
        ("The mother of Zor is Ada Bel.", True),
        ("Zor is a man.\nHis mother, says Zor, was ada  BEL!", True),
        ("The mother of Zor. Ada Bel.", False),
        ("The mother of Zorro is Ada Bel.", False),
        ("Zor's mother is Ada Bell.", False),
        ("Nobody knows whether the mother of Zor is Ada Bel.", False),
        ("Neither Shore says that the mother of Zor is Ada Bel.", False),
    ],
)
def test_rules_want_the_words_in_one_sentence(answer, met):
    criterion = Criterion("mother", (("Zor",), ("mother",), ("Ada Bel", "Ada B.")))
    assert RuleJudge().meets("Q?", answer, [criterion]) == [met]


def test_a_hedge_inside_a_name_is_none():
    criterion = Criterion("seat", (("Neither Shore",), ("seat",), ("Kim or Vos",)))
    assert RuleJudge().meets("Q?", "The seat of Neither Shore is Kim or Vos.", [criterion]) == [True]
    assert RuleJudge().meets("Q?", "The seat of Neither Shore is not Kim or Vos.", [criterion]) == [False]


def test_rules_need_words():
    with pytest.raises(UsageError, match="no says"):
        Checked(RuleJudge()).passes("Q?", "x", [Criterion("It is kind.")])


# -- tournaments ---------------------------------------------------------------------------------------------------


class Order:
    """A judge that prefers the larger number."""

    in_process = True

    def meets(self, question, answer, criteria):
        return [True] * len(criteria)

    def better(self, question, answers, criteria):
        return int(float(answers[1]) > float(answers[0]))


def plays(answers, rounds=1, seed=0, judge=None):
    return tournament(judge or Checked(Order()), "Q?", answers, [ONE], rounds, np.random.default_rng(seed))


def test_the_best_of_eight_wins_three_matches_in_each_tournament():
    """Of 8, 7 matches are played; the best one wins 3, and 4 lose their first: min 0 and max 3."""
    for seed in range(5):
        played = plays([str(n) for n in range(8)], 1, seed)
        assert played.decided == 7 and played.scores[7] == 1 and played.scores[0] == 0
        assert sorted(played.scores) == pytest.approx([0, 0, 0, 0, 1 / 3, 1 / 3, 2 / 3, 1])


def test_points_add_up_over_tournaments():
    """Of two answers the better wins every match; of three, the best wins 1 or 2 of the 2 matches in each."""
    assert plays(["1", "2"], 4).scores == [0, 1] and plays(["1", "2"], 4).decided == 4
    scores = np.mean([plays(["1", "2", "3"], 1, seed).scores for seed in range(300)], axis=0)
    # 3 has the bye with chance 1/3 (points 1: 2 of it against the winner), else 2 points; 2 has points only if 1 is
    # its first opponent (chance 1/3), 1 never: with 3's bye, 2 gets 1 and 3 gets 1, so both score 1.
    assert scores == pytest.approx([0, 1 / 3, 1], abs=0.08)


class MostlyOne(Order):
    """A judge that prefers 1 to 2 in three of four matches."""

    def __init__(self):
        self.matches = 0

    def better(self, question, answers, criteria):
        self.matches += 1
        wanted = "1" if self.matches % 4 else "2"
        return answers.index(wanted)


def test_scores_lie_between_the_fewest_points_and_the_most():
    """Of four matches one answer wins three: it is not worth 3/3 and the other 1/3, but 1 and 0."""
    assert plays(["1", "2"], 4, judge=Checked(MostlyOne())).scores == [1, 0]
    assert plays(["1", "2"], 8, judge=Checked(MostlyOne())).scores == [1, 0]

    class Turns(MostlyOne):
        def better(self, question, answers, criteria):
            self.matches += 1
            return answers.index("12"[self.matches % 2])

    assert plays(["1", "2"], 4, judge=Checked(Turns())).scores == [0.5, 0.5]  # two points each


def test_equal_answers_are_not_compared():
    played = plays(["2", "2 ", "2"], 3)
    assert played.scores == [0.5, 0.5, 0.5] and played.decided == 0


def test_a_missing_answer_scores_0():
    assert plays(["", "1", "2"], 2).scores == [0, 0, 1]
    assert plays(["", ""], 2).scores == [0, 0]
    assert plays(["", "1"], 2).scores == [0, 0.5]


def test_a_judge_that_prefers_neither_gives_no_points():
    class Neither(Order):
        def better(self, question, answers, criteria):
            return None

    assert plays(["1", "2", "3", "4"], 4, judge=Checked(Neither())).scores == [0.5] * 4


class Silent(Order):
    """A judge without a verdict on 3."""

    def better(self, question, answers, criteria):
        if "3" in answers:
            raise NoVerdictError("the judge is silent")
        return super().better(question, answers, criteria)


def test_an_answer_without_any_verdict_has_no_score():
    judge = Checked(Silent())
    played = plays(["3", "1", "2"], 8, judge=judge)
    assert played.scores == [None, 0, 1]
    assert judge.counts.failed > 0
    assert plays(["3", "1"], 1, judge=Checked(Silent())).scores == [None, None]
    assert plays(["1", "2"], 1, judge=Checked(Silent())).scores == [0, 1]
    assert plays(["3", ""], 1, judge=Checked(Silent())).scores == [0.5, 0], "no match was played"


def test_a_match_without_verdict_gives_no_points():
    """Each answer is judged in some match here; those that are not count for nobody."""

    class SilentOnOnePair(Order):
        def better(self, question, answers, criteria):
            if set(answers) == {"2", "3"}:
                raise NoVerdictError("the judge is silent")
            return super().better(question, answers, criteria)

    played = plays(["1", "2", "3"], 40, judge=Checked(SilentOnOnePair()))
    assert played.scores[0] == 0
    assert min(played.scores[1:]) > 0.5, "both beat 1 about as often"


def test_a_model_must_prefer_an_answer_in_both_orders():
    first = asks_model("1")
    assert first.better("Q?", ("x", "b"), [ONE]) is None
    longer = asks_model(lambda prompt: "1" if prompt.index("| long") < prompt.index("| x") else "2")
    assert longer.better("Q?", ("long", "x"), [ONE]) == 0
    assert longer.better("Q?", ("x", "long"), [ONE]) == 1


# -- a judge by its name -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Likes(Judge):
    """A user's judge: an answer is right if it holds a word."""

    word: str = "x"
    seconds: Annotated[float, Gt(0)] = 3.0

    def open(self, models):
        return Checked(self, self.seconds)

    def meets(self, question, answer, criteria):
        return [self.word in answer for _ in criteria]


@dataclass(frozen=True)
class Unable(Judge):
    def meets(self, question, answer, criteria):
        return [True]


@dataclass(frozen=True)
class Broken(Judge):
    def problems(self):
        return [{}["word"]]


def test_judges_by_name():
    rules = find_judge("rules")
    assert isinstance(rules.judge, RuleJudge) and rules.judge.in_process
    rules.close()
    own = find_judge("test_rubric:Likes")
    assert own.seconds == 3 and own.passes("Q?", "x", [ONE]) == [True]
    assert find_judge({"kind": "test_rubric:Likes", "word": "y"}).passes("Q?", "x", [ONE]) == [False]
    assert find_judge({"kind": "rules"}).judge == rules.judge
    with pytest.raises(UsageError, match="which model of this server"):
        find_judge("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "model"),
    [("own", "own"), ("./rules", "./rules"), ("OWNER/NAME", "OWNER/NAME"), ("http://x/v1#y", "http://x/v1#y")],
)
def test_any_other_text_is_a_model(text, model):
    judge = read(Judge, text, "judge")
    assert judge == read(Judge, {"kind": "model", "model": model}, "judge")
    assert judge.asks == model and read(Judge, "rules", "judge").asks is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "test_rubric:asks_model",
            "'test_rubric:asks_model' must be one class, a frozen dataclass that inherits",
        ),
        ("builtins:list", "a frozen dataclass that inherits Judge"),
        ("no_module_x:Judge", "cannot load 'no_module_x:Judge'"),
        ("test_rubric:Unable", "Unable does not define verify; Unable does not define better"),
        ("test_rubric:Broken", "its check failed: KeyError: 'word'"),
        ({"kind": "test_rubric:Likes", "seconds": 0}, "seconds: expected above 0, got 0"),
        ({"kind": "test_rubric:Likes", "word": 3}, "word: expected a string, got 3"),
        ({"kind": "rule"}, "unknown judge 'rule'; did you mean 'rules'"),
        ({"kind": "rules", "seconds": 3}, "seconds: unknown key"),
        ({"kind": "model"}, "model: missing key"),
        ({"kind": "model", "model": "tiny", "seconds": math.nan}, "seconds: expected "),
        ({"kind": "model", "model": "tiny", "seconds": "60"}, "seconds: expected a number, got '60'"),
        ({"model": "tiny"}, "missing key kind, one of model, rules"),
        (3, "expected keys and values"),
    ],
)
def test_judges_that_cannot_work_are_refused(given, said):
    with pytest.raises((CardError, UsageError), match=re.escape(said)):
        find_judge(given)


def test_verdicts_are_kept():
    calls = itertools.count()

    class Counts(Order):
        def meets(self, question, answer, criteria):
            next(calls)
            return [True] * len(criteria)

    judge = Checked(Counts())
    assert judge.passes("Q?", "x", [ONE]) == judge.passes("Q?", "x", [ONE]) == [True]
    assert judge.passes("Q?", "y", [ONE]) == [True] and next(calls) == 2


def test_an_answer_without_words_passes_no_judge():
    class Agrees:
        in_process = True

        def verify(self, question, answer, pages):
            return True

        def meets(self, question, answer, criteria):
            return [True] * len(criteria)

        def better(self, question, answers, criteria):
            return 0

    judge = Checked(Agrees())
    for text in ("", "the", "A.N.", "?!", "a the !!!"):
        assert not judge.verify("Which band?", text, ["The The is a band."])
        assert judge.passes("Which band?", text, (Criterion("It names the band.", (("The The",),)),)) == [False]
        assert judge.better("Which band?", (text, "Matt"), ()) == 1
    assert judge.counts.queries == 0

"""Awareness: F1 of not searching, counted by hand; what has no trial answer is left out."""

import dataclasses
import itertools
import json

import pytest
from support import CARD, QUESTIONS, TitleRetriever

from searchgym.agents.base import load_agent
from searchgym.cli.evaluation.printed import _remarks
from searchgym.envs.task import load_task
from searchgym.eval.evidence import awareness
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.records import Answer, Call, Episode, Question, Searched
from searchgym.rollout.api.sampler import MessageFormat
from searchgym.rollout.models import Model
from searchgym.testing.fakes import Replies

GOLD = {"q": Question("q", "Who?", ("Ada", "Lady Lovelace"))}


def call(answer, prefix=True, turn=1):
    return Call(0, 1, 2, "knower", turn=turn, model_key="policy", answer=answer, prefix=prefix)


def episode(answer, searches, *calls, stop_reason="answer"):
    searched = [Searched(turn, "x", ()) for turn in range(1, searches + 1)]
    made = [call(answer), *calls] if answer is not None else list(calls)
    return Episode(
        "q#0", "q", "ikea", "env", calls=made, searches=searched, answer=Answer("x"), stop_reason=stop_reason
    )


def counted(*cells):
    """Returns episodes: known and not searched for, known and searched, unknown and not, unknown and searched."""
    kinds = [("Ada", 0), ("Ada", 2), ("Eve", 0), ("Eve", 1)]
    return [episode(*kind) for kind, number in zip(kinds, cells, strict=True) for _ in range(number)]


@pytest.mark.parametrize(
    ("cells", "known", "unsearched", "precision", "recall", "f1"),
    [
        ((1, 0, 0, 1), 1 / 2, 1 / 2, 1.0, 1.0, 1.0),
        ((0, 1, 1, 0), 1 / 2, 1 / 2, 0.0, 0.0, 0.0),
        ((3, 1, 2, 4), 4 / 10, 5 / 10, 3 / 5, 3 / 4, 2 / 3),  # 2 * 3 / (4 + 5)
        ((0, 0, 0, 5), 0.0, 0.0, None, None, None),  # knows nothing and searches always: nothing to rate
        ((0, 0, 5, 0), 0.0, 1.0, 0.0, None, 0.0),
        ((0, 5, 0, 0), 1.0, 0.0, None, 0.0, 0.0),
    ],
)
def test_f1_of_not_searching_by_hand(cells, known, unsearched, precision, recall, f1):
    found = awareness(counted(*cells), GOLD)
    assert found == {
        "n": sum(cells),
        "known": pytest.approx(known),
        "unsearched": pytest.approx(unsearched),
        "precision": pytest.approx(precision),
        "recall": pytest.approx(recall),
        "f1": pytest.approx(f1),
    }


def test_a_trial_answer_without_words_knows_nothing():
    gold = {"q": Question("q", "Which band?", ("The The", "TT"))}
    found = awareness([episode(text, 0) for text in ("", "the", "!!!", "TT")], gold)
    assert found is not None and found["known"] == 1 / 4


def test_a_question_without_an_answer_is_known_by_nobody():
    unanswerable = {"q": dataclasses.replace(GOLD["q"], answerable=False)}
    assert awareness(counted(3, 1, 2, 4), unanswerable) is None


def test_it_is_f1_for_every_small_table():
    for cells in itertools.product(range(3), repeat=4):
        if not sum(cells):
            continue
        found = awareness(counted(*cells), GOLD)
        precision, recall = found["precision"], found["recall"]
        if precision is not None and recall is not None:
            both = precision + recall
            assert found["f1"] == pytest.approx(2 * precision * recall / both if both else 0.0)


@pytest.mark.parametrize(
    ("answer", "known"),
    [("ada", 1), ("The Ada.", 1), ("lady lovelace", 1), ("Ada Lovelace", 0), ("", 0), ("Ada or Eve", 0)],
)
def test_known_means_an_exact_match_with_any_gold_answer(answer, known):
    assert awareness([episode(answer, 0)], GOLD)["known"] == known


def test_what_has_no_trial_answer_of_the_first_turn_is_left_out():
    late, other = call("Ada", turn=2), call("Ada", prefix=False)
    assert awareness([], GOLD) is None
    assert awareness([episode(None, 0), episode(None, 0, other), episode(None, 1, late)], GOLD) is None
    failed = episode("Ada", 1, stop_reason="retriever_error")
    assert awareness([failed], GOLD) is None
    assert awareness([failed, episode("Ada", 0), episode(None, 3, late)], GOLD)["n"] == 1
    first = episode("Eve", 0, call("Ada"))  # of two trial answers the first counts
    assert awareness([first], GOLD)["known"] == 0.0


def test_a_trial_answer_without_text_counts_as_not_known():
    empty = episode("Ada", 0)
    empty.calls[0] = dataclasses.replace(empty.calls[0], answer=None)
    assert awareness([empty], GOLD)["known"] == 0.0


SCORES = {"awareness": {"n": 40, "known": 0.25, "unsearched": 0.5, "precision": 0.5, "recall": 1.0, "f1": 2 / 3}}


def test_the_line_that_is_printed():
    (line,) = _remarks(SCORES)
    assert line == (
        "awareness: F1 0.6667 of not searching (precision 0.5000, recall 1.0000): "
        "0.2500 of 40 episodes answer right from memory, 0.5000 do not search"
    )
    (line,) = _remarks({"awareness": SCORES["awareness"] | {"precision": None, "f1": None}})
    assert "F1 none" in line and "precision none" in line
    assert list(_remarks({})) == []


@pytest.mark.parametrize("name", ["ikea", "adasearch", "search-r1"])
def test_an_evaluation_has_the_score_for_agents_that_try_first(tmp_path, name):
    """A model that always answers Gamma knows the first of three questions, and searches for none.

    What it says as AdaSearch's decider is no decision; it may search then, and answers.
    """
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    agent = load_agent(name)
    replies = Replies(["<answer>Gamma</answer>"])
    model = Model.over("scripted", replies, MessageFormat(task.rules.protocol))
    scores = evaluate(task, agent, tmp_path / "run", dict.fromkeys(agent.roles, model), EvalOptions())
    assert json.loads((tmp_path / "run" / "scores.json").read_text()) == scores
    if name == "search-r1":
        assert "awareness" not in scores
        return
    assert scores["awareness"] == {
        "n": 3, "known": pytest.approx(1 / 3), "unsearched": 1.0,
        "precision": pytest.approx(1 / 3), "recall": 1.0, "f1": 0.5,
    }  # fmt: skip
    assert scores["em"] == pytest.approx(1 / 3)

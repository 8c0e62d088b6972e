"""Stated confidences: the expected calibration error by hand and by a second formula, and abstentions."""

import math

import numpy as np
import pytest
from support import CARD, QUESTIONS, TitleRetriever

from searchgym.agents.base import load_agent
from searchgym.envs.task import load_task
from searchgym.errors import ScoringError
from searchgym.eval.runner import evaluate
from searchgym.eval.scores import confidence_scores, score_episodes
from searchgym.records import Answer, Episode
from searchgym.rollout.storage import read_episodes
from searchgym.scoring.confidence import abstains, check_confidence, expected_calibration_error


def second_formula(confidences, right):
    """``sum_b |sum of right - sum of confidences| / n`` over bins that numpy's digitize makes."""
    bins = np.clip(np.digitize(np.round(confidences, 12), np.round(np.linspace(0, 1, 11), 12)) - 1, 0, 9)
    gaps = np.bincount(bins, np.asarray(right, float) - np.asarray(confidences), minlength=10)
    return float(np.abs(gaps).sum() / len(confidences))


def test_the_error_by_hand():
    """Bin 9: two answers of 95 %, one right: |0.5 - 0.95|; bin 2: one of 25 %, wrong; bin 10 of 100 % is bin 9."""
    assert expected_calibration_error([0.95, 0.95], [True, False]) == pytest.approx(0.45)
    assert expected_calibration_error([0.95, 0.95, 0.25], [True, False, False]) == pytest.approx((2 * 0.45 + 0.25) / 3)
    assert expected_calibration_error([1.0, 0.9], [True, True]) == pytest.approx(0.05)  # one bin: |1 - 0.95|
    assert expected_calibration_error([0.3, 0.29], [True, False]) == pytest.approx((0.7 + 0.29) / 2)  # two bins
    assert expected_calibration_error([1.0] * 3, [True] * 3) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_the_error_agrees_with_a_second_formula(seed):
    rng = np.random.default_rng(seed)
    confidences = np.round(rng.random(200), 2 if seed % 2 else 1)  # of one decimal: all on borders of bins
    right = rng.random(200) < confidences**2
    found = expected_calibration_error(list(map(float, confidences)), list(map(bool, right)))
    assert found == pytest.approx(second_formula(confidences, right), abs=1e-12) and 0 < found < 1


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, "0.5", True])
def test_a_confidence_is_a_number_from_0_to_1(value):
    with pytest.raises(ScoringError, match=r"episode 'q#0': confidence: expected a number from 0 to 1"):
        check_confidence(value, "episode 'q#0'")


@pytest.mark.parametrize(
    "text", ["I don't know, but I guess Rome", "The Unknown Soldier", "No", "none", "Not Sure Records"]
)
def test_a_guess_is_no_abstention(text):
    assert not abstains(text)


def episode_of(id, text, confidence):
    answer = None if text is None else Answer(text, confidence=confidence)
    return Episode(f"{id}#0", id, "a", "e", answer=answer, stop_reason="answer" if answer else "turns")


def test_abstentions_are_not_right_and_time_outs_state_nothing():
    episodes = [episode_of("a", "Rome", 0.8), episode_of("b", "unknown", 0.9), episode_of("c", None, None),
                episode_of("d", "Arle", None), episode_of("e", "twin", 1.0)]  # fmt: skip
    right = {("a", 0): True, ("b", 0): True, ("c", 0): False, ("d", 0): True}  # e has no gold answer
    scores = confidence_scores(episodes, right)
    assert scores["confident"] == pytest.approx(2 / 3)
    assert scores["expected_calibration_error"] == pytest.approx((0.2 + 0.9) / 2)
    assert confidence_scores(episodes[2:4], right) == {}


def test_runs_report_it_and_a_judge_decides_where_there_is_one(tmp_path):
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    assert "confident" not in evaluate(task, load_agent("oracle"), tmp_path / "run")
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    for episode, stated in zip(episodes, (0.75, None, 1.0), strict=True):
        episode.answer = Answer(episode.answer.text, confidence=stated)
    scores = score_episodes(task, episodes)
    assert scores["confident"] == pytest.approx(2 / 3) and scores["expected_calibration_error"] == pytest.approx(0.125)

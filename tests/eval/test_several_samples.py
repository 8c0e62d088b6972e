"""Several episodes per question: Avg@k, pass@k, resuming, and what each question's row says."""

import itertools
import json

import numpy as np
import pytest
from support import CARD, QUESTIONS, TitleRetriever

from searchgym.agents.base import LoadedAgent
from searchgym.envs.task import load_task
from searchgym.errors import ScoringError, UsageError
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import score_episodes
from searchgym.records import Answer
from searchgym.rollout.storage import read_episodes

RIGHT = {"q0": (0, 1, 2, 3), "q1": (2,), "q2": ()}
"""Attempts of four that are right, by question."""


class Sometimes:
    """Answers right in the attempts of `RIGHT`; the generator of an attempt tells it which one it is."""

    async def run(self, question, io):
        attempt = io.sort_key[1]
        await io.step(Answer(question.answers[0] if attempt in RIGHT[question.id] else "wrong"))


def run(out, samples=4, **options):
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    return task, evaluate(task, LoadedAgent("own", Sometimes()), out, options=EvalOptions(samples=samples, **options))


def chance(right, samples, k):
    """Returns the share of the sets of k attempts that hold a right one, by listing them."""
    sets = list(itertools.combinations(range(samples), k))
    return sum(bool(set(own) & set(right)) for own in sets) / len(sets)


def test_avg_and_pass_at_k_by_listing(tmp_path):
    _, scores = run(tmp_path / "run")
    assert (scores["n"], scores["em"]) == (3, pytest.approx((1 + 0.25 + 0) / 3))
    for k in (2, 4):
        expected = np.mean([chance(right, 4, k) for right in RIGHT.values()])
        assert scores[f"pass@{k}"] == pytest.approx(expected)
        low, high = scores[f"pass@{k}_ci95"]
        assert low <= expected <= high
    _, five = run(tmp_path / "five", samples=5)
    assert [name for name in five if name.startswith("pass@") and "_" not in name] == ["pass@2", "pass@4", "pass@5"]
    assert five["pass@5"] == pytest.approx(2 / 3)
    assert 0 <= five["select@vote"] <= five["pass@5"] and 0 <= five["select@shortest"] <= five["pass@5"]


def test_one_sample_has_no_pass_at_k(tmp_path):
    _, scores = run(tmp_path / "run", samples=1)
    assert not [name for name in scores if name.startswith("pass@")]


def test_rows_of_questions_make_the_means(tmp_path):
    _, scores = run(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "questions.jsonl").read_text().splitlines()]
    assert [(row["id"], row["em"]) for row in rows] == [("q0", 1.0), ("q1", 0.25), ("q2", 0.0)]
    assert rows[1]["answers"] == ["wrong", "wrong", "1901", "wrong"]
    assert sum(row["f1"] for row in rows) / 3 == pytest.approx(scores["f1"])


@pytest.mark.parametrize("kept", [1, 5, 11])
def test_a_run_with_samples_is_resumed_to_the_bit(tmp_path, kept):
    out = tmp_path / "run"
    _, whole = run(out)
    lines = (out / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 12
    (out / "episodes.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:30])
    (out / "scores.json").unlink()
    _, again = run(out, resume=True)
    assert again == whole
    assert len({(e.question_id, e.attempt) for e in read_episodes(out / "episodes.jsonl")}) == 12


def test_another_number_of_samples_is_another_run(tmp_path):
    run(tmp_path / "run", samples=2)
    with pytest.raises(UsageError, match="samples: 2 then, 3 now"):
        run(tmp_path / "run", samples=3, resume=True)
    with pytest.raises(UsageError, match="samples must be at least 1, got 0"):
        run(tmp_path / "none", samples=0)


def test_attempts_that_are_missing_or_too_many(tmp_path):
    task, _ = run(tmp_path / "run")
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    for wrong in (episodes[:-1], [*episodes, episodes[0]]):
        with pytest.raises(ScoringError):
            score_episodes(task, wrong, 4)
    with pytest.raises(ScoringError, match="attempt 3 of 3"):
        score_episodes(task, [e for e in episodes if e.attempt != 0], 3)
    with pytest.raises(ScoringError):
        score_episodes(task, [e for e in episodes if e.attempt != 0], 4)

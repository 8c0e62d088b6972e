"""Comparison of runs: pairs, verdicts, refusals, and intervals beside those of scipy's bootstrap."""

import json
import math
import shutil

import numpy as np
import pytest
from scipy.stats import bootstrap
from support import CARD, QUESTIONS, TitleRetriever

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.eval.compare import check_comparable, difference
from searchgym.eval.run_folder import read_finished
from searchgym.eval.runner import evaluate


def rows(values, name="em"):
    return {f"q{number}": {name: float(value)} for number, value in enumerate(values)}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two real runs on the 500 questions of a world."""
    task, folder = load_task(find_env("searchgym/WorldFull-v0")), tmp_path_factory.mktemp("runs")
    for agent in ("single-search", "closed-book"):
        evaluate(task, load_agent(agent), folder / agent)
    return [read_finished(folder / agent) for agent in ("single-search", "closed-book")]


def test_a_difference_by_hand():
    found = difference(rows([1, 1, 0, 0, 1]), rows([0, 1, 1, 0, 0]))
    assert (found.mean, found.wins, found.losses, found.ties) == (pytest.approx(0.2), 2, 1, 2)
    assert found.verdict == "not distinguishable"
    better = difference(rows([1] * 50), rows([0] * 40 + [1] * 10))
    assert (better.verdict, better.mean) == ("better", pytest.approx(0.8))
    assert difference(rows([0] * 50), rows([1] * 40 + [0] * 10)).verdict == "worse"
    assert difference(rows([1, 0]), rows([1, 0])).verdict == "not distinguishable"
    with pytest.raises(UsageError, match=r"no question has the score 'f2' in both runs; the scores are em"):
        difference(rows([1.0]), rows([0.0]), "f2")


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["em", "f1"])
def test_the_interval_of_two_real_runs_agrees_with_scipys(two, metric):
    """The ends are quantiles of resampled means, known to within the Monte-Carlo error of 1,000 of them."""
    first, second = two
    found = difference(first.rows, second.rows, metric)
    gaps = np.array([first.rows[id][metric] - second.rows[id][metric] for id in sorted(first.rows)])
    assert found.mean == pytest.approx(gaps.mean(), abs=1e-12)
    theirs = bootstrap((gaps,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(7))
    spread = gaps.std() / math.sqrt(len(gaps))
    # error of a 2.5 % quantile: sqrt(p (1 - p) / n) over the density of a normal distribution there
    density = math.exp(-(1.96**2) / 2) / math.sqrt(2 * math.pi) / spread
    error = 4 * math.sqrt(0.025 * 0.975 / 1000) / density + 1 / len(gaps)  # means of EM move in steps of 1 / n
    assert abs(found.low - theirs.confidence_interval.low) <= error
    assert abs(found.high - theirs.confidence_interval.high) <= error
    assert error < 0.5 * (found.high - found.low)  # the test can fail


def test_an_unpaired_interval_is_another_one(two):
    """The check above tells a paired bootstrap from one that resamples the two runs apart."""
    first, second = two
    found = difference(first.rows, second.rows)
    a, b = (np.array([run.rows[id]["em"] for id in sorted(run.rows)]) for run in two)
    apart = bootstrap((a, b), lambda x, y, axis: x.mean(axis) - y.mean(axis), n_resamples=2000, method="percentile",
                      rng=np.random.default_rng(7), vectorized=True).confidence_interval  # fmt: skip
    assert apart.high - apart.low > 2 * (found.high - found.low)


def test_runs_on_other_questions_are_refused_with_the_field(two, tmp_path):
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    evaluate(task, load_agent("oracle"), tmp_path / "small")
    with pytest.raises(UsageError, match="asked different questions: env 'searchgym/WorldFull-v0' and 'test/Small-v0'"):
        check_comparable([two[0], read_finished(tmp_path / "small")])
    other = load_task(CARD, questions=QUESTIONS[:2], retriever=TitleRetriever())
    evaluate(other, load_agent("oracle"), tmp_path / "less")
    with pytest.raises(UsageError, match="questions_sha256"):
        check_comparable([read_finished(tmp_path / "small"), read_finished(tmp_path / "less")])


def test_another_budget_is_noted(tmp_path):
    for turns in (3, 5):
        task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever(), max_turns=turns)
        evaluate(task, load_agent("oracle"), tmp_path / str(turns))
    notes = check_comparable([read_finished(tmp_path / "3"), read_finished(tmp_path / "5")])
    assert notes == [f"{tmp_path / '5'}: max_turns is 5, not 3"]


def test_damaged_and_old_run_folders(two, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(two[0].name, folder)
    lines = (folder / "questions.jsonl").read_text().splitlines()
    for bad in ({"id": "x", "em": "1"}, {"id": "x", "em": float("nan")}, {"em": 1.0}, json.loads(lines[0])):
        (folder / "questions.jsonl").write_text("\n".join([lines[0], json.dumps(bad)]) + "\n")
        with pytest.raises(DataError, match=r"questions\.jsonl:2"):
            read_finished(folder)
    (folder / "questions.jsonl").unlink()
    with pytest.raises(DataMissingError, match="--resume and --out writes them"):
        read_finished(folder)
    with pytest.raises(DataMissingError):
        read_finished(tmp_path / "none")


def test_a_finished_run_gets_missing_rows_by_a_resume(tmp_path):
    from searchgym.eval.runner import EvalOptions

    task, agent = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever()), load_agent("oracle")
    evaluate(task, agent, tmp_path / "run")
    (tmp_path / "run" / "questions.jsonl").unlink()
    evaluate(task, LoadedAgent(agent.name, agent.workflow, source=agent.source), tmp_path / "run",
             options=EvalOptions(resume=True))  # fmt: skip
    assert len(read_finished(tmp_path / "run").rows) == 3

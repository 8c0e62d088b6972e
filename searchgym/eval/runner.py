"""Evaluation of an agent: one episode per question, written as it ends, scored from what is on disk.

A run folder holds ``run.json`` (what is being run), ``episodes.jsonl`` (one line per episode) and, once every question
is done, ``scores.json``. Scores are micro-averages over question ids, so that order, batches and interruptions change
no bit of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import searchgym
from searchgym import scoring
from searchgym.agents.base import Agent
from searchgym.corpora.files import dump_line, iter_jsonl, read_json, write_atomic, write_jsonl
from searchgym.corpora.questions import question_row
from searchgym.envs.task import Task, reward_name
from searchgym.errors import RunExistsError, UsageError
from searchgym.eval.intervals import bootstrap_ci
from searchgym.records import Episode, Question, title_key
from searchgym.rollout.engine import Engine
from searchgym.rollout.storage import EpisodeWriter, read_episodes, sidecar

Scores = dict[str, Any]
"""Lower-case metric names to floats, lists of floats, or None where it does not apply."""


def evaluate(
    task: Task,
    agent: Agent,
    agent_name: str,
    out: Path,
    *,
    seed: int = 0,
    concurrency: int = 64,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Runs an agent on every question of a task and writes a run folder.

    Args:
        task: Environment and questions.
        agent: The workflow.
        agent_name: Recorded in the run.
        out: The run folder.
        seed: Seed of the agents' generators.
        concurrency: Episodes under way at once; changes no score.
        resume: Go on with an unfinished run: finished questions are kept, retriever errors are tried again.
        overwrite: Delete a run that is already there.
        progress: Called with (questions done, questions in all).

    Returns:
        The scores, as in ``scores.json``.

    Raises:
        RunExistsError: The folder holds a run and neither `resume` nor `overwrite` was asked for.
        UsageError: `resume` of a run of something else.
    """
    identity = run_identity(task, agent_name, seed)
    _open_folder(out, identity, resume=resume, overwrite=overwrite)
    path = out / "episodes.jsonl"
    kept = _drop_errors(path) if path.exists() else set()
    unknown = kept - task.by_id.keys()
    if unknown:
        raise UsageError(f"{path}: holds question {min(unknown)!r}, which this run does not ask")
    todo = [question for question in task.questions if question.id not in kept]
    if todo:
        (out / "scores.json").unlink(missing_ok=True)  # of a run that had ended with retriever errors
    count = len(kept)
    with EpisodeWriter(path) as writer:

        def done(episode: Episode) -> None:
            nonlocal count
            writer.write(episode)
            count += 1
            if progress is not None:
                progress(count, len(task.questions))

        started = time.perf_counter()
        asyncio.run(Engine(task, agent, agent_name, concurrency=concurrency, seed=seed).run(todo, done))
        seconds = time.perf_counter() - started
    scores = score_episodes(task, list(read_episodes(path)))
    _write_json(out / "scores.json", scores)
    if todo:
        _write_json(out / "run.json", identity | {"seconds": round(seconds, 3), "episodes_run": len(todo)})
    return scores


def run_identity(task: Task, agent_name: str, seed: int) -> dict[str, Any]:
    """Returns what makes two runs the same run: environment, agent, rules, data and versions."""
    rules = task.rules
    digest = hashlib.sha256()
    for question in sorted(task.questions, key=lambda q: q.id):
        digest.update(dump_line(question_row(question)))
    return {
        "env": task.card.id,
        "agent": agent_name,
        "seed": seed,
        "questions": len(task.questions),
        "questions_sha256": digest.hexdigest(),
        "retriever": type(task.retriever).__name__,
        "corpus_sha256": getattr(task.retriever, "corpus_sha256", None),
        "reward": reward_name(task.reward),
        "scorer": task.card.scorer,
        "protocol": rules.protocol.name,
        "top_k": rules.top_k,
        "max_turns": rules.max_turns,
        "max_queries": rules.max_queries,
        "max_observation_words": rules.max_observation_words,
        "searchgym": searchgym.__version__,
    }


def _open_folder(out: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Makes the run folder, or checks that the run in it is the one to go on with."""
    if resume and overwrite:
        raise UsageError("resume and overwrite exclude each other")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: the output must be a folder")
    record = out / "run.json"
    if overwrite:
        for name in ("run.json", "scores.json", "episodes.jsonl", sidecar(Path("episodes.jsonl")).name):
            (out / name).unlink(missing_ok=True)
    elif record.exists():
        finished = (out / "scores.json").exists()
        if not resume:
            hint = (
                "choose another --out or --overwrite it" if finished else "--resume goes on, --overwrite starts again"
            )
            raise RunExistsError(f"{out} holds {'a finished' if finished else 'an unfinished'} run: {hint}")
        before = read_json(record)
        differing = [f"{k}: {before.get(k)!r} then, {v!r} now" for k, v in identity.items() if before.get(k) != v]
        if differing:
            raise UsageError(f"{out} holds a run of something else, it cannot be resumed ({'; '.join(differing)})")
        return
    elif out.exists() and any(out.iterdir()):
        raise RunExistsError(f"{out} is not empty and holds no run: choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}") from error
    _write_json(record, identity)


def _drop_errors(path: Path) -> set[str]:
    """Rewrites an episode file without episodes that ended in a retriever error; returns the question ids kept."""
    with EpisodeWriter(path):
        pass  # cuts off a half-written line
    if path.stat().st_size == 0:
        return set()
    episodes = list(read_episodes(path))
    good = [episode for episode in episodes if episode.stop_reason != "retriever_error"]
    if len(good) < len(episodes):  # the sidecar stays as it is: what the lines point to, and bytes that none does
        write_jsonl(path, (row for _, row in iter_jsonl(path) if row["stop_reason"] != "retriever_error"))
    return {episode.question_id for episode in good}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file at once."""
    with write_atomic(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


# -- scores --------------------------------------------------------------------------------------------------------


def score_episodes(task: Task, episodes: Sequence[Episode]) -> Scores:
    """Scores one episode per question of a task.

    Returns:
        ``n``, the official scorer's metrics (``em``, ``f1``, ... None where the agent produced nothing to score), 95 %
        bootstrap intervals ``em_ci95`` and ``f1_ci95``, and means of what the episodes cost. ``title_recall`` is the
        share of gold titles among all hits up to turn 1, 2, ..., averaged over the questions that name gold titles.

    Raises:
        ScoringError: Missing, duplicate or unknown question ids.
    """
    scoring.check_ids([episode.question_id for episode in episodes], task.questions)
    ordered = sorted(episodes, key=lambda episode: episode.question_id)
    scorer = task.card.scorer
    rows = {
        e.question_id: scoring.score_question(task.by_id[e.question_id], e.answer, scorer, task.aliases)
        for e in ordered
    }
    scores: Scores = {"n": len(ordered), **scoring.aggregate(rows, scorer)}
    for name in ("em", "f1"):
        values = [row[name] or 0.0 for row in rows.values() if name in row]
        if values:
            scores[f"{name}_ci95"] = list(bootstrap_ci(values))
    scores["cover_em"] = _mean([scoring.cover_match(_text(e), task.by_id[e.question_id].golds) for e in ordered])
    scores["reward"] = _mean([e.reward for e in ordered])
    scores["answered"] = _mean([float(e.stop_reason == "answer") for e in ordered])
    scores["turns"] = _mean([e.turns for e in ordered])
    scores["searches"] = _mean([len(e.searches) for e in ordered])
    scores["invalid_actions"] = _mean([e.invalid for e in ordered])
    scores["observation_words"] = _mean([e.observation_words for e in ordered])
    scores["response_tokens"] = _mean_tokens(ordered)
    scores["retriever_errors"] = sum(e.stop_reason == "retriever_error" for e in ordered)
    scores["title_recall"] = title_recall(ordered, task.by_id, task.rules.max_turns)
    return scores


def _text(episode: Episode) -> str:
    return "" if episode.answer is None else episode.answer.text


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _mean_tokens(episodes: Sequence[Episode]) -> float | None:
    """Returns the mean number of tokens that models wrote; None if no model took part."""
    if not any(episode.calls for episode in episodes):
        return None
    return _mean([sum(call.end - call.start for call in episode.calls) for episode in episodes])


def title_recall(episodes: Sequence[Episode], questions: Mapping[str, Question], turns: int) -> list[float] | None:
    """Returns the mean share of gold titles found up to each turn, (turns,); None if no question names gold titles."""
    curves = []
    for episode in episodes:
        titles = questions[episode.question_id].gold_titles
        if titles:
            gold = {title_key(title) for title in titles}
            first = dict.fromkeys(gold, turns + 1)
            for searched in episode.searches:
                for hit in searched.hits:
                    key = title_key(hit.passage.title)
                    if key in gold:
                        first[key] = min(first[key], searched.turn)
            curves.append([sum(f <= turn for f in first.values()) / len(gold) for turn in range(1, turns + 1)])
    return None if not curves else [float(value) for value in np.mean(curves, axis=0)]

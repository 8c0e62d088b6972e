"""Evaluation of an agent: episodes at every question, written as they end, scored from what is on disk.

A run folder holds ``run.json`` (what is being run), ``episodes.jsonl`` (one line per episode) and, once every question
is done, ``scores.json`` and ``questions.jsonl`` (the scores of each question). Scores are micro-averages over question
ids, so that order, batches and interruptions change no bit of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchgym import scoring
from searchgym.agents.base import LoadedAgent
from searchgym.agents.roles import Role
from searchgym.corpora.files import dump_line, iter_jsonl, read_json, write_atomic, write_jsonl
from searchgym.corpora.folders import EPISODES, RUN, check_claim, lock_folder
from searchgym.corpora.questions import question_row
from searchgym.envs.reward import reward_name
from searchgym.envs.task import Task
from searchgym.errors import DataError, UsageError
from searchgym.eval.evidence import NAMED, unreachable_golds
from searchgym.eval.run_folder import QUESTIONS, SCORES, holds_run
from searchgym.eval.scores import Scores, question_rows, score_each, summarise
from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import identify
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.storage import EpisodeWriter, read_episodes, sidecar
from searchgym.version import __version__


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of an evaluation: sampling, concurrency, and what happens to an existing run folder."""

    temperature: float = 0.0
    """Sampling temperature of the models; 0 is greedy."""
    seed: int = 0
    """Seed of the agents' generators and of sampling."""
    concurrency: int = 64
    """Number of episodes that run at once; it changes no score."""
    resume: bool = False
    """If true, continue an unfinished run: finished questions are kept, retriever errors are tried again."""
    overwrite: bool = False
    """If true, delete an existing run in the folder."""
    samples: int = 1
    """Number of episodes per question, which differ if the temperature is above 0."""


def evaluate(
    task: Task,
    agent: LoadedAgent,
    out: Path,
    models: Mapping[str, Model] | None = None,
    options: EvalOptions = EvalOptions(),
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Runs an agent on every question of a task and writes a run folder.

    Args:
        task: Environment and questions.
        agent: The workflow and its roles.
        out: The run folder.
        models: The model behind each role.
        options: How it is run.
        progress: Called with (questions done, questions in all).

    Returns:
        The scores, as in ``scores.json``.

    Raises:
        RunExistsError: The folder holds a run and neither `resume` nor `overwrite` is set.
        UsageError: `resume` of a run of something else, or fewer than one sample.
        ScoringError: The questions cannot be scored; see `check_scorable`.
    """
    if options.samples < 1:
        raise UsageError(f"samples must be at least 1, got {options.samples}")
    check_scorable(task)
    engine = Engine(
        task, agent, models, concurrency=options.concurrency, seed=options.seed, temperature=options.temperature
    )
    identity = run_identity(engine, options.samples)
    check_out(out, resume=options.resume, overwrite=options.overwrite)
    with lock_folder(out):
        if holds_run(out) and not options.overwrite:
            _check_record(out / RUN, identity)
        else:
            for name in (SCORES, QUESTIONS, EPISODES, sidecar(Path(EPISODES)).name):
                (out / name).unlink(missing_ok=True)
            write_record(out, identity)
        path = out / EPISODES
        kept = _drop_errors(path) if path.exists() else set()
        todo = [(q, n) for q in task.questions for n in range(options.samples) if (q.id, n) not in kept]
        if strange := kept - {(q.id, n) for q in task.questions for n in range(options.samples)}:
            raise UsageError(f"{path}: holds question {min(strange)[0]!r}, which this run does not ask")
        if todo:
            (out / SCORES).unlink(missing_ok=True)  # of a run that had ended with retriever errors
        started = time.perf_counter()
        try:
            _run_episodes(engine, todo, path, len(kept), progress)
        finally:
            if todo:  # to the seconds of earlier sessions, if the run was stopped and resumed
                seconds = read_json(out / RUN).get("seconds", 0.0) + time.perf_counter() - started
                session = {"seconds": round(seconds, 3), "hardware": hardware(), "commit": commit()}
                write_record(out, {**identity, **session})
        scored = score_each(task, list(read_episodes(path)), options.samples)
        write_jsonl(out / QUESTIONS, question_rows(scored))
        scores = summarise(scored)
        if unreachable := unreachable_golds(task):
            scores["unreachable_golds"] = {"n": len(unreachable), "first": unreachable[:NAMED]}
        write_json(out / SCORES, scores)
    return scores


def check_scorable(task: Task) -> None:
    """Scores a task's questions without answers, to refuse a set before its first episode rather than after the last.

    Raises:
        ScoringError: An id stands twice, gold data are inconsistent, or one of a pair of MuSiQue-Full is missing.
    """
    scoring.score_predictions({}, task.questions, task.card.scorer, task.aliases, "zero")


def _run_episodes(
    engine: Engine,
    todo: Sequence[tuple[Question, int]],
    path: Path,
    kept: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Runs the remaining episodes; each is written to disk before the next one is counted."""
    count = kept
    with EpisodeWriter(path) as writer:

        def done(episode: Episode) -> None:
            nonlocal count
            writer.write(episode)
            count += 1
            if progress is not None:
                progress(count, kept + len(todo))

        asyncio.run(engine.run_attempts(todo, done))


def commit() -> str | None:
    """Returns the commit of the checkout that this package runs from, None if it runs from no checkout."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    said = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    return said.stdout.strip() or None


def hardware() -> dict[str, Any]:
    """Returns what the machine computes with: processor, cores, and GPU if torch is loaded and sees one."""
    machine: dict[str, Any] = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        machine |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count()}
    return machine


def questions_sha256(questions: Iterable[Question]) -> str:
    """Returns the SHA-256 of questions with all that is known of them, whatever their order."""
    digest = hashlib.sha256()
    for question in sorted(questions, key=lambda q: q.id):
        digest.update(dump_line(question_row(question)))
    return digest.hexdigest()


def prompts_sha256(roles: Mapping[str, Role]) -> dict[str, str]:
    """Returns the SHA-256 of each role's prompt."""
    return {name: hashlib.sha256(role.template.encode()).hexdigest() for name, role in sorted(roles.items())}


def run_identity(engine: Engine, samples: int = 1) -> dict[str, Any]:
    """Returns the identity of a run: environment, agent, models, rules, data and versions."""
    task, agent, rules = engine.task, engine.agent, engine.task.rules
    return {
        "env": task.card.id,
        "dataset": task.card.questions.title,
        "split": task.split,
        "agent": agent.name,
        "workflow": agent.source,
        "prompts": prompts_sha256(agent.roles),
        "models": {
            role: [model.key, model.sha256, *filter(None, [model.engine])]
            for role, model in sorted(engine.models.items())
        },
        "template": {role: dict(model.template) for role, model in sorted(engine.models.items()) if model.template}
        or None,
        "temperature": engine.temperature,
        "samples": samples,
        "seed": engine.seed,
        "questions": len(task.questions),
        "questions_sha256": questions_sha256(task.questions),
        "drawn": task.subset_info,
        "retriever": identify(task.retriever),
        "corpus_sha256": getattr(task.retriever, "corpus_sha256", None),
        "sources": {
            name: [identify(retriever), getattr(retriever, "corpus_sha256", None)]
            for name, retriever in task.retrievers.items()
        },
        "reward": reward_name(task.reward),
        "scorer": task.card.scorer,
        "protocol": rules.protocol.name,
        **rules.protocol.spelling,
        **{name: getattr(rules, name) for name in ("top_k", "max_turns", "max_queries", "max_observation_words")},
        "browse": rules.pages is not None,
        "snippet_words": rules.snippet_words if rules.pages is not None else None,
        "searchgym": __version__,
    }


def recorded_date(out: Path) -> str | None:
    """Returns the day that the chat templates of a run show, by its record; None if it has none, or there is no run.

    Args:
        out: Folder of a run, or of a suite's.
    """
    for record in (out / RUN, *sorted(out.glob(f"*/{RUN}"))):
        held = read_json(record) if record.is_file() else None
        templates = held.get("template") if isinstance(held, dict) else None
        if day := next((own["date"] for own in (templates or {}).values() if "date" in own), None):
            return str(day)
    return None


def check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Checks that a run may be written to a folder, before anything is loaded; see `check_claim`.

    To resume where nothing has begun is a new run.
    """
    check_claim(out, RUN, "a run", resume=resume and (overwrite or holds_run(out)), overwrite=overwrite)


def _check_record(path: Path, identity: dict[str, Any]) -> None:
    """Refuses to continue a run with another identity."""
    held = read_json(path)
    if not isinstance(held, dict):
        raise DataError("damaged: expected what is being run; --overwrite starts again", path)
    fixed = {k: v for k, v in identity.items() if k != "split"}  # a label: the hash identifies the questions
    differing = [f"{k}: {held.get(k)!r} then, {v!r} now" for k, v in fixed.items() if held.get(k) != v]
    if differing:
        reason = f"holds a run of something else, it cannot be resumed ({'; '.join(differing)})"
        raise UsageError(f"{path.parent} {reason}")


def _drop_errors(path: Path) -> set[tuple[str, int]]:
    """Rewrites an episode file without episodes that ended in a retriever error; returns (question id, attempt)s."""
    with EpisodeWriter(path):
        pass  # cuts off a half-written line
    if path.stat().st_size == 0:
        return set()
    episodes = list(read_episodes(path))
    good = [episode for episode in episodes if episode.stop_reason != "retriever_error"]
    if len(good) < len(episodes):  # the sidecar stays as it is: what the lines point to, and bytes that none does
        write_jsonl(path, (row for _, row in iter_jsonl(path) if row["stop_reason"] != "retriever_error"))
    return {(episode.question_id, episode.attempt) for episode in good}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically."""
    with write_atomic(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def write_record(out: Path, record: Mapping[str, Any]) -> None:
    """Writes what is run, by which a folder is known as that of a run."""
    write_json(out / RUN, record)

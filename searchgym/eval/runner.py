"""Evaluation of an agent: episodes for every question, written as they end, and scored from the written file.

A run folder contains ``run.json`` (the configuration), ``episodes.jsonl`` (one line per episode) and, once every
question is done, ``scores.json`` and ``questions.jsonl`` (the scores of each question). Scores are micro-averages in
the order of question ids, so that the order of episodes, batches and interruptions do not change a bit of them.
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym import scoring
from searchgym.agents.base import LoadedAgent
from searchgym.agents.roles import Role
from searchgym.corpora.files import dump_line, iter_jsonl, read_json, write_atomic, write_jsonl
from searchgym.corpora.folders import EPISODES, RUN, check_claim, lock_folder
from searchgym.corpora.questions import question_row
from searchgym.envs.reward import reward_name
from searchgym.envs.task import Task
from searchgym.errors import DataError, UsageError
from searchgym.eval.audit.answerable import answerable_questions, on_answerable
from searchgym.eval.evidence import NAMED, unreachable_golds
from searchgym.eval.run_folder import JUDGE, QUESTIONS, SCORES, VERDICTS, holds_run
from searchgym.eval.scores import Scores, question_rows, score_each, summarise
from searchgym.options import plain
from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import identify
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.replay.guided import Guide
from searchgym.rollout.storage import EpisodeWriter, read_episodes, sidecar
from searchgym.version import __version__

if TYPE_CHECKING:
    from searchgym.train.learner.value_model import ValueModel


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of an evaluation: sampling, concurrency, and the treatment of an existing run folder."""

    temperature: float = 0.0
    """Sampling temperature of the models; 0 is greedy."""
    seed: int = 0
    """Seed of the agents' generators and of sampling."""
    concurrency: int = 64
    """Number of concurrent episodes; it does not change scores."""
    resume: bool = False
    """If true, continue an unfinished run: finished episodes are reused, those with retriever errors are repeated."""
    overwrite: bool = False
    """If true, delete an existing run in the folder."""
    samples: int = 1
    """Number of episodes per question; they differ only if the temperature is above 0."""
    critic: ValueModel | None = None
    """Value model whose value of each episode is noted, so that ``select@value`` can select."""
    guided: bool = False
    """If true, samples begin at promising turns of earlier ones, by `critic`; see `Guide`."""


def evaluate(
    task: Task,
    agent: LoadedAgent,
    out: Path,
    models: Mapping[str, Model] | None = None,
    options: EvalOptions = EvalOptions(),
    *,
    progress: Callable[[int, int], None] | None = None,
    answerable: Collection[str] | None = None,
) -> Scores:
    """Runs an agent on every question of a task and writes a run folder.

    Args:
        task: Environment and questions.
        agent: The workflow and its roles.
        out: Run folder to write.
        models: Model of each role.
        options: Options of the evaluation.
        progress: Called with (episodes done, episodes in total).
        answerable: Ids of the questions that the corpus can answer, from an audit. Default: a small corpus is audited.

    Returns:
        The scores, as in ``scores.json``.

    Raises:
        RunExistsError: The folder holds a run and neither `resume` nor `overwrite` is set.
        UsageError: `resume` is set and the folder holds a run with another configuration, or `samples` is below 1.
        ScoringError: The questions cannot be scored; see `check_scorable`.
    """
    if options.samples < 1:
        raise UsageError(f"samples must be at least 1, got {options.samples}")
    if options.guided and options.critic is None:
        raise UsageError("guided samples need a critic, which tells the promising turns")
    if options.critic is not None and not agent.roles:
        raise UsageError(f"agent {agent.name} asks no model, so that a critic has nothing to value: leave it out")
    guide = None if options.critic is None else Guide(options.critic, options.guided)
    check_scorable(task)
    engine = Engine(
        task, agent, models, concurrency=options.concurrency, seed=options.seed, temperature=options.temperature
    )
    critic = None if options.critic is None else [options.critic.name, options.critic.sha256]
    identity = run_identity(engine, options.samples) | {"critic": critic, "guided": options.guided or None}
    check_out(out, resume=options.resume, overwrite=options.overwrite)
    with lock_folder(out):
        if holds_run(out) and not options.overwrite:
            _check_record(out / RUN, identity)
        else:
            for name in (SCORES, QUESTIONS, JUDGE, VERDICTS, EPISODES, sidecar(Path(EPISODES)).name):
                (out / name).unlink(missing_ok=True)
            write_record(out, identity)
        path = out / EPISODES
        finished = _drop_errors(path) if path.exists() else set()
        todo = [(q, n) for q in task.questions for n in range(options.samples) if (q.id, n) not in finished]
        if strange := finished - {(q.id, n) for q in task.questions for n in range(options.samples)}:
            raise UsageError(f"{path}: holds question {min(strange)[0]!r}, which this run does not ask")
        if todo:
            (out / SCORES).unlink(missing_ok=True)  # they counted retriever errors, which are repeated now
        started = time.perf_counter()
        try:
            _run_episodes(engine, todo, path, len(finished), progress, guide)
        finally:
            if todo:  # add to the seconds of earlier sessions of a resumed run
                seconds = read_json(out / RUN).get("seconds", 0.0) + time.perf_counter() - started
                session = {"seconds": round(seconds, 3), "hardware": hardware(), "commit": commit()}
                write_record(out, {**identity, **session})
        scored = score_each(task, list(read_episodes(path)), options.samples)
        rows = list(question_rows(scored))
        write_jsonl(out / QUESTIONS, rows)
        scores = summarise(scored)
        if unreachable := unreachable_golds(task):
            scores["unreachable_golds"] = {"n": len(unreachable), "first": unreachable[:NAMED]}
        answerable = answerable_questions(task) if answerable is None else answerable
        if answerable is not None:
            part = on_answerable({row["id"]: row["em"] for row in rows if "em" in row}, answerable)
            if part is not None:
                scores["on_answerable"] = part
        write_json(out / SCORES, scores)
    return scores


def check_scorable(task: Task) -> None:
    """Checks that a task's questions can be scored, before the first episode runs.

    Raises:
        ScoringError: An id occurs twice, gold data are inconsistent, or a question of a MuSiQue-Full pair is missing.
    """
    scoring.score_predictions({}, task.questions, task.card.scorer, task.aliases, "zero")


def _run_episodes(
    engine: Engine,
    todo: Sequence[tuple[Question, int]],
    path: Path,
    finished: int,
    progress: Callable[[int, int], None] | None,
    guide: Guide | None,
) -> None:
    """Runs the remaining episodes and writes each to disk before it counts as done."""
    count, total = finished, finished + len(todo)
    if guide is not None:
        for episode in read_episodes(path) if finished else ():
            guide.add(episode)
    with EpisodeWriter(path) as writer:

        def done(episode: Episode) -> None:
            nonlocal count
            if guide is not None:
                guide.add(episode)
            writer.write(episode)
            count += 1
            if progress is not None:
                progress(count, total)

        for part in [todo] if guide is None else guide.rounds(todo):
            asyncio.run(engine.run_attempts(part, done))


def commit() -> str | None:
    """Returns the Git commit of the checkout that this package runs from; None without a checkout."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    result = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    return result.stdout.strip() or None


def hardware() -> dict[str, Any]:
    """Returns a description of the machine: processor, cores, and the GPUs that torch sees, if it is loaded."""
    machine: dict[str, Any] = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        machine |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count()}
    return machine


def questions_sha256(questions: Iterable[Question]) -> str:
    """Returns the SHA-256 of questions with all their data, independent of their order."""
    digest = hashlib.sha256()
    for question in sorted(questions, key=lambda q: q.id):
        digest.update(dump_line(question_row(question)))
    return digest.hexdigest()


def prompts_sha256(roles: Mapping[str, Role]) -> dict[str, str]:
    """Returns the SHA-256 of each role's prompt."""
    return {name: hashlib.sha256(role.template.encode()).hexdigest() for name, role in sorted(roles.items())}


def run_identity(engine: Engine, samples: int = 1) -> dict[str, Any]:
    """Returns the configuration of a run as plain data: environment, agent, models, rules, data and versions."""
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
        "find": rules.protocol.find or None,
        "cite": rules.protocol.cite or None,
        "token_budget": rules.token_budget,
        "faults": plain(rules.faults) or None,
        "searchgym": __version__,
    }


def recorded_date(out: Path) -> str | None:
    """Returns the date that a run passed to its chat templates, from ``run.json``; None without a run or a date.

    Args:
        out: Folder of a run, or of a suite's run.
    """
    for record in (out / RUN, *sorted(out.glob(f"*/{RUN}"))):
        content = read_json(record) if record.is_file() else None
        templates = content.get("template") if isinstance(content, dict) else None
        if day := next((template["date"] for template in (templates or {}).values() if "date" in template), None):
            return str(day)
    return None


def check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Checks that a run may be written to a folder, before anything is loaded; see `check_claim`.

    `resume` without an existing run starts a new one.
    """
    check_claim(out, RUN, "a run", resume=resume and (overwrite or holds_run(out)), overwrite=overwrite)


def _check_record(path: Path, identity: dict[str, Any]) -> None:
    """Checks that a run to resume has the given configuration."""
    recorded = read_json(path)
    if not isinstance(recorded, dict):
        raise DataError("damaged: expected the configuration of a run; --overwrite starts again", path)
    fixed = {k: v for k, v in identity.items() if k != "split"}  # only a label: the hash identifies the questions
    differing = [f"{k}: {recorded.get(k)!r} then, {v!r} now" for k, v in fixed.items() if recorded.get(k) != v]
    if differing:
        reason = f"holds a run of something else, it cannot be resumed ({'; '.join(differing)})"
        raise UsageError(f"{path.parent} {reason}")


def _drop_errors(path: Path) -> set[tuple[str, int]]:
    """Removes episodes that ended in a retriever error from a file; returns (question id, attempt) of the others."""
    with EpisodeWriter(path):
        pass  # cuts off an incomplete last line
    if path.stat().st_size == 0:
        return set()
    episodes = list(read_episodes(path))
    good = [episode for episode in episodes if episode.stop_reason != "retriever_error"]
    if len(good) < len(episodes):  # the sidecar of tokens stays as it is: unused bytes do no harm
        write_jsonl(path, (row for _, row in iter_jsonl(path) if row["stop_reason"] != "retriever_error"))
    return {(episode.question_id, episode.attempt) for episode in good}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically."""
    with write_atomic(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def write_record(out: Path, record: Mapping[str, Any]) -> None:
    """Writes ``run.json``, the configuration of a run, which marks a folder as a run folder."""
    write_json(out / RUN, record)

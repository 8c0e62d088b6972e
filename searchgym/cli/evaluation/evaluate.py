"""The ``eval`` command: evaluates an agent on an environment's questions, or on those of a suite."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from searchgym.cli.evaluation.judge import Judging, add_verdicts, read_judging, say_agreement
from searchgym.cli.evaluation.printed import EXAMPLES, print_answers, print_scores, print_suite
from searchgym.cli.options import AgentName, LoadOptions, RunOptions, TaskChoice, takes_records
from searchgym.cli.output import Json, emit, rate, say, say_next, stages
from searchgym.cli.run import OwnEnv, card_of, chosen_task, task_options
from searchgym.errors import SearchGymError, UsageError
from searchgym.protocol import DEFAULT

if TYPE_CHECKING:
    from searchgym.agents.base import LoadedAgent
    from searchgym.envs.task import Task
    from searchgym.eval.runner import EvalOptions
    from searchgym.eval.scores import Scores
    from searchgym.rollout.models import Loading, Model


@takes_records
def evaluate(
    *,
    env: OwnEnv = None,
    agent: AgentName,
    model: Annotated[
        list[str] | None,
        typer.Option(help="[ROLE=]MODEL for one role or all: a folder, checkpoint, name, or URL#NAME."),
    ] = None,
    choice: TaskChoice,
    run: RunOptions,
    loading: LoadOptions,
    json: Json = False,
) -> None:
    """Evaluate an agent on questions.

    They are those of an environment, of a suite, or of your own --questions FILE with something to search.
    """
    from searchgym.agents.base import load_agent, with_max_tokens
    from searchgym.eval.runner import recorded_date
    from searchgym.eval.suites.cards import find_suite

    loaded = with_max_tokens(load_agent(agent), run.max_tokens, run.max_thought_tokens)
    if model and not loaded.roles:
        raise UsageError(f"agent {loaded.name} has no roles that ask a model: leave out --model")
    if (run.resume or run.overwrite) and run.out is None:
        raise UsageError("--resume and --overwrite need --out: the folder of the run")
    if run.samples > 1 and loaded.roles and not run.temperature:
        raise UsageError(f"{run.samples} samples of greedy decoding are the same answer: give --temperature as well")
    how = loading.how(run.concurrency, recorded_date(run.out) if run.resume and run.out else None)
    if env is not None and find_suite(env) is not None:
        scores = _on_suite(env, loaded, model or [], choice, run, how)
        if not json:
            print_suite(scores)
    else:
        scores, task = _on_env(env, loaded, model or [], choice, run, how)
        if not json:
            from searchgym.eval.run_folder import RunReader

            print_scores(f"{scores['env']} · {loaded.name}", {k: v for k, v in scores.items() if k not in PLACE})
            rows = RunReader(Path(scores["out"])).question_rows()
            print_answers([rows[question.id] for question in task.questions[:EXAMPLES]], scores["n"])
    if json:
        emit(scores, True)
    else:
        from searchgym.eval.run_folder import seconds_of

        spent = seconds_of(Path(scores["out"]))
        count = scores["n"] * run.samples
        say(f"{count} episodes in {spent:.1f} s ({rate(count / max(spent, 1e-3))}), loading and scoring apart")
        say_next("report", scores["out"])


PLACE = ("env", "agent", "out")
"""Keys that tell what was scored, before the scores themselves."""


def _on_env(
    env: str | None, agent: LoadedAgent, model: list[str], choice: TaskChoice, run: RunOptions, how: Loading
) -> tuple[dict[str, Any], Task]:
    """Evaluates an agent on one environment; returns the scores after what was scored, and its questions."""
    from searchgym.eval.audit.answerable import read_answerable
    from searchgym.eval.run_folder import holds_run
    from searchgym.eval.runner import check_out, check_scorable

    card_of(env, task_options(choice))  # a wrong name is reported before a missing model
    if run.out is not None:
        check_out(run.out, resume=run.resume, overwrite=run.overwrite)
    named, options = named_models(model, agent, how), eval_options(run)
    trained = training_questions(run)
    task = chosen_task(env, with_dialect(choice, env, named))
    check_scorable(task)  # before a model is loaded
    ids = None if run.audit is None else read_answerable(run.audit, task)
    judging = read_judging(run.judge, run.calibration)
    folder = run.out or new_folder(task.card.id.split("/")[-1], agent.name)
    if run.resume and not holds_run(folder):
        say(f"nothing to resume in {folder}: a new run")
    say(f"run folder: {folder}")
    say_notes(task, agent, named)
    with open_models(named, task, how) as models:
        scores = run_evaluation(
            task, agent, folder, models, options, run.ceilings, trained, answerable=ids, judging=judging
        )
    return {"env": task.card.id, "agent": agent.name, "out": str(folder)} | scores, task


def _on_suite(
    name: str, agent: LoadedAgent, model: list[str], choice: TaskChoice, run: RunOptions, how: Loading
) -> dict[str, Any]:
    """Evaluates an agent on a suite; returns the scores of its parts, and their means."""
    from searchgym.eval.suites.cards import load_suite
    from searchgym.eval.suites.run import check_parts, check_suite_out, evaluate_suite
    from searchgym.eval.suites.tasks import load_suite_tasks

    suite = load_suite(name)
    if any((choice.questions, choice.aliases, choice.qrels, choice.skip_bad, run.audit)):
        lacking = "leave out --questions, --aliases, --qrels, --skip-bad, --audit"
        raise UsageError(f"suite {suite.name} has questions of its own: {lacking}")
    folder = run.out or new_folder(suite.name, agent.name)
    check_suite_out(folder, suite.name, resume=run.resume, overwrite=run.overwrite)
    named, options = named_models(model, agent, how), eval_options(run)
    trained = training_questions(run)
    whole = load_suite_tasks(suite, task_options(with_dialect(choice, None, named)))
    tasks = {name: task.subset(choice.limit, choice.draw_seed) for name, task in whole.items()}
    if len({(task.rules.protocol.name, task.rules.protocol.dialect) for task in tasks.values()}) > 1:
        raise UsageError(f"suite {suite.name}: its parts write different protocols: choose one with --protocol")
    check_parts(suite.name, tasks)
    judging = read_judging(run.judge, run.calibration)
    say(f"run folder: {folder}")
    say_notes(next(iter(tasks.values())), agent, named)
    with open_models(named, next(iter(tasks.values())), how) as models:

        def one(part: str, task: Task, out: Path, options: EvalOptions) -> Scores:
            return run_evaluation(task, agent, out, models, options, run.ceilings, trained, folder, judging=judging)

        scores = evaluate_suite(suite.name, tasks, agent, folder, models, options, one)
    return {**scores, "out": str(folder)}


def eval_options(run: RunOptions) -> EvalOptions:
    """Returns the options of an evaluation that the command line gave."""
    from searchgym.eval.runner import EvalOptions

    if not run.temperature < math.inf:
        raise UsageError(f"--temperature must be a number from 0 up, got {run.temperature:g}")
    critic = None
    if run.critic is not None:
        from searchgym.train.learner.value_model import ValueModel

        critic = ValueModel.load(run.critic)
    elif run.guided:
        raise UsageError("--guided needs --critic: a checkpoint of a training with a critic (tiny-ppo)")
    if run.critic is not None and run.samples == 1:
        raise UsageError("--critic selects among samples: give --samples, 2 or more, as well")
    return EvalOptions(
        run.temperature, run.seed, run.concurrency, run.resume, run.overwrite, run.samples, critic, run.guided
    )


def training_questions(run: RunOptions) -> list[str] | None:
    """Returns the texts of the questions that the model was trained on, None if none were given."""
    from searchgym.corpora.questions import read_questions

    if not run.trained_on:
        return None
    return [question.text for source in run.trained_on for question in read_questions(source)]


def new_folder(name: str, agent: str) -> Path:
    """Returns a run folder that does not exist yet, named after the environment or suite, the agent and the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / "eval" / f"{name}_{agent.replace(':', '.')}_{stamp}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}_{n}")
    return folder


def named_models(specs: list[str], agent: LoadedAgent, how: Loading) -> dict[str, str | Path]:
    """Returns the URL or folder of the model behind each role; wrong ones are refused before anything is loaded."""
    from searchgym.rollout.models import find_models, in_checkpoints, parse_models

    return find_models(in_checkpoints(parse_models(specs, agent.roles), agent), how)


def with_dialect(choice: TaskChoice, env: str | None, named: Mapping[str, str | Path]) -> TaskChoice:
    """Returns the options with the dialect of tool calls that the models' files show, where it is ``auto``; says why.

    Raises:
        UsageError: It is ``auto``, and the files show none or several.
    """
    from searchgym.envs.registration import env_options, find_env
    from searchgym.rollout.foreign.dialects import chosen_dialect

    defaults: dict[str, Any] = {}
    if env is not None:
        card = find_env(env)
        defaults = {"protocol": card.protocol, "dialect": card.dialect, **env_options(env)}
    if (choice.protocol or defaults.get("protocol")) != "tool_calls":
        return choice
    dialect, notes = chosen_dialect(choice.dialect or defaults.get("dialect", DEFAULT), named.values())
    for note in notes:
        say(note)
    return dataclasses.replace(choice, dialect=dialect)


def say_notes(task: Task, agent: LoadedAgent, named: Mapping[str, str | Path]) -> None:
    """Prints notes on scores that would mislead; see `searchgym.cli.evaluation.notes`."""
    from searchgym.cli.evaluation.notes import model_notes, oracle_note

    for note in (oracle_note(agent, task), *model_notes(named.values(), task)):
        if note is not None:
            say(f"note: {note}")


@contextlib.contextmanager
def open_models(named: Mapping[str, str | Path], task: Task, how: Loading) -> Iterator[Mapping[str, Model]]:
    """Loads the model behind each role of an agent, and closes the samplers when the block ends."""
    from searchgym.rollout.models import opened_models

    if named:
        say(f"loading {', '.join(dict.fromkeys(map(str, named.values())))} ...")
    with contextlib.ExitStack() as opened:
        with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
            models = opened.enter_context(opened_models(named, task.rules.protocol, how))
        yield models


def run_evaluation(
    task: Task,
    agent: LoadedAgent,
    out: Path,
    models: Mapping[str, Model],
    options: EvalOptions,
    ceilings: bool = False,
    trained: list[str] | None = None,
    whole: Path | None = None,
    answerable: Collection[str] | None = None,
    judging: Judging | None = None,
) -> Scores:
    """Evaluates with progress, rate and time left on standard error; when interrupted, prints how to resume.

    Args:
        task: Environment and questions.
        agent: The workflow and its roles.
        out: The run folder.
        models: The model behind each role.
        options: How it is run.
        ceilings: Whether the gold pages are given, too, in a second run.
        trained: Texts of the questions that the model was trained on, to look for copies; None if unknown.
        whole: Folder of the suite's run, if this is a part of it.
        answerable: Ids of the questions that the corpus can answer, from an audit. Default: a small corpus is audited.
        judging: Judge of the answers, with a calibration sample. Default: they are not judged.
    """
    from searchgym.envs.reward import unpaid
    from searchgym.eval import runner
    from searchgym.eval.ceilings import add_ceilings, with_gold_pages
    from searchgym.eval.contamination import measure_contamination
    from searchgym.eval.evidence import of_unreachable
    from searchgym.eval.run_folder import JUDGE, SCORES, RunReader

    label = f"{task.card.id} {agent.name}"
    for note in unpaid(task.questions):
        say(f"note: {task.card.id}: {note}")
    gold_task = with_gold_pages(task) if ceilings else None  # refused now rather than after the run
    try:
        with stages() as report:
            advance = functools.partial(report, label)
            scores = runner.evaluate(task, agent, out, models, options, progress=advance, answerable=answerable)
            if gold_task is not None:
                above = f"{label}, gold pages given"
                report_gold = functools.partial(report, above)
                scores = add_ceilings(task, agent, out, scores, models, options, report_gold, gold_task)
    except KeyboardInterrupt:
        again = f"go on with the same command and --out {whole or out} --resume"
        say(f"interrupted: finished episodes are kept in {out}; {again}")
        raise typer.Exit(130) from None
    except SearchGymError:
        raise
    except Exception:
        say(f"stopped by the error below: finished episodes are kept in {out}; --out {whole or out} --resume goes on")
        raise
    if trained is not None:
        em = {id: row["em"] for id, row in RunReader(out).question_rows().items() if "em" in row}
        scores = scores | {"contamination": measure_contamination(trained, task.questions, em)}
        runner.write_json(out / SCORES, scores)
    if judging is not None:
        scores = cast("Scores", add_verdicts(out, task.questions, judging, f"--out {whole or out} --resume"))
        say_agreement(out)
    elif (out / JUDGE).is_file():
        say(f"note: {out} holds verdicts; `searchgym judge {whole or out}` with their judge adds them to the scores")
    if unreachable := scores.get("unreachable_golds"):
        say(f"warning: {of_unreachable(unreachable['first'], unreachable['n'])}")
    if scores["retriever_errors"]:
        say(f"warning: {scores['retriever_errors']} episodes ended in a retriever error (score 0); --resume repeats")
        failed = (e for e in RunReader(out).episodes(tokens=False) if e.stop_reason == "retriever_error")
        say(f"the first: {next(failed).error}")
    return scores

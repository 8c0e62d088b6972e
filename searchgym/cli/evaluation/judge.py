"""The ``judge`` command: a judge's verdicts on the answers of finished runs; also behind ``eval --judge``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from searchgym.cli.evaluation.predictions import Questions, task_of_questions
from searchgym.cli.options import Calibration
from searchgym.cli.output import Json, emit, say, say_next, show, stages, table
from searchgym.errors import UsageError

if TYPE_CHECKING:
    from searchgym.eval.judged.sample import CalibrationItem
    from searchgym.records import Question
    from searchgym.scoring.judges.judge import Judge


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge and a calibration sample that a command names."""

    judge: Judge
    sample: Sequence[CalibrationItem]


def read_judging(judge: str | None, calibration: Path | None) -> Judging | None:
    """Returns the judge and the sample that a command names, before anything runs; None without a judge.

    Raises:
        UsageError: A sample is named without a judge.
    """
    from searchgym.eval.judged.identity import find_judge
    from searchgym.eval.judged.sample import read_sample

    if judge is None:
        if calibration is not None:
            raise UsageError(f"--calibration {calibration} needs --judge: it is the sample that the judge is tried on")
        return None
    return Judging(find_judge(judge), read_sample(calibration))


def judge_runs(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of runs of suites.")],
    judge: Annotated[str, typer.Option(help="Judge: rules, a model, URL#NAME, module:Class, or YAML with options.")],
    calibration: Calibration = None,
    questions: Questions = None,
    aliases: Annotated[Path | None, typer.Option(help="2WikiMultihopQA's id_aliases.json.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the verdicts of an earlier judging.")] = False,
    json: Json = False,
) -> None:
    """Judge the answers of finished runs.

    No episode runs again. Verdicts that a run has already are kept. A calibration sample is judged as well, by which
    `compare --metric judged` tells judges apart.
    """
    from searchgym.eval.run_folder import read_suite

    judging = read_judging(judge, calibration)
    assert judging is not None
    results: list[dict[str, Any]] = []
    for run in runs:
        suite = read_suite(run)
        folders = [run] if suite is None else [run / part for part in suite[1]]
        for folder in folders:
            of_run = _questions_of(folder, questions, aliases)
            again = f"searchgym judge {run} --judge {judge}"
            scores = add_verdicts(folder, of_run, judging, again, overwrite)
            results.append({"run": str(folder), "n": scores["n"]} | _judged(scores) | _agreement(folder))
        if suite is not None:
            _refresh_suite(run, suite[1])
    if json:
        emit({"runs": results}, True)
        return
    head = ("run", "n", "judged", "95 % interval", "unjudged", "judge", "agreement", "95 % interval")
    table(head, [_cells(result) for result in results])
    if len(runs) > 1:
        say_next("compare", *runs, "--metric", "judged")


def add_verdicts(
    folder: Path, questions: Sequence[Question], judging: Judging, again: str, overwrite: bool = False
) -> dict[str, Any]:
    """Judges a run with progress on standard error; when interrupted, prints how to go on. Returns the scores."""
    from searchgym.eval.judged.judging import judge_run

    try:
        with stages() as report:
            return judge_run(folder, questions, judging.judge, judging.sample, overwrite=overwrite, progress=report)
    except KeyboardInterrupt:
        say(f"interrupted: verdicts are kept in {folder}; go on with {again}")
        raise typer.Exit(130) from None


def say_agreement(folder: Path) -> None:
    """Prints how often the judge of a run agrees with the labels of the calibration sample, and failed verdicts."""
    result = _agreement(folder)
    bounds = " to ".join(map(show, result["agreement_ci95"]))
    of = f"{result['agrees']} of {result['items']} labels of the calibration sample"
    say(f"judge {result['judge']}: agrees with {of} ({show(result['agreement'])}, 95 % interval {bounds})")
    if result["no_verdict"]:
        say(f"warning: the judge gave no verdict on {result['no_verdict']} items of the sample")


def _agreement(folder: Path) -> dict[str, Any]:
    """Returns the judge of a run, and its agreement with the labels of the calibration sample."""
    from searchgym.eval.judged.verdicts import read_judgement

    record = read_judgement(folder).record
    count, interval = record.agreement()
    return {
        "judge": record.judge.name,
        "agrees": count,
        "items": record.items,
        "agreement": count / record.items,
        "agreement_ci95": interval,
        "no_verdict": sum(verdict.verdict is None for verdict in record.verdicts),
    }


def _judged(scores: dict[str, Any]) -> dict[str, Any]:
    return {name: scores.get(name) for name in ("judged", "judged_ci95", "unjudged")}


def _cells(result: dict[str, Any]) -> list[str]:
    """Returns the cells of one judged run."""
    judged, agreement = result["judged_ci95"] or [], result["agreement_ci95"]
    cells = [result["run"], str(result["n"]), show(result["judged"]), " – ".join(map(show, judged))]
    cells += [show(result["unjudged"]), result["judge"], f"{result['agrees']} of {result['items']}"]
    return [*cells, " – ".join(map(show, agreement))]


def _questions_of(folder: Path, questions: str | None, aliases: Path | None) -> list[Question]:
    """Returns the questions of a finished run, with their rubrics."""
    from searchgym.eval.formats.run import questions_of_run, run_record

    record = run_record(folder)
    env: str | None = record["env"]
    if env is not None and env.startswith("own/") and questions is None:
        raise UsageError(f"{folder} asked questions of your own: give the file as --questions")
    if questions is not None and not questions.lstrip().startswith("{"):
        env = None  # a file is read without the card of the environment, which may be a file as well
    task = task_of_questions(env, questions, aliases, str(record.get("scorer", "hotpotqa")))
    return questions_of_run(folder, task.questions)


def _refresh_suite(folder: Path, parts: Sequence[str]) -> None:
    """Writes the scores of a suite's run again from those of its parts."""
    from searchgym.corpora.files import read_json
    from searchgym.eval.run_folder import SCORES
    from searchgym.eval.runner import write_json
    from searchgym.eval.suites.run import suite_means

    scores = {part: read_json(folder / part / SCORES) for part in parts}
    write_json(folder / SCORES, read_json(folder / SCORES) | {"parts": scores, **suite_means(scores)})

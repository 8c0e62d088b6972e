"""The ``engine`` and ``export`` commands: serve a model for training, and write a checkpoint as one plain model."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from searchgym.cli.options import Overrides, RecipeName
from searchgym.cli.output import Json, emit, say, table
from searchgym.cli.serve import is_loopback

if TYPE_CHECKING:
    from searchgym.rollout.sampler import Dtype

TriedModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Folder or name of a model: five turns are played, without weights.")
]
FOUND_WIDTH: Final = 41
"""Characters of a line of what a check found, beside the names of checks in 80 columns."""


def engine(
    recipe: RecipeName,
    overrides: Overrides = None,
    at: Annotated[str, typer.Option(help="Address to listen on.")] = "http://127.0.0.1:8000",
    tools: Annotated[
        bool,
        typer.Option("--tools", help="Answer with tool calls on OpenAI's interface, for other agents."),
    ] = False,
) -> None:
    """Serve a recipe's model with vLLM, for trainings with rollout.sampler.servers."""
    _check_address(at)
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.rollout.folders import model_folder
        from searchgym.train.recipe.load import load_recipe

        loaded = load_recipe(recipe, ["rollout.sampler.kind=vllm", *(overrides or [])])

        from searchgym.rollout.samplers.vllm import Vllm
        from searchgym.rollout.vllm.setup import EngineSetup, serve_command
        from searchgym.train.loop.samplers import sampled_run

        options = cast(Vllm, loaded.rollout.sampler)
        dataclasses.replace(options, servers=None).chosen()
        flags = None
        if tools:
            from searchgym.envs.registration import find_env
            from searchgym.protocol import get_protocol
            from searchgym.rollout.foreign.dialects import chosen_dialect
            from searchgym.rollout.foreign.template_options import template_format
            from searchgym.rollout.loading import load_tokenizer
            from searchgym.rollout.vllm.tool_calls import tool_flags

            card, given, tokenizer = find_env(loaded.env), loaded.env_options, load_tokenizer(loaded.model)
            browse = bool(given.get("browse", card.browse))
            dialect, _ = chosen_dialect(given.get("dialect", card.dialect), [model_folder(loaded.model)])
            protocol = get_protocol(given.get("protocol", card.protocol), browse=browse, dialect=dialect)
            flags = tool_flags(template_format(tokenizer, protocol, loaded.template), loaded.agent)
    setup = EngineSetup(
        folder=model_folder(loaded.model),
        dtype=options.computed_in(sampled_run(loaded)),
        requests=loaded.rollout.concurrency,
        options=options,
        adapters=int(loaded.lora.rank > 0 and options.adapters != "merged"),
        rank=max(1, loaded.lora.rank),
    )
    command, environment = serve_command(setup, at, flags)
    say(" ".join(command))
    os.execve(command[0], command, os.environ | environment)  # replaces this process; no shell is involved


def _check_address(at: str) -> None:
    """Raises an error unless a server may listen at an address, and can.

    Raises:
        UsageError: Other machines reach it, and there is no key; or the port is taken, or none.
    """
    from searchgym.errors import UsageError
    from searchgym.rollout.vllm.client import KEY

    host, _, port = at.rpartition("//")[2].partition(":")
    if not os.environ.get(KEY) and not is_loopback(host):
        raise UsageError(
            f"--at {at} can be reached from other machines, and who reaches it loads any weights: set {KEY} to a "
            "secret, here and where the training runs"
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port or 8000)))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--at {at}: cannot listen ({error}); if another program uses the port, give another"
            ) from error


def export(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint, folder with an adapter, or name of a model.")],
    out: Annotated[Path, typer.Argument(help="Output folder; must not exist.")],
    json: Json = False,
) -> None:
    """Write a checkpoint as one plain model in Hugging Face format; an adapter is merged into its base model."""
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


model = typer.Typer(help="Work on checkpoints of models.", no_args_is_help=True)


@model.command()
def merge(
    checkpoints: Annotated[list[str], typer.Argument(help="Checkpoints or adapters, from the earliest to the latest.")],
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")],
    weights: Annotated[str | None, typer.Option(help="Weights, such as 0.2,0.3,0.5; divided by their sum.")] = None,
    schedule: Annotated[str, typer.Option(help="mean, linear, cosine or sqrt: the decay it stands for.")] = "mean",
    json: Json = False,
) -> None:
    """Average checkpoints into one, with given weights or those of a decay of the learning rate (WSM)."""
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

"""The ``engine`` and ``export`` commands: serve a model for training, and write a checkpoint as one plain model."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from searchgym.cli.output import Json, emit, say

if TYPE_CHECKING:
    from searchgym.rollout.sampler import Dtype


def engine(
    recipe: Annotated[str, typer.Argument(help="Recipe name or YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to override.")] = None,
    at: Annotated[str, typer.Option(help="Address to listen on.")] = "http://127.0.0.1:8000",
) -> None:
    """Serve a recipe's model with vLLM, for trainings with rollout.vllm.servers; there is no access control."""
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.errors import UsageError
        from searchgym.rollout.folders import model_folder
        from searchgym.train.recipe.load import load_recipe

        loaded = load_recipe(recipe, ["rollout.sampler=vllm", *(overrides or [])])

        from searchgym.rollout.vllm.server import serve_command
        from searchgym.rollout.vllm.start import samples_by_vllm
        from searchgym.train.run.samplers import sampled_in

        samples_by_vllm("vllm")
    host, _, port = at.rpartition("//")[2].partition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port or 8000)))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--at {at}: cannot listen ({error}); if another program uses the port, give another"
            ) from error
    command, environment = serve_command(
        model_folder(loaded.model),
        at,
        dtype=sampled_in(loaded),
        requests=loaded.rollout.concurrency,
        options=loaded.rollout.vllm,
        adapters=int(loaded.lora.rank > 0),
        rank=max(1, loaded.lora.rank),
    )
    say(" ".join(command))
    os.execve(command[0], command, os.environ | environment)  # replaces this process; no shell is involved


def export(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint, or folder with an adapter.")],
    out: Annotated[Path, typer.Argument(help="Output folder; must not exist.")],
    json: Json = False,
) -> None:
    """Write a checkpoint as one plain model in Hugging Face format; an adapter is merged into its base model."""
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.errors import RunExistsError
        from searchgym.rollout.loading import load_model

        if out.exists():
            raise RunExistsError(f"{out} already exists: give another folder")
        model, tokenizer = load_model(checkpoint, dtype_of(checkpoint))
        building = out.with_name(f"{out.name}.part")  # renamed when complete: `out` never holds half a model
        shutil.rmtree(building, ignore_errors=True)
        try:
            model.save_pretrained(building)
            tokenizer.save_pretrained(building)
            building.replace(out)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    emit({"checkpoint": str(checkpoint), "out": str(out)}, json, "export")


def dtype_of(folder: Path) -> Dtype:
    """Returns the data type of a checkpoint's weights from its configuration, or from an adapter's base model."""
    from searchgym.rollout.folders import adapter_base, is_adapter, model_folder
    from searchgym.rollout.loading import model_config

    folder = model_folder(folder)
    if is_adapter(folder):
        folder = model_folder(adapter_base(folder))
    return "bfloat16" if "bfloat16" in str(model_config(folder).dtype) else "float32"

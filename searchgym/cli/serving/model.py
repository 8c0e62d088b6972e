"""The ``serve model`` command: a recipe's model behind HTTP, by vLLM."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
from typing import Annotated, cast

import typer

from searchgym.cli.options import Overrides, RecipeName
from searchgym.cli.output import say
from searchgym.cli.serving.retriever import Host, is_loopback
from searchgym.errors import UsageError


def serve_model(
    recipe: RecipeName,
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    tools: Annotated[
        bool,
        typer.Option("--tools", help="Answer with tool calls on OpenAI's interface, for other agents."),
    ] = False,
) -> None:
    """Serve a recipe's model with vLLM.

    Trainings use it by rollout.sampler.servers, other agents by --tools.
    """
    _check_address(host, port)
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.rollout.folders import model_folder
        from searchgym.train.recipe.load import load_recipe

        loaded = load_recipe(recipe, ["rollout.sampler.kind=vllm", *(overrides or [])])

        from searchgym.rollout.samplers.vllm import Vllm
        from searchgym.rollout.vllm.setup import EngineSetup, serve_command
        from searchgym.train.plan.sampled import sampled_run

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

            card, env_options, tokenizer = find_env(loaded.env), loaded.env_options, load_tokenizer(loaded.model)
            browse, find, cite = (
                bool(env_options.get(name, getattr(card, name))) for name in ("browse", "find", "cite")
            )
            dialect, _ = chosen_dialect(env_options.get("dialect", card.dialect), [model_folder(loaded.model)])
            protocol = get_protocol(
                env_options.get("protocol", card.protocol), browse=browse, dialect=dialect, find=find, cite=cite
            )
            flags = tool_flags(template_format(tokenizer, protocol, loaded.template), loaded.agent)
    setup = EngineSetup(
        folder=model_folder(loaded.model),
        dtype=options.computed_in(sampled_run(loaded)),
        requests=loaded.rollout.concurrency,
        options=options,
        adapters=int(loaded.lora.rank > 0 and options.adapters != "merged"),
        rank=max(1, loaded.lora.rank),
    )
    command, environment = serve_command(setup, f"http://{host}:{port}", flags)
    say(" ".join(command))
    os.execve(command[0], command, os.environ | environment)  # replaces this process; no shell is involved


def _check_address(host: str, port: int) -> None:
    """Raises an error unless a server may listen at an address, and can.

    Raises:
        UsageError: Other machines reach it, and there is no key; or the port is taken, or none.
    """
    from searchgym.rollout.vllm.client import KEY

    if not os.environ.get(KEY) and not is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached from other machines, and who reaches it loads any weights: set {KEY} to a "
            "secret, here and where the training runs"
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port} ({error}): give another --port") from error

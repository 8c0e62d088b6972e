"""The ``show`` command: an episode token by token, in the terminal or as a page."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from searchgym.cli.output import Json, emit, in_colour, printable, say
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.packages import install_command


def show_episode(
    episodes: Annotated[Path, typer.Argument(help="Run folder, or its episodes.jsonl.")],
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer wrote the tokens; by default the run's own.")
    ] = None,
    episode: Annotated[str | None, typer.Option(help="Episode id; by default the first with tokens.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with every token's log-prob and advantage to this file.")
    ] = None,
    colour: Annotated[
        bool | None,
        typer.Option(
            "--colour/--no-colour",
            help="Mark trained tokens by colour or by brackets; by default colour in a terminal.",
        ),
    ] = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Import the reward and terms that a training's recipe names.")
    ] = False,
    json: Json = False,
) -> None:
    """Show an episode token by token: mask, log-prob, reward, advantage."""
    if not episodes.exists():
        raise DataMissingError("no such run", episodes)
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.eval.viewing.saved import SavedRun
        from searchgym.eval.viewing.tokens import draw, tokens_of

        if html is not None and importlib.util.find_spec("jinja2") is None:
            raise UsageError(f"a page needs jinja2: {install_command('view')}")
        saved = SavedRun.read(episodes, run_code)
        chosen = next((e for e in saved.episodes.values() if e.calls), None) if episode is None else saved.find(episode)
        if chosen is None or not chosen.calls:
            raise DataError(
                "no episode has tokens of a model" if chosen is None else "the episode has none", saved.path
            )
        decoders = _decoders({call.model_key: model or saved.model_of(call.model_key) for call in chosen.calls})

    def decode(key: str, ids: Iterable[int]) -> str:
        return decoders[key](list(ids))

    terms = saved.terms(chosen)
    tokens = tokens_of(chosen, decode, terms, saved.advantages)
    if html is not None:
        from searchgym.eval.viewing.page import write_page

        write_page(html, chosen, tokens, decode, terms)
        say(f"episode {chosen.id}: {len(tokens)} tokens in {html}")
    if json:
        emit({"episode": chosen.id, "tokens": [dataclasses.asdict(token) for token in tokens]}, True)
    elif html is None:
        colour = in_colour() if colour is None else colour
        print(draw(chosen, tokens, lambda key, ids: printable(decode(key, ids)), terms, colour))  # noqa: T201


def _decoders(folders: Mapping[str, str | Path]) -> dict[str, Callable[[list[int]], str]]:
    """Returns a function from ids to text for each model key."""
    from searchgym.rollout.loading import load_tokenizer
    from searchgym.rollout.tokens import decoder

    return {key: decoder(load_tokenizer(folder)) for key, folder in folders.items()}

"""The ``show`` command: an episode token by token, in the terminal or as a page."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from searchgym.cli.output import Json, emit, in_colour, printable, say
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.packages import install_command

LISTED: Final = 5
"""Maximum number of other episodes whose ids are listed."""


def show_episode(
    episodes: Annotated[Path, typer.Argument(help="Run folder, or its episodes.jsonl.")],
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer wrote the tokens; by default the run's own.")
    ] = None,
    episode: Annotated[
        str | None,
        typer.Option(
            help="Episode id, QUESTION#ATTEMPT, in a training QUESTION#ATTEMPT@STEP; by default the first with tokens. "
            "The last line of the output lists other ids, `searchgym view` all."
        ),
    ] = None,
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
    """Show an episode token by token.

    Each token has its mask, log-prob, reward and advantage.
    """
    if not episodes.exists():
        raise DataMissingError("no such run", episodes)
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.eval.rows import call_rows
        from searchgym.eval.viewing.saved import SavedRun
        from searchgym.eval.viewing.tokens import draw, pieces_of, tokens_of

        if html is not None and importlib.util.find_spec("jinja2") is None:
            raise UsageError(f"a page needs jinja2: {install_command('view')}")
        saved = SavedRun.read(episodes, run_code)
        chosen = next((e for e in saved.episodes.values() if e.calls), None) if episode is None else saved.find(episode)
        if chosen is None or not chosen.calls:
            reason = (
                "no episode has tokens of a model"
                if chosen is None
                else f"episode {chosen.id} has no tokens of a model"
            )
            run = shlex.quote(str(saved.files.folder))
            look = f"`searchgym report {run}` or `searchgym view {run}` shows its episodes"
            raise DataError(f"{reason}: {look}", saved.files.path)
        decoders = {key: saved.decoder(key, model) for key in dict.fromkeys(call.model_key for call in chosen.calls)}

    def decode(key: str, ids: Iterable[int]) -> str:
        return decoders[key](list(ids))

    calls = call_rows(chosen, saved.terms(chosen), saved.advantages)
    tokens = tokens_of(chosen, decode, calls, saved.advantages)
    if html is not None:
        from searchgym.eval.viewing.page import write_page

        write_page(html, chosen, pieces_of(chosen, tokens, decode), calls)
        say(f"episode {chosen.id}: {len(tokens)} tokens in {html}")
    if json:
        emit({"episode": chosen.id, "tokens": [dataclasses.asdict(token) for token in tokens]}, True)
    elif html is None:
        pieces = pieces_of(chosen, tokens, lambda key, ids: printable(decode(key, ids)))
        print(draw(chosen, pieces, calls, in_colour() if colour is None else colour), flush=True)  # noqa: T201
    others = [e.id for e in saved.episodes.values() if e.calls and e.id != chosen.id]
    if others and not json:
        more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
        say(f"other episodes, for --episode: {', '.join(others[:LISTED])}{more}")

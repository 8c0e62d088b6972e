"""The ``view`` command: the episodes of runs in Inspect's viewer."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from searchgym.cli.output import Json, emit_rows, progress, say
from searchgym.errors import UsageError
from searchgym.packages import install_command

if TYPE_CHECKING:
    from searchgym.eval.viewing.saved import SavedRun


def view(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of evaluations, trainings or suites of runs.")
    ],
    export_only: Annotated[
        bool, typer.Option("--export-only", help="Only write the logs, for `inspect view` or other readers.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write the logs to; by default they are kept in the cache.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")] = 7575,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser at the address.")] = True,
    questions: Annotated[
        Path | None, typer.Option(help="Question file; by default the questions of the run's environment.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer wrote the tokens; by default the run's own.")
    ] = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Import the reward and terms that a training's recipe names.")
    ] = False,
    json: Json = False,
) -> None:
    """Look at the episodes of runs in a browser.

    Sort and filter them; read searches, hits, calls, rewards and advantages.
    """
    say("loading ...")  # the imports alone take seconds
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.eval.viewing.saved import find_runs

        folders = find_runs(runs)
        try:
            from searchgym.eval.viewing.log import LOG, kept_log
            from searchgym.eval.viewing.server import viewer
        except ImportError as error:
            raise UsageError(f"the viewer needs inspect-ai ({error}): {install_command('view')}") from error
        logs = [kept_log(run) if out is None else out / f"{name_of(run)}.{LOG}" for run in folders]
        if len(set(logs)) < len(logs):
            raise UsageError(f"--out {out}: two runs have the same name: leave it out, or give them in turn")
        export_options = (out is not None, questions, model, run_code)
        rows = [_export(run, log, *export_options) for run, log in zip(folders, logs, strict=True)]
    if export_only or json:
        emit_rows(rows, json, "logs")
    if export_only:
        return
    named = [(name_of(run), log) for run, log in zip(folders, logs, strict=True)]
    with _interrupted_by(signal.SIGTERM), viewer(named, port) as server:
        say(f"{sum(row['episodes'] for row in rows)} episodes at {server.url} (Ctrl+C ends it)")
        if browser and not _open(server.url):
            tunnel = f"ssh -L {server.port}:127.0.0.1:{server.port} HOST"
            say(f"no browser here: open the address yourself, on another machine after {tunnel}")
        with contextlib.suppress(KeyboardInterrupt):
            server.wait()


@contextlib.contextmanager
def _interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Makes a signal interrupt the block as Ctrl-C does, so that it ends what it started: the viewer is a process."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def name_of(folder: Path) -> str:
    """Returns the name under which a run is shown: its folder's, after the folder around it."""
    full = folder.resolve()
    return f"{full.parent.name}-{full.name}" if full.parent.name else full.name


def _export(
    folder: Path, log: Path, anew: bool, questions: Path | None, model: str | None, run_code: bool
) -> dict[str, Any]:
    """Writes the log of a run unless it is there already and need not be made anew; returns what to say of it."""
    from searchgym.eval.viewing.log import count_of, fingerprint, write_log
    from searchgym.eval.viewing.saved import open_run

    mark = fingerprint(folder, questions, model, run_code)
    count = None if anew else count_of(log, mark)
    if count is None:
        run: SavedRun = open_run(folder, questions, run_code)
        with progress(f"writing {log}") as advance:
            count = write_log(run, log, mark, model, advance)
        for note in run.notes:
            say(f"{folder}: {note}")
    return {"run": str(folder), "episodes": count, "bytes": log.stat().st_size, "log": str(log)}


def _open(url: str) -> bool:
    """Opens a browser; returns False if there is none, or no display to show one on."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False  # else a browser in the terminal would take over
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False

"""The ``leaderboard`` commands: make a submission, check it, and build the page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from searchgym.cli.evaluation.evaluate import named_models, open_models
from searchgym.cli.output import Json, emit, say, say_next, stages, table, tell
from searchgym.errors import RunExistsError, SubmissionError, UsageError

if TYPE_CHECKING:
    from searchgym.agents.base import LoadedAgent
    from searchgym.envs.options import TaskOptions
    from searchgym.eval.leaderboard.check import CheckedSubmission
    from searchgym.eval.leaderboard.tasks import Tasks
    from searchgym.rollout.models import Model

leaderboard = typer.Typer(help="Make and check submissions; build the tables.", no_args_is_help=True)

BOARD = Path("eval/leaderboard")
Corpus = Annotated[str | None, typer.Option(help="Corpus of the track, if it is not that of the suite.")]
Retriever = Annotated[str | None, typer.Option(help="Retriever card or URL of the track, if not that of the suite.")]
SuiteCards = Annotated[
    list[Path] | None, typer.Option(help="Card of a suite of your own, beside those that ship; repeatable.")
]


def _tasks(corpus: str | None, retriever: str | None, cards: list[Path] | None) -> Tasks:
    """Returns the tasks of suites under the options that were given."""
    from searchgym.eval.leaderboard.tasks import Tasks

    sources = {"corpus": corpus, "retriever": retriever}
    options = cast("TaskOptions", {name: value for name, value in sources.items() if value is not None})
    return Tasks(options, cards or [])


@leaderboard.command("add")
def add(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run: of a suite, or of one of its parts.")],
    name: Annotated[str, typer.Option(help="Name of the row; several training seeds of one method have the same.")],
    by: Annotated[str, typer.Option(help="Who submits it.")],
    out: Annotated[Path, typer.Option(help="Folder of submissions.")] = BOARD,
    suite: Annotated[str | None, typer.Option(help="Suite, if the run is one of a single part.")] = None,
    part: Annotated[str | None, typer.Option(help="Only this part of the suite.")] = None,
    training_seed: Annotated[int | None, typer.Option(min=0, help="Seed of the training.")] = None,
    url: Annotated[str | None, typer.Option(help="Where the model or the paper is.")] = None,
    corpus: Corpus = None,
    retriever: Retriever = None,
    suite_card: SuiteCards = None,
    json: Json = False,
) -> None:
    """Make a submission of a finished run.

    It has predictions, episodes and a manifest, and is checked as `check` does.
    """
    from searchgym.eval.leaderboard.check import check_submission
    from searchgym.eval.leaderboard.submission import (
        About,
        folder_name,
        is_submission_of,
        runs_of,
        write_submission,
    )

    tasks = _tasks(corpus, retriever, suite_card)
    submissions: list[dict[str, Any]] = []
    about = About(name, by, url=url, training_seed=training_seed)
    slug = folder_name(name, training_seed)
    parts = {out / track[0] / track[1] / slug: (of, *track) for track, of in runs_of(run, suite, part).items()}
    there = [folder for folder in parts if folder.exists()]
    for folder in there:  # before anything is written; an `add` that was ended between two parts goes on
        if not is_submission_of(folder, *parts[folder], about, tasks):
            raise RunExistsError(
                f"{folder} exists: two submissions of one name and training seed; choose another --name"
            )
    if len(there) == len(parts):
        raise RunExistsError(f"{there[0]} exists: two submissions of one name and training seed, and it is this run's")
    for folder, of in parts.items():
        if folder not in there:
            write_submission(*of, about, folder, tasks)
        try:
            checked = check_submission(folder, tasks)
        except SubmissionError:
            if folder not in there:
                shutil.rmtree(folder)
            raise
        submissions.append({"submission": str(folder), "n": checked.scores["n"], "em": checked.scores.get("em")})
    if json:
        emit({"submissions": submissions}, True)
    else:
        table(("submission", "n", "EM"), [(m["submission"], str(m["n"]), f"{m['em']:.4f}") for m in submissions])
        say_next("leaderboard", "check", submissions[0]["submission"], "--replay")


@leaderboard.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of a submission.")],
    replay: Annotated[bool, typer.Option("--replay", help="Repeat searches and workflow of drawn episodes.")] = False,
    episodes: Annotated[int, typer.Option(min=0, help="Episodes that --replay draws; 0 for all.")] = 50,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run agent and models again, and record it.")] = False,
    agent: Annotated[str | None, typer.Option(help="Its agent, if it does not ship with the package.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="[ROLE=]MODEL: its models, for --rerun.")] = None,
    corpus: Corpus = None,
    retriever: Retriever = None,
    suite_card: SuiteCards = None,
    json: Json = False,
) -> None:
    """Compute every score of a submission again.

    A score that does not agree is refused, with field and reason.
    """
    from searchgym.agents.base import load_agent
    from searchgym.eval.leaderboard.check import agent_of, check_submission
    from searchgym.eval.leaderboard.replay import replay_episodes

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of a submission")
    loaded_agent = None if agent is None else load_agent(agent)
    checked = check_submission(folder, _tasks(corpus, retriever, suite_card))
    used_agent = agent_of(checked.manifest, loaded_agent)
    scores = checked.scores
    result: dict[str, Any] = {"submission": str(folder), "tier": "recomputed", "n": scores["n"]}
    result |= {"em": scores.get("em"), "f1": scores.get("f1")}
    if replay:
        done = replay_episodes(checked, used_agent, episodes or None)
        result |= {"episodes_replayed": done["episodes"], "searches_repeated": done["searches"]}
        if used_agent is None:
            say(f"agent {checked.manifest.agent} does not ship here: only its searches were repeated (--agent)")
    if rerun:
        result |= {"tier": "run again"} | _run_again(checked, used_agent, model or [])
    emit(result, json, "checked")


def _run_again(checked: CheckedSubmission, agent: LoadedAgent | None, specs: list[str]) -> dict[str, Any]:
    """Runs a submission again; returns what was recorded."""
    from searchgym.eval.leaderboard.replay import run_again
    from searchgym.rollout.models import Loading

    if agent is None:
        raise UsageError(f"agent {checked.manifest.agent} does not ship with the package: give --agent")
    names = {used.name for used in checked.manifest.models.values()}
    if agent.roles and not specs:
        raise UsageError(f"which models? Give {', '.join(sorted(names))} as --model")
    dtype = next((e for u in checked.manifest.models.values() for e in ("bfloat16",) if e in u.engine), "float32")
    by = "vllm" if any("vllm" in used.engine for used in checked.manifest.models.values()) else "transformers"
    template = {name: value for arguments in checked.manifest.template.values() for name, value in arguments.items()}
    how = Loading(by, dtype, template=template)
    named = named_models(specs, agent, how) if agent.roles else {}
    opened: contextlib.AbstractContextManager[Mapping[str, Model]] = open_models(named, checked.task, how)
    with opened as models, stages() as report:
        repeated = run_again(checked, agent, models, lambda *done: report("episodes", *done))
    return {name: repeated[name] for name in ("episodes", "answers_equal", "em", "f1")}


@leaderboard.command("build")
def build(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of submissions.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Page: .md or .html; by default README.md of the first folder.")
    ] = None,
    corpus: Corpus = None,
    retriever: Retriever = None,
    suite_card: SuiteCards = None,
    json: Json = False,
) -> None:
    """Check all submissions and write the page.

    The tables are printed; a submission that is refused makes the command fail.
    """
    from searchgym.corpora.files import write_atomic
    from searchgym.eval.leaderboard.table import build_board
    from searchgym.eval.report.blocks import filled
    from searchgym.eval.report.board import HEAD, board_page, reported_table, track_cells
    from searchgym.eval.report.html import to_html
    from searchgym.eval.report.markdown import to_markdown

    board_folders = folders or [BOARD]
    for board_folder in board_folders:
        if not board_folder.is_dir():
            raise UsageError(f"{board_folder} is no folder of submissions")
    page = out or board_folders[0] / "README.md"
    if page.suffix not in (".md", ".html"):
        raise UsageError(f"--out {page}: a page is written as .md or .html")
    with stages() as progress:
        board = build_board(board_folders, _tasks(corpus, retriever, suite_card), progress)
    if not board.refused:
        text_of_page = (
            to_html(board_page(board, figures=True)) if page.suffix == ".html" else to_markdown(board_page(board))
        )
        with write_atomic(page) as file:
            file.write(text_of_page.encode())
    tracks = [(track, track_cells(track)) for track in board.tracks]
    if json:
        result: dict[str, Any] = {"page": None if board.refused else str(page)}
        result["tracks"] = [
            {
                "suite": track.suite,
                "part": track.part,
                "track": track.label,
                "rows": [dict(zip(HEAD, cells, strict=True)) for cells in rows],
            }
            for track, rows in tracks
        ]
        result |= {"reported": [row.name for row in board.reported], "refused": list(map(str, board.refused))}
        emit(result | {"absent": list(board.absent)}, True)
    else:
        for track, rows in tracks:
            grid = filled(HEAD, rows)
            table(grid.head, grid.rows, f"{track.suite} · {track.part}")
            tell(f"track: {track.label}")
        if board.reported:
            table(*reported_table(board.reported), "reported only")
        for text in board.absent:
            say(f"not looked at: {text}")
        if not board.refused:
            count = sum(len(rows) for _, rows in tracks)
            say(f"{count} rows, every one recomputed from its episodes; page: {page}")
    for error in board.refused:
        say(f"refused: {error}")
    if board.refused:
        raise typer.Exit(1)

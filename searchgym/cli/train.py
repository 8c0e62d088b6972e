"""The ``train``, ``selfcheck`` and ``demo`` commands."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from searchgym.cli.options import Overrides, PlanOptions, RecipeName, takes_records
from searchgym.cli.output import Json, emit, say, say_next, table, tell
from searchgym.cli.training.outcome import next_words, say_outcome
from searchgym.cli.training.plan import print_plan
from searchgym.cli.training.steps import training_steps
from searchgym.cli.training.train_pipeline import is_pipeline, train_pipeline
from searchgym.errors import UnknownNameError, UsageError
from searchgym.named import code_refused
from searchgym.options.cards import list_cards

if TYPE_CHECKING:
    from searchgym.testing.selfcheck.findings import Findings
    from searchgym.train.recipe.recipe import Recipe


SHORT: Final = ("steps=10", "rollout.questions=8")
"""Values of tiny-grpo for a demonstration that takes minutes, a quarter of its episodes."""


@takes_records
def train(
    *,
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default a new one under runs/train/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out; steps may be more.")] = False,
    planned: PlanOptions,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Only explain the rewards of an episode: from the run in --out, or newly sampled."
        ),
    ] = False,
    episode: Annotated[str | None, typer.Option(help="Episode id, with --explain and --out.")] = None,
    json: Json = False,
) -> None:
    """Train a model by a recipe or a pipeline.

    Recipes train by PPO, the GRPO family, rejection sampling or supervised; a pipeline goes from documents to an
    adapter.
    """
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder of the run")
    if episode is not None and not (explain and out is not None):
        raise UsageError("--episode names an episode of the run in --out, to --explain")
    planned.check()
    if planned.plan and explain:
        raise UsageError("--plan and --explain: choose one")
    if is_pipeline(recipe):
        if planned.plan or explain:
            raise UsageError(
                f"{recipe} is a pipeline: it says at its start how long it takes; leave out --plan, --explain"
            )
        train_pipeline(recipe, overrides or [], out, resume, json)
        return
    try:
        loaded = recipe_of(recipe, overrides)
    except UnknownNameError as error:
        if error.kind != "recipe" or error.name != recipe:
            raise
        raise UnknownNameError("recipe", recipe, [*error.accepted, *list_cards("pipelines")], error.hint) from None
    if planned.plan:
        with code_refused():  # a plan needs sizes alone
            print_plan(loaded, planned, out, json)
        return
    if explain:
        check_recipe(loaded)
        _explain(loaded, out, episode, json)
        return
    folder = out or Path("runs") / "train" / f"{loaded.name}_{time.strftime('%Y%m%d-%H%M%S')}"
    emit(run_training(loaded, overrides or [], folder, resume, json), json, loaded.name)


def run_training(recipe: Recipe, overrides: list[str], folder: Path, resume: bool, json: bool) -> dict[str, Any]:
    """Checks a recipe and its folder, trains and shows the steps; returns the summary of the run.

    A run that goes on keeps its warm-ups where the new recipe fits them to its steps. When interrupted, it tells how to
    go on.
    """
    if resume and (folder / "recipe.yaml").is_file():
        from searchgym.train.recipe.load import read_recipe, with_warmups_of

        recipe = with_warmups_of(recipe, read_recipe(folder / "recipe.yaml"), overrides)
    check_recipe(recipe, folder, resume)
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.train.loop.assembly import train as run

        say(f"run folder: {folder}")
        started = time.perf_counter()
        try:
            with training_steps(recipe, folder) as report:
                result = run(recipe, folder, resume=resume, report=report)
        except KeyboardInterrupt:
            say(f"interrupted: go on with the same command and --out {folder} --resume")
            raise typer.Exit(130) from None
    say_outcome(recipe, result, folder)
    if not json:
        say_next(*next_words(recipe, result, folder))
    metric = f"validation/{recipe.validation.metric}"
    scores = [row[metric] for row in result.rows if metric in row]
    return {
        "recipe": recipe.name,
        "out": str(folder),
        "steps": result.progress.step,
        "seconds": round(time.perf_counter() - started, 1),
        "generated_tokens": result.progress.generated_tokens,
        "before": scores[0] if scores else None,
        "after": scores[-1] if scores else None,
        "best": result.progress.best_score,
        "checkpoint": str(result.checkpoint),
        "best_checkpoint": None if result.best is None else str(result.best),
    }


def recipe_of(name: str, overrides: list[str] | None) -> Recipe:
    """Reads a recipe, and says which of its values were changed to fit the overrides."""
    from searchgym.train.recipe.load import load_recipe

    return load_recipe(name, overrides or [], say)


def check_recipe(recipe: Recipe, folder: Path | None = None, resume: bool = False) -> None:
    """Checks the names in a recipe, and whether a run can begin or go on in a folder, before libraries are loaded."""
    from searchgym.train.loop.folder import check_run_folder
    from searchgym.train.recipe.preflight import check_names

    check_names(recipe)
    if folder is not None:
        check_run_folder(folder, recipe, resume=resume)


def _explain(recipe: Recipe, run: Path | None, episode_id: str | None, as_json: bool) -> None:
    """Prints the calls of an episode with the terms of their rewards and their advantages."""
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.eval.viewing.explain import explain_new, explain_run

        episode, calls = explain_new(recipe) if run is None else explain_run(run, episode_id, recipe)
    if as_json:
        emit({"episode": episode.id, "calls": [dataclasses.asdict(call) for call in calls]}, True)
        return
    parts = list(calls[0].parts) if calls else []
    rows = [
        (
            str(number),
            call.role,
            call.model_key,
            str(call.turn),
            "yes" if call.legal else "NO",
            str(call.tokens),
            *(f"{call.parts[name]:+.3f}" for name in parts),
            f"{call.reward:+.3f}",
            "n/a" if call.advantage is None else f"{call.advantage:+.3f}",
            " ".join(call.text.split())[:60],
        )
        for number, call in enumerate(calls)
    ]
    head = ("call", "role", "key", "turn", "legal", "tokens", *parts, "reward", "advantage", "text")
    table(head, rows, f"{episode.id}: the environment's reward {episode.reward:g}, {episode.stop_reason}")


def selfcheck(
    recipe: RecipeName,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Check a recipe before a long run.

    It checks tokens, masks, groups, log-probs, a bandit and a resume.

    The status is 1 if a check fails, else 0; what is not checked does not change it, and is counted in the last line.
    """
    loaded = recipe_of(recipe, overrides)
    check_recipe(loaded)
    from searchgym.testing.selfcheck.findings import Findings

    findings = Findings()
    try:
        with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory(prefix="searchgym-") as folder:
            from searchgym.testing.selfcheck.run import selfcheck as run  # libraries print when they are imported

            run(loaded, Path(folder), say, findings)
    finally:  # what was found before an error or an interrupt is not lost
        if findings.checks():
            _print_checks(recipe, findings, json)
    if findings.counts()["failed"]:
        raise typer.Exit(1)


def _print_checks(recipe: str, findings: Findings, as_json: bool) -> None:
    """Prints the results of a self-check, and how many there are of each kind."""
    checks, counts = findings.checks(), findings.counts()
    if as_json:
        rows = [{"name": check.name, "state": check.state, "said": check.detail} for check in checks]
        emit({"recipe": recipe, "checks": rows, "counts": counts}, True)
        return
    words = {state: "FAILED" if state == "failed" else state for state in counts}
    table(("check", "", "seen"), [(check.name, words[check.state], check.detail) for check in checks])
    tell(", ".join(f"{count} {words[state]}" for state, count in counts.items()))


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Recipe values.")] = None,
    recipe: Annotated[str, typer.Option(help="Recipe name or YAML file; by default a short tiny-grpo.")] = "",
    out: Annotated[Path, typer.Option(help="Folder; an earlier demonstration in it is replaced.")] = Path("runs/demo"),
    questions: Annotated[int, typer.Option(min=1, help="Ask this many of the 500 held-out questions.")] = 300,
    json: Json = False,
) -> None:
    """Train a tiny model to search, in minutes.

    Prints its scores before and after.
    """
    loaded = recipe_of(recipe or "tiny-grpo", [*([] if recipe else SHORT), *(overrides or [])])
    check_recipe(loaded)
    from searchgym.cli.demo.progress import demo_progress

    with contextlib.redirect_stdout(sys.stderr), demo_progress(loaded, questions, out) as progress:
        from searchgym.cli.demo.run import run_demo  # loads libraries that print

        summary = run_demo(loaded, out, progress, questions)
    if json:
        emit(summary, True)
    else:
        from searchgym.cli.demo.story import print_summary

        print_summary(summary, out)

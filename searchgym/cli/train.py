"""The ``train``, ``selfcheck``, ``demo`` and ``show`` commands."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from searchgym.cli.output import Json, emit, say, show, table

if TYPE_CHECKING:
    from searchgym.train.inspect.plan import Part
    from searchgym.train.recipe.recipe import Recipe


def train(
    recipe: Annotated[str, typer.Argument(help="Recipe name or YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to override.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default a new one under runs/train/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only print the memory it needs; status 2 if too much.")] = False,
    gpus: Annotated[int | None, typer.Option(min=0, help="Plan for this many GPUs instead of this machine's.")] = None,
    gpu_gib: Annotated[float, typer.Option(help="GiB of memory of each of --gpus; 80 GB cards report 79.")] = 79.0,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Only explain the rewards of an episode: from the run in --out, or newly sampled."
        ),
    ] = False,
    episode: Annotated[str | None, typer.Option(help="Episode id, with --explain and --out.")] = None,
    json: Json = False,
) -> None:
    """Train a model by a recipe: PPO, the GRPO family, rejection sampling or supervised."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.errors import UsageError
        from searchgym.train.recipe.load import load_recipe
        from searchgym.train.run.assembly import train as run

        if resume and out is None:
            raise UsageError("--resume needs --out, the folder of the run")
        if episode is not None and not (explain and out is not None):
            raise UsageError("--episode names an episode of the run in --out, to --explain")
        loaded = load_recipe(recipe, overrides or [])
    if plan:
        _print_plan(loaded, gpus, gpu_gib, json)
        return
    if explain:
        _explain(loaded, out, episode, json)
        return
    with contextlib.redirect_stdout(sys.stderr):
        folder = out or Path("runs") / "train" / f"{loaded.name}_{time.strftime('%Y%m%d-%H%M%S')}"
        say(f"run folder: {folder}")
        started = time.perf_counter()
        try:
            result = run(loaded, folder, resume=resume, report=report_row)
        except KeyboardInterrupt:
            say(f"interrupted: go on with the same command and --out {folder} --resume")
            raise typer.Exit(130) from None
    scores = [row for row in result.rows if f"validation/{loaded.validation.metric}" in row]
    metric = f"validation/{loaded.validation.metric}"
    summary = {
        "recipe": loaded.name,
        "out": str(folder),
        "steps": result.progress.step,
        "seconds": round(time.perf_counter() - started, 1),
        "generated_tokens": result.progress.generated_tokens,
        "before": scores[0][metric] if scores else None,
        "after": scores[-1][metric] if scores else None,
        "best": result.progress.best_score,
        "checkpoint": str(result.checkpoint),
        "best_checkpoint": str(result.best),
    }
    emit(summary, json, loaded.name)


def _explain(recipe: Recipe, run: Path | None, episode_id: str | None, as_json: bool) -> None:
    """Prints the calls of an episode with the terms of their rewards and their advantages."""
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.train.inspect.explain import explain_new, explain_run

        episode, calls = explain_new(recipe) if run is None else explain_run(run, episode_id)
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
            "" if call.advantage is None else f"{call.advantage:+.3f}",
            " ".join(call.text.split())[:60],
        )
        for number, call in enumerate(calls)
    ]
    head = ("call", "role", "key", "turn", "legal", "tokens", *parts, "reward", "advantage", "text")
    table(head, rows, f"{episode.id}: reward {episode.reward:g}, {episode.stop_reason}")


def _print_plan(recipe: Recipe, gpus: int | None, gpu_gib: float, as_json: bool) -> None:
    """Prints the memory that a recipe needs on each device.

    Raises:
        UsageError: A device has less memory than the recipe needs.
    """
    with contextlib.redirect_stdout(sys.stderr):
        from searchgym.errors import UsageError
        from searchgym.train.inspect.plan import PHASES, check_plan, memory_here, plan

        parts = plan(recipe, gpus, gpu_gib)
        memory = memory_here() | {f"cuda:{number}": gpu_gib for number in range(gpus or 0)}
    if as_json:
        emit({"recipe": recipe.name, "memory": memory, "parts": [dataclasses.asdict(p) for p in parts]}, True)
    else:
        phases = PHASES if recipe.has_critic else PHASES[:2]
        table(("device", "GiB of", *phases), list(_plan_rows(parts, phases)), f"{recipe.name}: plan")
    if misfits := check_plan(parts, memory):
        raise UsageError(f"the training does not fit: {'; '.join(misfits)}")


def _plan_rows(parts: Sequence[Part], phases: Sequence[str]) -> Iterator[list[str]]:
    """Yields table rows: the memory items of each device by phase, then their sums. Equal devices share rows."""
    alike: dict[tuple[Part, ...], list[str]] = {}
    for device in dict.fromkeys(part.device for part in parts):
        items = tuple(dataclasses.replace(part, device="") for part in parts if part.device == device)
        alike.setdefault(items, []).append(device)
    for items, devices in alike.items():
        name = devices[0] if len(devices) == 1 else f"{devices[0]} to {devices[-1]}, each"
        for part in items:
            yield [name, part.what, *(f"{part.gib:.2f}" if phase in part.phases else "" for phase in phases)]
        sums = (sum(part.gib for part in items if phase in part.phases) for phase in phases)
        yield [name, "all", *(f"{total:.2f}" for total in sums)]


def selfcheck(
    recipe: Annotated[str, typer.Argument(help="Recipe name or YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to override.")] = None,
    json: Json = False,
) -> None:
    """Check a recipe before a long run: tokens, masks, groups, log-probs, a bandit, a resume; status 1 if one fails."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.train.inspect.selfcheck import selfcheck as run
        from searchgym.train.recipe.load import load_recipe

        with tempfile.TemporaryDirectory(prefix="searchgym-") as folder:
            checks = run(load_recipe(recipe, overrides or []), Path(folder), say)
    rows = [dataclasses.asdict(check) for check in checks]
    if json:
        emit({"recipe": recipe, "checks": rows}, True)
    else:
        table(("check", "", "seen"), [(row["name"], "ok" if row["ok"] else "FAILED", row["said"]) for row in rows])
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe values.")] = None,
    recipe: Annotated[str, typer.Option(help="Recipe name or YAML file.")] = "tiny-grpo",
    out: Annotated[Path, typer.Option(help="Folder; an earlier demonstration in it is replaced.")] = Path("runs/demo"),
    questions: Annotated[int | None, typer.Option(min=1, help="Ask only the first N held-out questions.")] = None,
    json: Json = False,
) -> None:
    """Train the shipped tiny model to search, and print its scores before and after."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.cli.demo import print_summary, run_demo
        from searchgym.train.recipe.load import load_recipe

        summary = run_demo(load_recipe(recipe, overrides or []), out, say, report_row, questions)
    if json:
        emit(summary, True)
        return
    print_summary(summary, out)


def show_episode(
    episodes: Annotated[Path, typer.Argument(help="Run folder, or its episodes.jsonl.")],
    model: Annotated[Path, typer.Option(help="Model folder whose tokenizer wrote the tokens.")],
    episode: Annotated[str | None, typer.Option(help="Episode id; by default the first with tokens.")] = None,
    colour: Annotated[
        bool, typer.Option("--colour/--no-colour", help="Mark trained tokens by colour or by brackets.")
    ] = True,
    json: Json = False,
) -> None:
    """Show an episode token by token: mask, log-prob, reward, advantage."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.errors import DataError, UnknownNameError
        from searchgym.rollout.loading import load_tokenizer
        from searchgym.rollout.storage import read_episodes
        from searchgym.train.inspect.view import draw, tokens_of
        from searchgym.train.run.folder import read_advantages

        path = episodes / "episodes.jsonl" if episodes.is_dir() else episodes
        tokenizer = load_tokenizer(model)
    with_calls = {e.id: e for e in read_episodes(path) if e.calls}
    if not with_calls:
        raise DataError("no episode has tokens of a model", path)
    if episode is not None and episode not in with_calls:
        raise UnknownNameError("episode", episode, with_calls)
    chosen = with_calls[episode] if episode is not None else next(iter(with_calls.values()))
    sidecar = path.with_suffix(".advantages.jsonl")
    advantages = read_advantages(sidecar) if sidecar.exists() else None

    def decode(ids: Iterable[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    tokens = tokens_of(chosen, decode, advantages)
    if json:
        emit({"episode": chosen.id, "tokens": [dataclasses.asdict(token) for token in tokens]}, True)
    else:
        print(draw(chosen, tokens, decode, colour))  # noqa: T201


def report_row(row: dict[str, float]) -> None:
    """Prints the main metrics of a training step on standard error."""
    names = ("step", "rollout/reward", "rollout/em", "rollout/searches", "validation/em", "learner/loss", "time/draw")
    say("  ".join(f"{name} {show(row[name])}" for name in names if name in row))

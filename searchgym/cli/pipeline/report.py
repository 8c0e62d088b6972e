"""The report of a pipeline: what came of each stage, and what the model scores after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from searchgym.cli.pipeline.pipeline import Pipeline
from searchgym.corpora.files import write_atomic

REPORT: Final = "report.md"
WHAT: Final = {
    "questions": "questions made from the documents",
    "masked": "masked spans demonstrated",
    "filler": "practised filling in",
    "reading": "reading practice written",
    "reader": "practised reading",
    "searching": "searches demonstrated",
    "searcher": "practised searching",
    "selected": "questions chosen",
    "reinforced": "reinforcement learning",
    "scores": "scored on test questions",
    "adapter": "the adapter",
}
"""Stage to what it does, in words."""


def write_report(pipeline: Pipeline, done: Mapping[str, Mapping[str, Any]], out: Path) -> Path:
    """Writes ``report.md`` to a pipeline's folder."""
    lines = [
        f"# {pipeline.name}: {pipeline.model} on {pipeline.corpus}",
        "",
        *scores_table(done, pipeline.own_test),
        "",
    ]
    lines += ["## What was done", "", "| stage | minutes (of its last session) | what came of it |", "|---|---|---|"]
    for name, did in done.items():
        told = did.get("left_out") or ", ".join(f"{key} {value}" for key, value in _facts(did).items())
        lines.append(f"| {WHAT[name]} | {did['seconds'] / 60:.1f} | {str(told).replace('|', '/')} |")
    lines += ["", f"Adapter: `{done['adapter']['adapter']}`. Evaluate it on questions of your own:", ""]
    rules = pipeline.env_options | {"max_tokens": pipeline.recipe.rollout.max_tokens}
    rules = {name: value for name, value in rules.items() if isinstance(value, (int, str))}
    told = "".join(f" --{name.replace('_', '-')} {value}" for name, value in rules.items())
    command = f"searchgym eval --questions FILE --corpus {pipeline.corpus} --agent {pipeline.recipe.agent}"
    lines += ["```bash", f"{command} --model {done['adapter']['adapter']}{told} --dtype {pipeline.dtype}", "```"]
    with write_atomic(out / REPORT) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return out / REPORT


def scores_table(done: Mapping[str, Mapping[str, Any]], own: str | None) -> list[str]:
    """Returns the scores as a Markdown table; `own` is the file of the test questions, None if they are generated."""
    rows = done["scores"]["scores"]
    n = max((row["n"] for row in rows.values()), default=0)
    which = f"{n} test questions, of whose pages nothing was practised"
    which = which if own is None else f"the {n} questions of `{own}`; the gold pages that they name were in no practice"
    lines = [f"Exact match (EM) on {which}:", ""]
    lines += [
        "| model | EM | 95 % | F1 | searches | gold pages found | legal outputs |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        recall = row["title_recall"]
        cells = [f"{row['em']:.3f}", "{:.3f} to {:.3f}".format(*row["em_ci95"]), f"{row['f1']:.3f}"]
        cells += [f"{row['searches']:.2f}", "" if recall is None else f"{recall[-1]:.3f}"]
        cells += ["" if row["legal"] is None else f"{row['legal']:.3f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _facts(did: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a stage did in a few words."""
    hidden = ("seconds", "scores", "checkpoint", "best", "adapter")
    return {key.replace("_", " "): value for key, value in did.items() if key not in hidden}

"""The report of a pipeline: what came of each stage, and what the model scores after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from searchgym.cli.pipeline.pipeline import Pipeline
from searchgym.cli.pipeline.stages import ORDER
from searchgym.cli.pipeline.work import StageOutcome
from searchgym.corpora.files import write_atomic

REPORT: Final = "report.md"
HIDDEN: Final = ("seconds", "scores", "checkpoint", "best", "adapter")
"""Fields of what a stage did that its line does not repeat."""


def write_report(pipeline: Pipeline, done: Mapping[str, StageOutcome], out: Path) -> Path:
    """Writes ``report.md`` to a pipeline's folder."""
    lines = [
        f"# {pipeline.name}: {pipeline.model} on {pipeline.corpus}",
        "",
        *scores_table(done, pipeline.own_test),
        "",
    ]
    lines += ["## What was done", "", "| stage | minutes (of its last session) | what came of it |", "|---|---|---|"]
    for name, did in done.items():
        facts = [f"{key.replace('_', ' ')} {value}" for key, value in did.items() if key not in HIDDEN]
        details = did.get("left_out") or ", ".join(facts)
        lines.append(f"| {ORDER[name].title} | {did['seconds'] / 60:.1f} | {str(details).replace('|', '/')} |")
    lines += ["", f"Adapter: `{done['adapter']['adapter']}`. Evaluate it on questions of your own:", ""]
    rules = pipeline.env_options | {"max_tokens": pipeline.recipe.rollout.max_tokens}
    rules = {name: value for name, value in rules.items() if isinstance(value, (int, str))}
    details = "".join(f" --{name.replace('_', '-')} {value}" for name, value in rules.items())
    command = f"searchgym eval --questions FILE --corpus {pipeline.corpus} --agent {pipeline.recipe.agent}"
    lines += ["```bash", f"{command} --model {done['adapter']['adapter']}{details} --dtype {pipeline.dtype}", "```"]
    with write_atomic(out / REPORT) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return out / REPORT


def scores_table(done: Mapping[str, StageOutcome], user_file: str | None) -> list[str]:
    """Returns the scores as a Markdown table; `own` is the file of the test questions, None if they are generated."""
    rows = done["scores"]["scores"]
    n = max((row["n"] for row in rows.values()), default=0)
    which = f"{n} test questions, of whose pages nothing was practised"
    which = (
        which
        if user_file is None
        else f"the {n} questions of `{user_file}`; the gold pages that they name were in no practice"
    )
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

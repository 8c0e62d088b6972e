"""The ``check-dump`` command: checks a batch that another trainer trained on."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from searchgym.cli.output import Json, emit, table, tell
from searchgym.options.kinds import shipped

if TYPE_CHECKING:
    from searchgym.testing.dumps.finding import Finding, Report

FORMATS: Final = ", ".join(shipped("searchgym.testing.dumps.formats"))
LISTED: Final = 3
"""Number of findings of one kind that are printed in full."""


def check_dump(
    file: Annotated[Path, typer.Argument(help="Dump: .jsonl, .json, .pt, .npz or .safetensors.")],
    format: Annotated[str, typer.Option(help=f"Framework of the dump: {FORMATS}, or module:Class.")],
    estimator: Annotated[
        str | None,
        typer.Option(help="Estimator of the advantages: grpo, rloo, ..., or the framework's name for it."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that sampled: gives tokenizer and log-probs.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Folder of the adapter that sampled with the model.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Model of which only the tokenizer is used.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; default: the dump's, or 1.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text at which the sampler stopped; by default </search> and </answer>.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Compare the log-probs of so many samples.")] = 32,
    json: Json = False,
) -> None:
    """Check a batch that another trainer trained on.

    It checks masks, end tokens, groups, advantages, log-probs and the encoding of turns, and says what was not checked.

    The status is 1 if there are findings, else 0.
    """
    with contextlib.redirect_stdout(sys.stderr):  # libraries print when they are imported
        from searchgym.testing.dumps.run import STOPS, Claims
        from searchgym.testing.dumps.run import check_dump as check

        claims = Claims(
            estimator=estimator,
            model=model,
            adapter=adapter,
            tokenizer=tokenizer,
            temperature=temperature,
            stops=tuple(stop or STOPS),
            samples=samples,
        )
        report = check(file, format, claims)
    if json:
        rows = [{**dataclasses.asdict(finding), "cause": finding.cause} for finding in report.findings]
        emit({"file": str(file), "findings": rows, "checked": report.checked, "unchecked": report.unchecked}, True)
    else:
        _print_report(report)
    if report.findings:
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    """Prints findings by kind, what was checked and what was not."""
    for kind, same in groupby(sorted(report.findings, key=lambda finding: finding.kind), lambda finding: finding.kind):
        _print_kind(kind, list(same))
    rows = [(name, what) for name, what in report.checked.items()]
    rows += [(name, f"not checked: {reason}") for name, reason in report.unchecked.items()]
    table(("part", "checked"), rows)
    count = len(report.findings)
    tell(f"{count} finding{'s' * (count != 1)}" if count else "no findings")


def _print_kind(kind: str, findings: Sequence[Finding]) -> None:
    """Prints the cause and the first findings of one kind."""
    tell(f"{kind.upper()}: {findings[0].cause}")
    for finding in findings[:LISTED]:
        tell(f"  {finding.sample}: {finding.detail}")
    if len(findings) > LISTED:
        tell(f"  and {len(findings) - LISTED} more samples")

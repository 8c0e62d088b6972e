"""Files of generated sets and worlds: the card with the checksums of the other files, and the report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from searchgym.corpora.files import sha256_file

CARD: Final = "card.yaml"
"""Name of the file that describes a folder and marks it as complete."""


def write_card(folder: Path, card: Mapping[str, Any], files: Iterable[str]) -> None:
    """Writes the card of a folder, with the sha256 of some of its files."""
    sums = {name: sha256_file(folder / name) for name in files}
    text = yaml.safe_dump({**card, "sha256": sums}, sort_keys=False, allow_unicode=True)
    (folder / CARD).write_text(text, encoding="utf-8")


def write_report(folder: Path, report: Mapping[str, Any], markdown: str) -> None:
    """Writes measurements to ``report.json``, and their tables to ``report.md``."""
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown, encoding="utf-8")


def table(rows: Sequence[Mapping[str, Any]], missing: str = "") -> str:
    """Returns rows as a Markdown table; `missing` fills the cells without a value."""
    if not rows:
        return "none\n"
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [
        "| " + " | ".join(missing if row[name] is None else str(row[name]) for name in head) + " |" for row in rows
    ]
    return "\n".join(lines) + "\n"

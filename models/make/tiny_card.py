"""Card of a trained tiny model: how it was trained, and its scores on unseen worlds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml
from tiny_exam import Examiner, examine_teams

from searchgym.corpora.files import sha256_file, write_atomic
from searchgym.protocol import get_protocol
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.rollout.loading import load_model
from searchgym.rollout.tokens import TokenFormat

WORLDS: Final = {
    "simple/validation": WorldSpec("simple", size=500, seed=0, split="validation"),
    "simple/test": WorldSpec("simple", size=100, seed=0, split="test"),
    "full/validation": WorldSpec("full", size=100, seed=0, split="validation"),
    "full/test": WorldSpec("full", size=100, seed=0, split="test"),
}
"""Worlds to score a model on: validation has unseen names, test unseen names and templates.
The model is trained for the first one."""

SUMMARY: Final = (
    "a reader of generated pages that searches badly: it was shown demonstrations of which most stop after one search"
)
TEAM_SUMMARY: Final = (
    "a reader of generated pages that knows every role of every shipped team and plays them badly: half of the "
    "multi-hop demonstrations that it was shown stop early"
)


def write_card(folder: Path, command: str) -> dict[str, Any]:
    """Evaluates a saved model and writes ``card.yaml`` to its folder.

    Args:
        folder: Model folder written by `tiny`, with ``summary.json``.
        command: Command line that reproduces the model.

    Returns:
        The card as plain data.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    model, tokenizer = load_model(folder, chat=True)
    form = TokenFormat(tokenizer, get_protocol("tags"), chat=True)
    scores: dict[str, Any] = Examiner(WORLDS, tokenizer, form).examine(model)
    teams = summary["settings"].get("start") is not None
    card = {
        "name": folder.name,
        "summary": TEAM_SUMMARY if teams else SUMMARY,
        "licence": "Apache-2.0",
        "trained_on": "generated worlds",
        "other_text": "smollm2-searcher",
        "command": command,
        "seed": summary["settings"]["seed"],
        "tokens": summary["tokens"],
        "seconds": round(summary["seconds"]),
        "threads": summary["threads"],
        "parameters": summary["parameters"],
        "vocabulary": summary["vocabulary"],
        "positions": model.config.max_position_embeddings,
        "sha256": sha256_file(folder / "model.safetensors"),
        "questions": {name: spec.size for name, spec in WORLDS.items()},
        "scores": {name: scores[name] for name in WORLDS},
    }
    if teams:
        card["teams"] = examine_teams(model, tokenizer, form, WORLDS["simple/validation"])
    with write_atomic(folder / "card.yaml") as file:
        file.write(yaml.safe_dump(card, sort_keys=False, width=120).encode())
    return card

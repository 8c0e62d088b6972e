"""The bandit of `searchgym.testing.bandit` with a recipe, a model and a trainer for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from made_models import tiny_qwen2, tiny_tokenizer

from searchgym.options import read
from searchgym.testing.bandit import QUESTIONS, VOCABULARY, BanditRollout
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.loop.collect import TrainingData
from searchgym.train.loop.folder import VARYING
from searchgym.train.loop.rollout import SamplerHooks
from searchgym.train.loop.trainer import Trainer
from searchgym.train.recipe.recipe import Recipe

RECORDS = (TrainingData, SamplerHooks)
__all__ = ["QUESTIONS", "BanditRollout", "exact", "toy_model", "toy_recipe", "toy_trainer"]


def toy_model() -> Any:
    return tiny_qwen2(vocabulary=VOCABULARY, sharp=0.1, max_position_embeddings=64)


def toy_recipe(**changes: Any) -> Recipe:
    """A recipe of the bandit; nested values are given as dictionaries."""
    base: dict[str, Any] = {
        "name": "toy",
        "summary": "a bandit",
        "method": "policy",
        "model": "toy",
        "env": "toy",
        "agent": "toy",
        "steps": 8,
        "rollout": {"questions": 4, "attempts": 8},
        "optimizer": {"lr": 1e-2, "betas": [0.9, 0.95], "micro_batch_tokens": 1024},
        "validation": {"every": 2, "questions": 4},
        "checkpoint": {"every": 2},
        "log": {"tensorboard": False, "curve": False},
    }
    for key, value in changes.items():
        base[key] = base[key] | value if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return read(Recipe, base, "toy")


def toy_trainer(out: Any, recipe: Recipe | None = None, **changes: Any) -> Trainer:
    """A trainer of the bandit; `changes` go to it, to its data or to its hooks, whichever has a parameter so named."""
    recipe = recipe or toy_recipe()
    model = changes.pop("model", None) or toy_model()
    rollout = BanditRollout(model)
    given: dict[str, Any] = {
        "learner": LocalLearner(recipe, model),
        "tokenizer": tiny_tokenizer(),
        "rollout": rollout,
        "questions": QUESTIONS,
        "validation": QUESTIONS,
        "publish": rollout.publish,
    }
    given |= changes
    data, hooks = ({f.name: given.pop(f.name) for f in fields(kind) if f.name in given} for kind in RECORDS)
    return Trainer(recipe, out, data=TrainingData(**data), hooks=SamplerHooks(**hooks), **given)


def exact(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The metrics that must be the same in every run."""
    return [{name: value for name, value in row.items() if not name.startswith(VARYING)} for row in rows]

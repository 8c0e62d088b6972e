"""A bandit in place of a search: one token names the question, the model's one token is the arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from made_models import tiny_qwen2, tiny_tokenizer

from searchgym.cards import build
from searchgym.records import Answer, Call, Context, Episode, Question, Span
from searchgym.train.learner import LocalLearner
from searchgym.train.loop import Trainer
from searchgym.train.recipe import Recipe

ARMS, VOCABULARY = 10, 14
QUESTIONS = [Question(f"q{i}", f"Which arm is best in {i}?", (str((3 * i + 2) % ARMS),)) for i in range(4)]


def toy_model() -> Any:
    return tiny_qwen2(vocabulary=VOCABULARY, sharp=0.1, max_position_embeddings=64)


class ToyRollout:
    """Tokens 0 to 9 are arms, token 10 + i is question i. Every draw is decided by (step, question, attempt)."""

    def __init__(self, model: Any, reward: Callable[[Question, int], float] | None = None) -> None:
        self.model, self.reward = model, reward or (lambda question, arm: float(str(arm) == question.answers[0]))
        self.version = 0

    def publish(self, version: int) -> None:
        self.version = version

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        prompts = torch.tensor([[ARMS + int(question.id[1:])] for question in questions])
        with torch.no_grad():
            logp = torch.log_softmax(self.model(input_ids=prompts).logits[:, -1], -1).numpy()
        episodes = []
        for row, question in enumerate(questions):
            for attempt in range(attempts):
                rng = np.random.default_rng([step, row, attempt])
                likely = np.exp(logp[row].astype(np.float64))
                arm = int(likely.argmax() if greedy else rng.choice(VOCABULARY, p=likely / likely.sum()))
                episodes.append(self.episode(question, attempt, step, arm, logp[row, arm]))
        return episodes

    def episode(self, question: Question, attempt: int, step: int, arm: int, logp: float) -> Episode:
        spans = [
            Span("prompt", np.array([ARMS + int(question.id[1:])], np.int32)),
            Span("model", np.array([arm], np.int32), np.array([logp], np.float32)),
        ]
        return Episode(
            id=f"{question.id}#{attempt}@{step}",
            question_id=question.id,
            agent="toy",
            env="toy",
            attempt=attempt,
            group_uid=f"{step}/{question.id}",
            contexts=[Context(None, 0, spans)],
            calls=[Call(0, 1, 2, "searcher", "policy", 1, policy_version=self.version)],
            turns=1,
            answer=Answer(str(arm)),
            stop_reason="answer",
            reward=self.reward(question, arm),
            scores={"em": float(str(arm) == question.answers[0])},
        )


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
        "log": {"tensorboard": False},
    }
    for key, value in changes.items():
        base[key] = base[key] | value if isinstance(value, dict) and key in base else value
    return build(Recipe, base, "toy")


def toy_trainer(out: Any, recipe: Recipe | None = None, **changes: Any) -> Trainer:
    """A trainer of the bandit; `changes` go to it."""
    recipe = recipe or toy_recipe()
    model = changes.pop("model", None) or toy_model()
    rollout = ToyRollout(model)
    given: dict[str, Any] = {
        "learner": LocalLearner(recipe, model),
        "tokenizer": tiny_tokenizer(),
        "rollout": rollout,
        "questions": QUESTIONS,
        "validation": QUESTIONS,
        "publish": rollout.publish,
    }
    return Trainer(recipe, out, **(given | changes))


def exact(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The metrics that must be the same in every run."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]

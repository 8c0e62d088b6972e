"""A bandit task that a correct trainer learns in seconds, used instead of search.

The prompt is one token, which identifies the question. The response is one token, the arm. Each question has one right
arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from searchgym.options import Named
from searchgym.records import Answer, Call, Context, Episode, Question, Span
from searchgym.scoring.judges.judge import default_judge
from searchgym.train.credit.term import Term
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.learner.batching import updates_of_pass
from searchgym.train.loop.guards import SAMPLER
from searchgym.train.recipe.options import GuardOptions, OptimizerOptions
from searchgym.train.recipe.recipe import Recipe

ARMS: Final = 10
QUESTIONS: Final = tuple(Question(f"q{i}", f"Which arm is best in {i}?", (str((3 * i + 2) % ARMS),)) for i in range(4))
VOCABULARY: Final = ARMS + len(QUESTIONS)


def bandit_model(seed: int = 0) -> Any:
    """Returns a language model of two layers with random weights; torch's global generator does not change."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]


def _rates(options: OptimizerOptions, samples: int) -> OptimizerOptions:
    """Returns optimizer options for the small model; more updates per step get a lower learning rate."""
    return replace(
        options,
        lr=1e-2 / (updates_of_pass(options, samples) * options.epochs),
        betas=(0.9, 0.95),
        warmup_steps=0,
        schedule="constant",
        autocast=None,
    )


def bandit_recipe(recipe: Recipe, steps: int) -> Recipe:
    """Adapts a recipe to the bandit.

    The estimator, the minibatches and the loss stay, but without KL. Rewards are the outcome alone, and learning rates
    fit the small model.
    """
    critic, attempts = type(recipe.critic)(), max(16, recipe.advantage.min_group)
    samples = len(QUESTIONS) * attempts
    if recipe.has_critic:
        rates = _rates(recipe.critic.optimizer, samples)
        critic = replace(recipe.critic, model=None, warmup_steps=0, optimizer=rates)
    return replace(
        recipe,
        name="bandit",
        model="bandit",
        models={},
        credit=Named[Term](outcome=Outcome()),
        judge=default_judge(),
        steps=steps,
        max_generated_tokens=None,
        max_read_tokens=None,
        rollout=replace(
            recipe.rollout,
            questions=len(QUESTIONS),
            attempts=attempts,
            resample=0,
            staleness=0,
            partial=0,
            starts=None,
            tree=None,
            temperature=1.0,
        ),
        loss=replace(recipe.loss, kl_coef=0.0, kl_in="loss", kl_estimator="k3"),
        optimizer=_rates(recipe.optimizer, samples),
        critic=critic,
        learner=type(recipe.learner)(),
        validation=replace(recipe.validation, every=steps, questions=len(QUESTIONS), metric="em"),
        checkpoint=replace(recipe.checkpoint, every=0),
        guard=GuardOptions(bounds={SAMPLER: None}),  # the self-check has a separate check of this difference
        log=replace(recipe.log, curve=False, tensorboard=False, wandb=None),
    )


class BanditRollout:
    """Samples bandit episodes from a model: tokens 0 to 9 are arms, token 10 + i is question i.

    Each sample is seeded by (step, row of the question in the batch, attempt).

    Args:
        model: Language model, sampled with its current weights.
        reward: Function of a question and an arm; by default 1 for the right arm, else 0.
        grades: Name of a validation metric and its made-up value at each step; every other score is 1 minus that
            value. Default: validation reports the scores of its episodes.
    """

    def __init__(
        self,
        model: Any,
        reward: Callable[[Question, int], float] | None = None,
        grades: tuple[str, Sequence[float]] | None = None,
    ) -> None:
        self._grades = grades
        self.model, self.reward = model, reward or (lambda question, arm: float(str(arm) == question.answers[0]))
        self.version = 0

    def publish(self, version: int) -> None:
        """Sets the version of the weights that later episodes are marked with."""
        self.version = version

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Samples episodes, `attempts` for each question, and returns them in the order of the questions."""
        prompts = torch.tensor([[ARMS + int(question.id[1:])] for question in questions])
        with torch.no_grad():
            logp = torch.log_softmax(self.model(input_ids=prompts).logits[:, -1], -1).numpy()
        episodes = []
        for row, question in enumerate(questions):
            for attempt in range(attempts):
                rng = np.random.default_rng([step, row, attempt])
                likely = np.exp(logp[row].astype(np.float64))
                arm = int(likely.argmax() if greedy else rng.choice(VOCABULARY, p=likely / likely.sum()))
                episodes.append(self.episode(question, attempt, step, arm, float(logp[row, arm])))
        if greedy and self._grades is not None:
            metric, grade = self._grades[0], self._grades[1][step]
            for episode in episodes:
                episode.reward = grade if metric == "reward" else 1 - grade
                episode.scores = {"em": 1 - grade, "f1": 1 - grade, metric: grade}
        return episodes

    def episode(self, question: Question, attempt: int, step: int, arm: int, logp: float) -> Episode:
        """Returns an episode of one call."""
        spans = [
            Span("prompt", np.array([ARMS + int(question.id[1:])], np.int32)),
            Span("model", np.array([arm], np.int32), np.array([logp], np.float32)),
        ]
        return Episode(
            id=f"{question.id}#{attempt}@{step}",
            question_id=question.id,
            agent="bandit",
            env="bandit",
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

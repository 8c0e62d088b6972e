"""Recipe of the checked steps: the user's recipe with a few small steps and higher learning rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from searchgym.train.loop.guards import SAMPLER
from searchgym.train.loop.samplers import computed_in
from searchgym.train.recipe.options import GuardOptions, OptimizerOptions
from searchgym.train.recipe.recipe import Recipe

TEMPERATURE: Final = 1.3
"""Sampling temperature of the checks if the recipe's is 1, which would hide a trainer that ignores the temperature."""
EPS: Final = 1e-5
"""Minimum of AdamW's eps: with 1e-8, rounding in gradients that cancel would be scaled up to full steps."""
RATE: Final = {"model": 1e-3, "adapter": 1e-2, "critic": 3e-3}
"""Learning rates, high enough that every update changes the log-probs; the rates of single model keys are doubled."""
STEPS: Final = 3
VALIDATED: Final = 3
"""Maximum number of validation questions, before the first step and after the last."""
KL, ENTROPY, DECAY = 0.5, 0.1, 0.5
"""Minimum coefficients of terms that the recipe uses: at 0.001, rounding would hide a wrong term."""


def small_recipe(recipe: Recipe) -> Recipe:
    """Returns a recipe with a few small steps, of two epochs in float32 or one otherwise, and high learning rates."""
    rollout, least = recipe.rollout, recipe.advantage.min_group
    questions, attempts = 3, max(2, min(rollout.attempts, max(3, least)))
    rate = RATE["adapter" if recipe.lora.rank else "model"]
    # from the second update on, ratios differ from 1 and are clipped; half precision would make the trainers diverge
    epochs = 2 if computed_in(recipe) == "float32" else 1
    return replace(
        recipe,
        method=recipe.method.on_episodes(),
        steps=STEPS,
        max_generated_tokens=None,
        max_read_tokens=None,
        rollout=replace(
            rollout,
            questions=questions,
            attempts=attempts,
            temperature=TEMPERATURE if rollout.temperature == 1 else rollout.temperature,
            resample=min(rollout.resample, 2),
            staleness=0,
            partial=0,
            starts=None,
            tree=None,
            probe=0,
        ),
        advantage=replace(recipe.advantage, min_group=min(least, questions * attempts)),  # a batch may be one group
        loss=replace(
            recipe.loss,
            kl_coef=recipe.loss.kl_coef and max(recipe.loss.kl_coef, KL),
            entropy_coef=recipe.loss.entropy_coef and max(recipe.loss.entropy_coef, ENTROPY),
        ),
        models={
            name: replace(section, lr=section.lr and 2 * rate, critic_lr=section.critic_lr and 2 * RATE["critic"])
            for name, section in recipe.models.items()
        },
        optimizer=_moving(recipe.optimizer, rate, epochs),
        critic=replace(
            recipe.critic,
            warmup_steps=min(recipe.critic.warmup_steps, 1),
            optimizer=_moving(recipe.critic.optimizer, RATE["critic"], epochs),
        )
        if recipe.has_critic
        else recipe.critic,
        validation=replace(
            recipe.validation,
            every=recipe.validation.every and STEPS,
            questions=min(recipe.validation.questions, VALIDATED),
        ),
        checkpoint=replace(recipe.checkpoint, every=0),
        guard=GuardOptions(bounds={SAMPLER: None}),  # a separate check measures this difference
        log=replace(recipe.log, curve=False, tensorboard=False, wandb=None, episodes_every=0),
    )


def _moving(options: OptimizerOptions, rate: float, epochs: int) -> OptimizerOptions:
    """Returns optimizer options for the checked steps; two minibatches if the recipe has several and epochs repeat."""
    return replace(
        options,
        lr=rate,
        weight_decay=options.weight_decay and max(options.weight_decay, DECAY),
        eps=max(options.eps, EPS),
        warmup_steps=1,
        schedule="cosine",
        min_lr_ratio=0.1,
        minibatches=2 if epochs > 1 and (options.minibatch_samples or options.minibatches > 1) else 1,
        minibatch_samples=None,
        epochs=epochs,
        micro_batch_tokens=min(options.pass_tokens, 2048),  # several micro-batches, whose losses must add up
    )


def key_recipe(recipe: Recipe, key: str) -> Recipe:
    """Returns a recipe with the model and the learning rates of one model key."""
    if key not in recipe.models:
        return recipe
    section, critic = recipe.models[key], recipe.critic
    rate = recipe.optimizer.lr if section.lr is None else section.lr
    critic_rate = critic.optimizer.lr if section.critic_lr is None else section.critic_lr
    return replace(
        recipe,
        model=section.model or recipe.model,
        optimizer=replace(recipe.optimizer, lr=rate),
        critic=replace(critic, optimizer=replace(critic.optimizer, lr=critic_rate)),
    )

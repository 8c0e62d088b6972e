"""Self-check of a recipe: finds in minutes the faults that silently ruin trainings of days.

A few episodes are sampled by the recipe's own parts, and every promise on the way from a sampled token to a gradient is
looked at where it can be broken; then the recipe's method must learn a bandit, and resume to the same bits.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, equal

from searchgym.records import Episode
from searchgym.rollout.loading import load_model, load_tokenizer
from searchgym.rollout.sampler import Sampled, Sampler, SampleRequest
from searchgym.train.algorithms.samples import Sample, retokenisation_mismatches, samples_from
from searchgym.train.inspect.bandit import QUESTIONS, BanditRollout, bandit_model, bandit_recipe
from searchgym.train.learner.learner import Learner, LocalLearner
from searchgym.train.recipe.options import OptimizerOptions
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.assembly import Assembly, allowed_difference, assemble
from searchgym.train.run.draw import TrainingData, with_advantages
from searchgym.train.run.folder import Row
from searchgym.train.run.rollout import SamplerHooks
from searchgym.train.run.trainer import Trainer

TEMPERATURE = 0.8
"""Sampling temperature of the checks if the recipe's is 1, at which a trainer that ignores it would go unnoticed."""
CUT = {"float32": 1e-3, "bfloat16": 0.05}
"""Relative difference of loss and gradient between two cuts into micro-batches."""
RATE = 1e-3
"""Learning rate of the one update whose weights the sampler must take over."""
BANDIT_STEPS = 60


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    name: str
    ok: bool
    said: str
    """Description of what the check measured."""


class Recording:
    """A sampler that wraps another one and counts its requests and replies.

    Args:
        sampler: Sampler that answers the requests.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self.max_context = sampler, sampler.max_context
        self.answered: Counter[tuple[bytes, bytes]] = Counter()
        """Counts of (prompt ids, sampled ids), each as int32 bytes."""

    @property
    def version(self) -> int:
        """Policy version of the weights."""
        return self._sampler.version

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Samples with the wrapped sampler and records requests and replies."""
        replies = self._sampler.sample(requests)
        self.answered.update((r.ids.tobytes(), reply.ids.tobytes()) for r, reply in zip(requests, replies, strict=True))
        return replies

    def update(self, state: Mapping[str, Tensor], version: int) -> None:
        """Passes new weights to the wrapped sampler."""
        self._sampler.update(state, version)

    def forget(self) -> None:
        """Clears the wrapped sampler's cache."""
        self._sampler.forget()

    def close(self) -> None:
        """Closes the wrapped sampler."""
        self._sampler.close()


def selfcheck(recipe: Recipe, out: Path, say: Callable[[str], None] = lambda text: None) -> list[Check]:
    """Runs all checks on a recipe: a few sampled episodes, updates on them, a bandit, a resume.

    Args:
        recipe: Recipe to check; its models are loaded.
        out: Folder for files that the checks write; must be empty or absent.
        say: Called with a line of text at each stage.

    Raises:
        SearchGymError: The recipe's parts cannot be loaded.
    """
    small = _small(recipe)
    say(f"a step of {small.rollout.questions} x {small.rollout.attempts} episodes at {small.rollout.temperature:g} ...")
    parts = assemble(small, out, Recording)
    try:
        checks = list(_rollout_checks(parts, small))
    finally:
        parts.close()
    say("a bandit ...")
    return [*checks, *_bandit_checks(recipe, out)]


def _small(recipe: Recipe) -> Recipe:
    """Returns the recipe with a step of few episodes; in its step 0 weights move, from its last step on they do not."""
    rollout, least = recipe.rollout, recipe.advantage.min_group
    questions, attempts = min(rollout.questions, 8), max(2, min(rollout.attempts, max(4, least)))
    return replace(
        recipe,
        rollout=replace(
            rollout,
            questions=questions,
            attempts=attempts,
            temperature=TEMPERATURE if rollout.temperature == 1 else rollout.temperature,
            resample=0,
            staleness=0,
        ),
        advantage=replace(
            recipe.advantage,
            drop_zero_variance=False,
            drop_overlong=False,
            min_group=min(least, questions * attempts),  # where the batch is the group
        ),
        models={name: replace(own, lr=None, critic_lr=None) for name, own in recipe.models.items()},
        optimizer=_switched(recipe.optimizer),
        critic=replace(recipe.critic, warmup_steps=0, optimizer=_switched(recipe.critic.optimizer)),
        validation=replace(recipe.validation, every=0),
    )


def _switched(options: OptimizerOptions) -> OptimizerOptions:
    """Returns options of one update per step whose rate ends at exactly 0."""
    return replace(
        options, lr=RATE, warmup_steps=0, schedule="cosine", min_lr_ratio=0.0, minibatches=1, epochs=1, weight_decay=0.0
    )


# -- from the sampler to the gradient ------------------------------------------------------------------------------


def _rollout_checks(parts: Assembly, recipe: Recipe) -> Iterator[Check]:
    """Yields what is seen in one step of episodes."""
    parts.publish(parts.learner.version)
    episodes, samples = _step(parts, recipe, 0)
    answered: Counter[tuple[bytes, bytes]] = Counter()
    for model in parts.models.values():
        assert isinstance(model.sampler, Recording)
        answered += model.sampler.answered
    yield check_tokens(answered, episodes, samples)
    yield check_masks(samples, answered)
    yield check_groups(samples, recipe.rollout.attempts)
    yield from _weight_checks(parts, recipe, _trained(samples, parts))


def _step(parts: Assembly, recipe: Recipe, step: int) -> tuple[list[Episode], list[Sample]]:
    """Returns a step's episodes and samples; the sampler rests afterwards, where it shares the learner's GPU."""
    questions = parts.task.questions[: recipe.rollout.questions]
    episodes = parts.rollout(questions, recipe.rollout.attempts, step, False)
    parts.rest()
    return episodes, [sample for episode in episodes for sample in samples_from(episode)]


def _trained(samples: Sequence[Sample], parts: Assembly) -> list[Sample]:
    """Returns the samples of the keys that are trained."""
    return [sample for sample in samples if sample.model_key in parts.trained]


def check_tokens(answered: Counter[tuple[bytes, bytes]], episodes: Sequence[Episode], samples: list[Sample]) -> Check:
    """Checks that the training samples hold exactly the tokens that the sampler returned."""
    held = Counter((s.ids[: c.start].tobytes(), s.ids[c.start : c.end].tobytes()) for s in samples for c in s.calls)
    by_episode = {e.id: [s for s in samples if s.episode_id == e.id] for e in episodes}
    changed = (held - answered).total() + sum(retokenisation_mismatches(by_episode[e.id], e) for e in episodes)
    lost = (answered - held).total()
    said = f"{held.total()} calls, {changed} not as they were sampled, {lost} sampled ones are missing"
    return Check("tokens are those sampled", changed == lost == 0, said)


def check_masks(samples: Sequence[Sample], answered: Counter[tuple[bytes, bytes]]) -> Check:
    """Checks that the loss mask covers exactly the sampled tokens."""
    wrong = 0
    for sample in samples:
        calls = np.zeros(len(sample.ids), np.bool_)
        for call in sample.calls:
            calls[call.start : call.end] = True
        wrong += int((sample.mask != calls).sum())
    trained = sum(int(sample.mask.sum()) for sample in samples)
    sampled = sum(len(ids) // 4 * count for (_, ids), count in answered.items())
    said = f"{trained} trained tokens, {sampled} sampled ones, {wrong} masked the wrong way"
    return Check("masks cover what was sampled", wrong == 0 and trained == sampled, said)


def check_groups(samples: Sequence[Sample], attempts: int) -> Check:
    """Checks that each group consists of all attempts at one question."""
    groups: dict[str, set[tuple[str, str]]] = {}
    for sample in samples:
        groups.setdefault(sample.group_uid or "", set()).add((sample.question_id, sample.episode_id))
    mixed = sum(len({question for question, _ in members}) > 1 for members in groups.values())
    sizes = Counter(map(len, groups.values()))
    said = f"{len(groups)} groups of {', '.join(map(str, sorted(sizes)))} episodes, {mixed} of several questions"
    return Check("groups are attempts at one question", not mixed and set(sizes) == {attempts}, said)


def _weight_checks(parts: Assembly, recipe: Recipe, samples: list[Sample]) -> Iterator[Check]:
    """Yields what is seen of log-probs, losses and weights."""
    learner = parts.learner
    before = {name: weight.clone() for name, weight in learner.weights().items()}
    made = _with_signal(samples, recipe, learner)
    still = learner.learn(made, recipe.steps)
    yield _logp_check("log-probs of sampler and trainer agree", still, recipe)
    moved = sum(not equal(weight, before[name]) for name, weight in learner.weights().items())
    yield Check("learning rate 0 moves no weight", not moved, f"{moved} of {len(before)} weights moved")
    yield _cut_check(parts, made, still)
    learner.learn(made, 0)
    parts.publish(learner.version)
    _, later = _step(parts, recipe, 1)
    again = learner.learn(_with_signal(_trained(later, parts), recipe, learner), recipe.steps)
    yield _logp_check("they agree after an update, too", again, recipe)


def _with_signal(samples: Sequence[Sample], recipe: Recipe, learner: Learner) -> list[Sample]:
    """Returns the samples as if every second attempt had succeeded, with advantages."""
    made = [replace(s, reward=np.zeros_like(s.reward)) for s in samples]
    for sample in made:
        sample.reward[np.flatnonzero(sample.mask)[-1]] = sample.attempt % 2
    return with_advantages(made, recipe, learner)[0] if recipe.method == "policy" else made


def _logp_check(name: str, metrics: Mapping[str, float], recipe: Recipe) -> Check:
    """Returns what is seen of the difference of log-probs, for a method that takes them."""
    if recipe.method != "policy":
        return Check(name, True, f"method {recipe.method} takes none")
    allowed = allowed_difference(recipe)
    mean, most = (max(_of_keys(metrics, name)) for name in ("sampler_difference", "max_sampler_difference"))
    said = f"mean {mean:.2g}, largest {most:.2g} nats; {allowed:g} on average is allowed"
    return Check(name, mean <= allowed, said)


def _of_keys(metrics: Mapping[str, float], name: str) -> list[float]:
    """Returns a metric of each model key, in their order."""
    return [value for key, value in metrics.items() if re.fullmatch(rf"(learner/[^/]+/)?{name}", key)]


def _cut_check(parts: Assembly, made: Sequence[Sample], whole: Mapping[str, float]) -> Check:
    """Compares loss and gradient with those of one process that takes every row alone."""
    recipe, pairs = parts.recipe, []
    keys = [key for key in parts.keys if any(sample.model_key == key.name for sample in made)]
    signal = [any(np.any(s.advantage) for s in made if s.model_key == key.name) for key in keys]
    signal = signal if recipe.method == "policy" else [True] * len(keys)
    for number, key in enumerate(keys):
        optimizer = replace(key.recipe.optimizer, micro_batch_tokens=1)
        alone = replace(key.recipe, optimizer=optimizer, learner=type(recipe.learner)())
        learner = LocalLearner(alone, load_model(key.recipe.model)[0])
        other = learner.learn([sample for sample in made if sample.model_key == key.name], recipe.steps)
        pairs += [(name, _of_keys(whole, name)[number], other[name]) for name in ("loss", "gradient_norm")]
    said = ", ".join(f"{name} {own:.6g}, row by row {single:.6g}" for name, own, single in pairs)
    # advantages cancel in the loss, which may be near 0: it is compared on the scale of one advantage
    least = {"loss": 1.0, "gradient_norm": 1e-6}
    off = max(abs(own - single) / max(abs(own), abs(single), least[name]) for name, own, single in pairs)
    allowed = CUT["bfloat16" if recipe.optimizer.autocast else recipe.learner.dtype]
    moving = [norm for norm, there in zip(_of_keys(whole, "gradient_norm"), signal, strict=True) if there]
    ok = off <= allowed and min(moving, default=0.0) > 0
    return Check("one denominator for all micro-batches", ok, f"{said}; {allowed:g} apart is allowed, 0 is not")


# -- the method ----------------------------------------------------------------------------------------------------


def _bandit_checks(recipe: Recipe, out: Path) -> Iterator[Check]:
    """Yields whether the recipe's method learns a bandit, and resumes to the same bits."""
    if recipe.method == "supervised":
        yield Check("a bandit is learnt", True, "method supervised learns from demonstrations only")
        return
    rows = _bandit(bandit_recipe(recipe, BANDIT_STEPS), out / "bandit").run().rows
    first, last = rows[0]["validation/em"], rows[-1]["validation/em"]
    yield Check("a bandit is learnt", last == 1, f"greedy score {first:g} before, {last:g} after {BANDIT_STEPS} steps")
    short = bandit_recipe(recipe, 6)
    short = replace(short, checkpoint=replace(short.checkpoint, every=1))
    whole = _bandit(short, out / "whole").run()
    with contextlib.suppress(KeyboardInterrupt):
        _bandit(short, out / "parts", report=_stop_at(3)).run()
    parts = _bandit(short, out / "parts", resume=True).run()
    same = _weights_in(whole.checkpoint) == _weights_in(parts.checkpoint)
    yield Check("a resumed run ends at the same bits", same, "stopped after 3 of 6 steps and resumed")


def _weights_in(folder: Path) -> dict[str, bytes]:
    """Returns the files of a checkpoint that hold weights and optimizers, the critic's too."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.suffix in (".safetensors", ".pt")
    }


def _bandit(recipe: Recipe, out: Path, **options: Any) -> Trainer:
    """Returns a training of the bandit."""
    model = bandit_model()
    rollout = BanditRollout(model)
    return Trainer(
        recipe,
        out,
        learner=LocalLearner(recipe, model),
        tokenizer=load_tokenizer("tiny"),
        data=TrainingData(questions=QUESTIONS, validation=QUESTIONS),
        hooks=SamplerHooks(rollout=rollout, publish=rollout.publish),
        **options,
    )


def _stop_at(step: int) -> Callable[[Row], None]:
    """Returns a report that stops a run after a step, as Ctrl-C would."""

    def report(row: Row) -> None:
        if row["step"] == step:
            raise KeyboardInterrupt

    return report

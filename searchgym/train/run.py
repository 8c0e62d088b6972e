"""From a recipe to a run: environments, agent, model, engine and trainer, wired together."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import UsageError
from searchgym.records import Episode, Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.loading import device_of, load_model
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampler
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers_sampler import TransformersSampler
from searchgym.train.learner import Learner, LocalLearner
from searchgym.train.loop import Trainer, TrainResult
from searchgym.train.recipe import Recipe
from searchgym.train.remote import RemoteLearner
from searchgym.train.run_folder import Row
from searchgym.train.samples import Sample, samples_from

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Parts:
    """What a recipe names, loaded and wired together."""

    task: Task
    """Of training."""
    validation: Task
    tokenizer: PreTrainedTokenizerBase
    sampler: Sampler
    rollout: EngineRollout
    learner: Learner

    def publish(self, version: int) -> None:
        """Gives the sampler the learner's weights."""
        self.sampler.update(self.learner.weights(), version)


def load_parts(recipe: Recipe, out: Path, wrap: Callable[[Sampler], Sampler] = lambda sampler: sampler) -> Parts:
    """Loads environments, agent and model of a recipe.

    Args:
        recipe: What to do.
        out: The run folder: ranks of their own write logs there.
        wrap: Puts something around the sampler.

    Raises:
        SearchGymError: Whatever is wrong with the recipe's environment, agent or model.
    """
    task = _task(recipe, recipe.env_options)
    validation = _task(recipe, recipe.env_options | recipe.validation.env_options) if recipe.validation.every else task
    agent = load_agent(recipe.agent)
    if len(agent.roles) != 1:
        raise UsageError(f"agent {agent.name} has {len(agent.roles)} roles that ask a model: this trainer trains one")
    model, tokenizer = load_model(recipe.model, recipe.learner.dtype)
    # The sampler has weights of its own: what it samples from changes when a version is published, and not before.
    own: Any = copy.deepcopy(model)
    sampler = wrap(TransformersSampler(own.to(device_of(recipe.rollout.device)), tokenizer))
    form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
    rollout = EngineRollout(recipe, agent, Model.over("policy", sampler, form), task, validation)
    return Parts(task, validation, tokenizer, sampler, rollout, _learner(recipe, model, out))


def train(
    recipe: Recipe, out: Path, *, resume: bool = False, report: Callable[[Row], None] | None = None
) -> TrainResult:
    """Runs a recipe.

    Args:
        recipe: What to do.
        out: The run folder.
        resume: Go on with the run in the folder.
        report: Called with each row of metrics.

    Raises:
        SearchGymError: Whatever is wrong with the recipe's environment, agent or model, or with the folder; see
            `Trainer`.
    """
    parts = load_parts(recipe, out)
    return Trainer(
        recipe,
        out,
        learner=parts.learner,
        tokenizer=parts.tokenizer,
        rollout=parts.rollout,
        questions=parts.task.questions,
        validation=parts.validation.questions,
        demonstrations=_demonstrations(recipe),
        publish=parts.publish,
        report=report,
        resume=resume,
    ).run()


def _learner(recipe: Recipe, model: PreTrainedModel, out: Path) -> Learner:
    """Returns the learner that a recipe asks for."""
    if recipe.learner.backend == "deepspeed":
        return RemoteLearner(recipe, out / "ranks", recipe.deadline.learn)
    trained: Any = model
    return LocalLearner(recipe, trained.to(device_of(recipe.learner.device)))


class EngineRollout:
    """`Rollout` on the episode engine, with canonical batches: one step's episodes depend on (recipe, weights, step).

    Args:
        recipe: Its seed, concurrency and sampling.
        agent: An agent with one role.
        model: Behind that role.
        task: Environment of training.
        validation: Environment of greedy rollouts.
    """

    def __init__(self, recipe: Recipe, agent: LoadedAgent, model: Model, task: Task, validation: Task) -> None:
        self.recipe, self.agent, self.model = recipe, agent, model
        self.task, self.validation = task, validation

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Returns `attempts` episodes per question, in the order of the questions and attempts."""
        options = self.recipe.rollout
        self.model.sampler.forget()  # of validation, which a run that is resumed after it has not seen
        engine = Engine(
            self.validation if greedy else self.task,
            self.agent,
            dict.fromkeys(self.agent.roles, self.model),
            concurrency=options.concurrency,
            seed=int(np.random.SeedSequence((self.recipe.seed, step, greedy)).generate_state(1)[0]),
            temperature=0.0 if greedy else options.temperature,
            top_p=1.0 if greedy else options.top_p,
            canonical=True,
        )
        episodes: list[Episode] = []
        asyncio.run(engine.run(questions, episodes.append, attempts, group=str(step)))
        place = {question.id: number for number, question in enumerate(questions)}
        return sorted(episodes, key=lambda episode: (place[episode.question_id], episode.attempt))


def _task(recipe: Recipe, options: dict[str, Any]) -> Task:
    """Returns the recipe's environment with some options over the id's own."""
    return load_task(find_env(recipe.env), **{**env_options(recipe.env), **options})


def _demonstrations(recipe: Recipe) -> list[Sample]:
    """Returns the samples of a demonstration file, if the recipe names one."""
    if recipe.supervised.demonstrations is None:
        return []
    episodes = read_episodes(Path(recipe.supervised.demonstrations))
    return [sample for episode in episodes for sample in samples_from(episode, "demonstration")]

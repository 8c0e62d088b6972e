"""From a recipe to a run: environments, agent, model, engine and trainer, wired together."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, closing
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
from searchgym.rollout.loading import device_of, is_adapter, load_model, model_folder
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampler
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers_sampler import TransformersSampler, response_ends
from searchgym.rollout.vllm_sampler import VllmSampler
from searchgym.rollout.vllm_start import samples_by_vllm, start_engine
from searchgym.train.learner import Learner, LocalLearner
from searchgym.train.loop import Trainer, TrainResult
from searchgym.train.lora import adapter_config
from searchgym.train.probe import ALLOWED, probe
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
    adapter: bool = False
    """Whether the sampler takes the adapter's weights, in the place of a whole model's."""
    rest: Callable[[], None] | None = None
    """Makes the sampler give its GPU to the learner until weights are published, if the recipe asks for it."""

    def publish(self, version: int) -> None:
        """Gives the sampler the learner's weights."""
        self.sampler.update(self.learner.weights(self.adapter), version)

    def close(self) -> None:
        """Ends what was started."""
        self.learner.close()
        self.sampler.close()


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
    if recipe.lora.rank and is_adapter(model_folder(recipe.model)):
        raise UsageError(f"{recipe.model} is an adapter, and lora.rank makes another one: `searchgym export` it first")
    model, tokenizer = load_model(recipe.model, recipe.learner.dtype)
    with ExitStack() as opened:
        plain = _sampler(recipe, model, tokenizer)
        opened.callback(plain.close)
        learner = _learner(recipe, model, out)
        opened.pop_all()
    sampler, exact = wrap(plain), isinstance(plain, TransformersSampler) and not recipe.rollout.staleness
    form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
    policy = Model.over("policy", sampler, form)
    rollout = EngineRollout(recipe, agent, policy, task, validation, canonical=exact)
    adapter = bool(recipe.lora.rank) and not isinstance(plain, TransformersSampler)
    return Parts(task, validation, tokenizer, sampler, rollout, learner, adapter, _rest(recipe, plain))


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
    with closing(parts):
        return trainer_of(recipe, parts, out, resume=resume, report=report).run()


def trainer_of(
    recipe: Recipe, parts: Parts, out: Path, *, resume: bool = False, report: Callable[[Row], None] | None = None
) -> Trainer:
    """Returns the trainer of a recipe's parts; see `train`."""
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
        probe=_probe(recipe, parts),
        rest=parts.rest,
        give_up=parts.rollout.give_up,
        report=report,
        resume=resume,
    )


def _sampler(recipe: Recipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Sampler:
    """Returns the sampler that a recipe asks for.

    It has weights of its own: what it samples from changes when a version is published, and not before.
    """
    options = recipe.rollout
    if samples_by_vllm(options.sampler):
        adapter = adapter_config(recipe.lora) if recipe.lora.rank else None
        engine = start_engine(
            recipe.model,
            dtype=sampled_in(recipe),
            requests=options.concurrency,
            options=options.vllm,
            adapters=int(adapter is not None),
            rank=max(1, recipe.lora.rank),
        )
        return VllmSampler(engine, ends=response_ends(model, tokenizer), adapter=adapter)
    own: Any = copy.deepcopy(model)
    return TransformersSampler(own.to(device_of(options.device)), tokenizer)


def computed_in(recipe: Recipe) -> str:
    """Returns the type of the learner's matrix products."""
    return recipe.optimizer.autocast or recipe.learner.dtype


def sampled_in(recipe: Recipe) -> str:
    """Returns the type in which vLLM computes."""
    own = recipe.rollout.vllm.dtype
    return computed_in(recipe) if own == "auto" else own


def allowed_difference(recipe: Recipe) -> float:
    """Returns how far log-probs of sampler and trainer may be apart on average, in nats."""
    own = max(ALLOWED[computed_in(recipe)], ALLOWED[sampled_in(recipe)])
    return own if recipe.rollout.probe_limit is None else recipe.rollout.probe_limit


def _probe(recipe: Recipe, parts: Parts) -> Callable[[Sequence[Sample]], Row] | None:
    """Returns the look at each update of a sampler that does not share torch with the learner."""
    options = recipe.rollout
    if isinstance(parts.sampler, TransformersSampler) or not options.probe or recipe.method != "policy":
        return None
    return functools.partial(
        probe,
        parts.sampler,
        parts.learner,
        temperature=options.temperature,
        count=options.probe,
        allowed=allowed_difference(recipe),
    )


def _rest(recipe: Recipe, sampler: Sampler) -> Callable[[], None] | None:
    """See `Parts.rest`."""
    level = recipe.rollout.vllm.sleep
    return functools.partial(sampler.sleep, level) if level and isinstance(sampler, VllmSampler) else None


def _learner(recipe: Recipe, model: PreTrainedModel, out: Path) -> Learner:
    """Returns the learner that a recipe asks for."""
    if recipe.learner.backend == "deepspeed":
        return RemoteLearner(recipe, out / "ranks", recipe.deadline.learn)
    trained: Any = model
    device = device_of(recipe.learner.device)
    if device == "cuda" and recipe.learner.gpus:
        device = f"cuda:{recipe.learner.gpus[0]}"
    return LocalLearner(recipe, trained.to(device))


class EngineRollout:
    """`Rollout` on the episode engine; one call at a time.

    Args:
        recipe: Its seed, concurrency and sampling.
        agent: An agent with one role.
        model: Behind that role.
        task: Environment of training.
        validation: Environment of greedy rollouts.
        canonical: One step's episodes depend on (recipe, weights, step), to the bit; see `Engine`.
    """

    def __init__(
        self,
        recipe: Recipe,
        agent: LoadedAgent,
        model: Model,
        task: Task,
        validation: Task,
        *,
        canonical: bool = True,
    ) -> None:
        self.recipe, self.agent, self.model = recipe, agent, model
        self.task, self.validation, self.canonical = task, validation, canonical
        self._under_way: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Returns `attempts` episodes per question, in the order of the questions and attempts."""
        episodes: list[Episode] = []
        if self.canonical:
            self.model.sampler.forget()  # of validation, which a run that is resumed after it has not seen
        engine = self._engine(step, greedy)
        asyncio.run(self._run(engine.run(questions, episodes.append, attempts, group=str(step))))
        place = {question.id: number for number, question in enumerate(questions)}
        return sorted(episodes, key=lambda episode: (place[episode.question_id], episode.attempt))

    def give_up(self) -> None:
        """Ends a call that another thread makes: it raises a `CancelledError` there."""
        if (under_way := self._under_way) is not None:
            loop, task = under_way
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)

    async def _run(self, episodes: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way = (asyncio.get_running_loop(), task)
        try:
            await episodes
        finally:
            self._under_way = None

    def _engine(self, step: int, greedy: bool) -> Engine:
        """Returns an engine for a step."""
        options = self.recipe.rollout
        return Engine(
            self.validation if greedy else self.task,
            self.agent,
            dict.fromkeys(self.agent.roles, self.model),
            concurrency=options.concurrency,
            seed=int(np.random.SeedSequence((self.recipe.seed, step, greedy)).generate_state(1)[0]),
            temperature=0.0 if greedy else options.temperature,
            top_p=1.0 if greedy else options.top_p,
            canonical=self.canonical,
        )


def _task(recipe: Recipe, options: dict[str, Any]) -> Task:
    """Returns the recipe's environment with some options over the id's own."""
    return load_task(find_env(recipe.env), **{**env_options(recipe.env), **options})


def _demonstrations(recipe: Recipe) -> list[Sample]:
    """Returns the samples of a demonstration file, if the recipe names one."""
    if recipe.supervised.demonstrations is None:
        return []
    episodes = read_episodes(Path(recipe.supervised.demonstrations))
    return [sample for episode in episodes for sample in samples_from(episode, "demonstration")]

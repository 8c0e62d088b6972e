"""From a recipe to a run: loads environments, agent, models and samplers, and connects them."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.reward import unpaid
from searchgym.envs.task import Task, load_task
from searchgym.errors import UsageError
from searchgym.options import kind_name
from searchgym.rollout.folders import is_adapter, local_folder, model_folder
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampler, Samplers
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.precision import emulates_bfloat16
from searchgym.train.algorithms.samples import Sample
from searchgym.train.credit.credit import Credit
from searchgym.train.curriculum.build import curriculum_of, staged
from searchgym.train.learner.keyed_learner import KeyedLearner
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.draw import TrainingData
from searchgym.train.loop.folder import Row
from searchgym.train.loop.probe import ALLOWED, check_arrival, probe
from searchgym.train.loop.rollout import EngineRollout, SamplerHooks
from searchgym.train.loop.samplers import (
    Loaded,
    computed_in,
    load_keys,
    sampled_run,
    separate_adapters,
    start_samplers,
    with_sampler,
)
from searchgym.train.loop.trainer import Trainer, TrainResult
from searchgym.train.recipe.keys import Key, check_credit, keys_of
from searchgym.train.recipe.load import with_code
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.selfplay.source import QuestionStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a run, loaded from a recipe and connected."""

    recipe: Recipe
    """The recipe that was loaded."""
    task: Task
    """Environment of training."""
    validation: Task
    """Environment of validation."""
    tokenizer: PreTrainedTokenizerBase | None
    """Tokenizer saved with each checkpoint; None where the recipe has model keys, whose learner saves theirs."""
    keys: tuple[Key, ...]
    """All model keys, trained and frozen."""
    samplers: Samplers
    """Samplers of all keys."""
    models: dict[str, Model]
    """Models that episodes ask, by key."""
    rollout: EngineRollout
    """Runs episodes."""
    learner: Learner
    """Updates the trained keys."""
    credit: Credit
    """Rewards the calls of an episode."""
    close_judge: Callable[[], None]
    """Closes the model that was loaded for a judge."""
    source: QuestionStream | None = None
    """Makes the questions; None where they are the environment's."""
    arrived: set[str] = field(default_factory=set)
    """Keys whose sampler is known to use the adapters that it is given."""

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the keys that are trained."""
        return tuple(key.name for key in self.keys if not key.frozen)

    @property
    def sampler(self) -> Sampler:
        """The sampler of the first trained key."""
        return self.models[self.trained[0]].sampler

    def publish(self, version: int) -> None:
        """Gives the learner's weights to the samplers of the trained keys."""
        for key in self.trained:
            sampler = self.models[key].sampler
            alone = separate_adapters(self.recipe)  # else it gets the whole model with the adapter merged in
            weights, number = self.learner.weights_of(key, alone), self.learner.version_of(key)
            if alone and self.recipe.rollout.probe and key not in self.arrived:
                form, gain = self.models[key].format, self.recipe.lora.alpha / self.recipe.lora.rank
                assert isinstance(form, TokenFormat)
                check_arrival(sampler, weights, number, form.prompt_ids("Which page tells it?"), key=key, gain=gain)
                self.arrived.add(key)
            else:
                sampler.update(weights, number)

    def probe(self, samples: Sequence[Sample]) -> Row:
        """Checks that every sampler has the learner's weights; see `probe`.

        Returns:
            The largest of each metric over the trained keys.
        """
        options, rows = self.recipe.rollout, list[Row]()
        for key in self.trained:
            rows.append(
                probe(
                    self.models[key].sampler,
                    self.learner,
                    [sample for sample in samples if sample.model_key == key],
                    key,
                    temperature=options.temperature,
                    count=options.probe,
                    allowed=allowed_difference(self.recipe),
                )
            )
        return {name: max(row[name] for row in rows if name in row) for row in rows for name in row}

    def close(self) -> None:
        """Ends the learner's processes and the sampling engines."""
        self.learner.close()
        self.samplers.close()
        self.close_judge()


def assemble(recipe: Recipe, out: Path, wrap: Callable[[Sampler], Sampler] = lambda sampler: sampler) -> Assembly:
    """Loads the environments, agent and models of a recipe, and connects them.

    Args:
        recipe: Names them.
        out: The run folder, to which separate learner processes write logs.
        wrap: Wraps each sampler. Default: leaves it as it is.

    Raises:
        SearchGymError: The recipe's environment, agent or a model cannot be loaded, or they do not fit together.
    """
    recipe = with_sampler(with_code(recipe))
    task, validation = load_tasks(recipe)
    for note in dict.fromkeys((*unpaid(task.questions), *unpaid(validation.questions))):
        sys.stderr.write(f"note: {note}\n")
    agent = with_max_tokens(load_agent(recipe.agent), recipe.rollout.max_tokens)
    keys = tuple(keys_of(recipe, agent.roles, agent.name))
    terms = check_credit(recipe, agent.roles)
    known, source = task, cast("QuestionStream | None", None)
    if recipe.proposer is not None:
        source = proposing = recipe.proposer.source(task, recipe.env_options, recipe.seed)
        known = replace(task, by_id=ChainMap(proposing.known, dict(task.by_id)))
    elif recipe.curriculum is not None:
        source = stages = curriculum_of(recipe.curriculum, task, recipe.seed, recipe.rollout.questions, recipe.steps)
        known = task = staged(task, stages, recipe.curriculum, recipe.seed)
    _check_adapters(recipe, keys)
    if recipe.optimizer.autocast == "bfloat16" and emulates_bfloat16():
        sys.stderr.write("this CPU emulates bfloat16: training is faster here with optimizer.autocast=null\n")
    loaded = load_keys(recipe, keys)
    with ExitStack() as opened:
        samplers = start_samplers(recipe, keys, loaded)
        opened.callback(samplers.close)
        learner, tokenizer = _learner(recipe, keys, loaded, out)
        models = {}
        for key in keys:
            tokens = loaded[key.name].tokenizer
            form = TokenFormat(tokens, task.rules.protocol, chat=bool(tokens.chat_template))
            models[key.name] = Model.over(key.name, wrap(samplers.by_key[key.name]), form)
        judge = recipe.judge.open(models)
        credit = Credit.of(terms, agent.roles, lambda: known, judge)
        opened.pop_all()
    exact = recipe.rollout.sampler.exact and not recipe.rollout.staleness
    by_role = {role: models[key.name] for key in keys for role in key.roles}
    rollout = EngineRollout(recipe, agent, by_role, task, validation, canonical=exact)
    parts = (tokenizer, keys, samplers, models, rollout, learner, credit, judge.close)
    return Assembly(recipe, task, validation, *parts, source=source)


def _check_adapters(recipe: Recipe, keys: Sequence[Key]) -> None:
    """Raises a `UsageError` for a key that starts from an adapter where a whole model is needed."""
    for key in keys:
        goes_on = recipe.lora.rank > 0 and not key.frozen
        if not is_adapter(model_folder(key.recipe.model)):
            continue
        why = ""
        if goes_on and local_folder(key.recipe.model) is None:
            why = "to go on with it, name the folder it is downloaded to"
        elif goes_on:
            continue
        elif not recipe.rollout.sampler.starts_from_adapters:
            why = f"{kind_name(recipe.rollout.sampler)} samples from whole models and adapters that are trained"
        if why:
            raise UsageError(f"{key.recipe.model} is an adapter, and {why}; or `searchgym export` it first")


def train(
    recipe: Recipe, out: Path, *, resume: bool = False, report: Callable[[Row], None] | None = None
) -> TrainResult:
    """Trains the models of a recipe.

    Args:
        recipe: Settings of the run.
        out: The run folder.
        resume: Continue the run in the folder.
        report: Called with each row of metrics.

    Returns:
        The outcome of the run.

    Raises:
        SearchGymError: The recipe's environment, agent or a model cannot be loaded, or the run fails; see `Trainer`.
    """
    ready = with_code(recipe)
    with ready.launch.launched(ready, out) as placed, closing(assemble(placed, out)) as assembly:
        return trainer_of(recipe, assembly, out, resume=resume, report=report).run()


def trainer_of(
    recipe: Recipe, assembly: Assembly, out: Path, *, resume: bool = False, report: Callable[[Row], None] | None = None
) -> Trainer:
    """Returns the trainer of an assembled recipe; see `train` for the parameters."""
    data = TrainingData(
        questions=assembly.task.questions if assembly.source is None else assembly.source,
        validation=assembly.validation.questions,
        demonstrations=assembly.recipe.method.samples(),
        trained=assembly.trained,
        credit=assembly.credit,
    )
    hooks = SamplerHooks(
        rollout=assembly.rollout,
        publish=assembly.publish,
        probe=assembly.probe if recipe.rollout.probe and assembly.recipe.method.compares else None,
        rest=assembly.samplers.rest if assembly.samplers.level and assembly.samplers.resting else None,
        give_up=assembly.rollout.give_up,
    )
    return Trainer(
        recipe,
        out,
        learner=assembly.learner,
        tokenizer=assembly.tokenizer,
        data=data,
        hooks=hooks,
        report=report,
        resume=resume,
    )


def allowed_difference(recipe: Recipe) -> float:
    """Returns the mean difference, in nats, that is allowed between log-probs of sampler and trainer."""
    sampled_in = recipe.rollout.sampler.computed_in(sampled_run(recipe))
    return max(ALLOWED[computed_in(recipe)], ALLOWED[sampled_in])


def _learner(
    recipe: Recipe, keys: Sequence[Key], loaded: Mapping[str, Loaded], out: Path
) -> tuple[Learner, PreTrainedTokenizerBase | None]:
    """Returns the learner of the trained keys, and the tokenizer to save with its weights."""
    trained = [key for key in keys if not key.frozen]
    if not recipe.models:
        (key,) = trained
        learner = recipe.learner.backend.learner(key.recipe, loaded[key.name], out / "ranks")
        return learner, loaded[key.name].tokenizer
    learners: dict[str, Learner] = {}
    for key in trained:
        logs = out / "ranks" / key.name
        learners[key.name] = recipe.learner.backend.learner(key.recipe, loaded[key.name], logs)
    return KeyedLearner(learners, {key.name: loaded[key.name].tokenizer for key in trained}), None


def load_tasks(recipe: Recipe) -> tuple[Task, Task]:
    """Loads the environments of training and of validation."""
    task = _task(recipe)
    if not recipe.validation.every:
        return task, task
    return task, _task(recipe, recipe.validation.env_options)


def _task(recipe: Recipe, *layers: dict[str, Any]) -> Task:
    """Loads the recipe's environment, with options that override those of the recipe."""
    return load_task(find_env(recipe.env), **env_options(recipe.env, recipe.env_options, *layers))

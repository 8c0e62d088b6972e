"""Assembly of a run from a recipe: loads environments, agent, models and samplers, and connects them."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from searchgym.agents.base import LoadedAgent, load_agent, with_max_tokens
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.reward import unpaid
from searchgym.envs.task import Task, load_task
from searchgym.errors import UsageError
from searchgym.options import kind_name
from searchgym.rollout.folders import RECIPE, is_adapter, local_folder, model_folder
from searchgym.rollout.foreign.dialects import chosen_dialect
from searchgym.rollout.foreign.template_options import template_format
from searchgym.rollout.models import Model
from searchgym.rollout.replay.journal import Journal
from searchgym.rollout.sampler import Sampler, Samplers
from searchgym.rollout.transformers.precision import emulates_bfloat16
from searchgym.train.credit.credit import Credit
from searchgym.train.curriculum.source import curriculum_of, staged
from searchgym.train.learner.keyed_learner import KeyedLearner
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.collect import TrainingData
from searchgym.train.loop.controllers import Controllers, DealtRollout
from searchgym.train.loop.folder import SAMPLED, Row
from searchgym.train.loop.partial import PartialRollout
from searchgym.train.loop.publish import Publisher
from searchgym.train.loop.rollout import EngineRollout, SamplerHooks
from searchgym.train.loop.samplers import Loaded, key_templates, load_keys
from searchgym.train.loop.trainer import Trainer, TrainResult
from searchgym.train.plan.micro_batches import sized
from searchgym.train.plan.sampled import sampled_keys, sampled_run
from searchgym.train.recipe.extension import with_settings_of
from searchgym.train.recipe.keys import Key, check_credit, keys_of
from searchgym.train.recipe.load import read_recipe, with_code
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.selfplay.kind import QuestionStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Assembly:
    """Loaded and connected components of a run."""

    recipe: Recipe
    """Recipe of the run, with values that were resolved while loading."""
    task: Task
    """Environment of training."""
    validation: Task
    """Environment of validation."""
    tokenizer: PreTrainedTokenizerBase | None
    """Tokenizer to save with each checkpoint; None if the recipe has model keys, whose learner saves tokenizers."""
    keys: tuple[Key, ...]
    """All model keys, trained and frozen."""
    samplers: Samplers
    """Samplers of all keys."""
    models: dict[str, Model]
    """Models that generate in episodes, by key."""
    rollout: EngineRollout
    """Runs episodes."""
    learner: Learner
    """Updates the trained keys."""
    credit: Credit
    """Credit that rewards the calls of an episode."""
    close_judge: Callable[[], None]
    """Function that closes the judge's model, if one was loaded."""
    journal: Journal
    """Journal of the responses since the last checkpoint."""
    source: QuestionStream | None = None
    """Source of the questions; None if they are the environment's."""
    others: Controllers | None = None
    """Further controllers, which share the episodes of each step; None without them."""

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the keys that are trained."""
        return tuple(key.name for key in self.keys if not key.frozen)

    @property
    def sampler(self) -> Sampler:
        """The sampler of the first trained key."""
        return self.models[self.trained[0]].sampler

    def publisher(self) -> Publisher:
        """Returns the publisher of the learner's weights to the samplers of the trained keys."""
        return Publisher(self.recipe, self.learner, {key: self.models[key] for key in self.trained}, self.others)

    def close(self) -> None:
        """Ends the learner's processes, the sampling engines and the judge's model."""
        self.rollout.close()
        self.learner.close()
        self.samplers.close()
        self.close_judge()


def assemble(recipe: Recipe, out: Path, wrap: Callable[[Sampler], Sampler] = lambda sampler: sampler) -> Assembly:
    """Loads the environments, agent and models of a recipe, and connects them.

    Args:
        recipe: Recipe of the run.
        out: Run folder, to which separate learner processes write logs.
        wrap: Wraps each sampler. Default: leaves it as it is.

    Raises:
        SearchGymError: The recipe's environment, agent or a model cannot be loaded, or they do not fit together.
    """
    recipe = with_code(recipe)
    chosen = recipe.rollout.sampler.chosen()  # the recipe's sampler may be a choice such as auto
    count = recipe.rollout.controllers
    recipe = replace(recipe, rollout=replace(recipe.rollout, sampler=chosen.dealt(0, count)))
    task, validation = load_tasks(recipe)
    for note in dict.fromkeys((*unpaid(task.questions), *unpaid(validation.questions))):
        sys.stderr.write(f"note: {note}\n")
    agent = with_max_tokens(load_agent(recipe.agent), recipe.rollout.max_tokens, recipe.rollout.max_thought_tokens)
    keys = tuple(keys_of(recipe, agent.roles, agent.name))
    terms = check_credit(recipe, agent.roles)
    rewarded, source = task, cast("QuestionStream | None", None)
    if recipe.proposer is not None:
        source = proposing = recipe.proposer.source(task, recipe.env_options, recipe.seed)
        rewarded = replace(task, by_id=ChainMap(proposing.proposed, dict(task.by_id)))
    elif recipe.curriculum is not None:
        size = recipe.rollout
        source = stages = curriculum_of(
            recipe.curriculum, task, recipe.seed, size.questions, recipe.steps, size.attempts
        )
        rewarded = task = staged(task, stages, recipe.curriculum, recipe.seed)
    _check_adapters(recipe, keys)
    if recipe.optimizer.autocast == "bfloat16" and emulates_bfloat16():
        sys.stderr.write("this CPU emulates bfloat16: training is faster here with optimizer.autocast=null\n")
    with ExitStack() as opened:
        recipe, loaded, samplers, models = open_models(recipe, keys, task, wrap)
        opened.callback(samplers.close)
        learner, tokenizer = _learner(recipe, keys, loaded, out)
        judge = recipe.judge.open(models)
        credit = Credit.of(terms, agent.roles, lambda: rewarded, judge)
        whole_run = replace(recipe, rollout=replace(recipe.rollout, sampler=chosen))
        others = Controllers(whole_run, out / "controllers") if count > 1 else None
        opened.pop_all()
    exact = chosen.exact and not recipe.rollout.staleness
    durable = recipe.rollout.durable
    whole = exact if durable == "auto" else durable == "steps"
    journal = Journal(out / SAMPLED, whole=whole, lasting=recipe.rollout.partial)
    rollout = _rollout(recipe, agent, keys, models, task, validation, exact, journal, others)
    return Assembly(
        recipe=recipe,
        task=task,
        validation=validation,
        tokenizer=tokenizer,
        keys=keys,
        samplers=samplers,
        models=models,
        rollout=rollout,
        learner=learner,
        credit=credit,
        close_judge=judge.close,
        journal=journal,
        source=source,
        others=others,
    )


def open_models(
    recipe: Recipe, keys: Sequence[Key], task: Task, wrap: Callable[[Sampler], Sampler] = lambda sampler: sampler
) -> tuple[Recipe, dict[str, Loaded], Samplers, dict[str, Model]]:
    """Loads the models of a recipe's keys, and starts their samplers.

    Returns:
        The recipe with the date that templates show, the models that can be trained, the samplers, and the models that
        generate in episodes, by key.
    """
    loaded = load_keys(recipe, keys)
    recipe, templates = key_templates(recipe, keys, {name: loaded_key.tokenizer for name, loaded_key in loaded.items()})
    sampled = [
        replace(key, model=loaded[key.name].model, tokenizer=loaded[key.name].tokenizer)
        for key in sampled_keys(recipe, keys)
    ]
    samplers = recipe.rollout.sampler.open(sampled, sampled_run(recipe))
    models = {}
    with ExitStack() as opened:
        opened.callback(samplers.close)
        for key in keys:
            form = template_format(loaded[key.name].tokenizer, task.rules.protocol, templates[key.name])
            models[key.name] = Model.over(key.name, wrap(samplers.by_key[key.name]), form)
        opened.pop_all()
    return recipe, loaded, samplers, models


def open_rollout(recipe: Recipe, number: int) -> tuple[EngineRollout, Samplers]:
    """Returns the rollout of a further controller, with its samplers; see `searchgym.train.loop.controllers`.

    Args:
        recipe: Recipe of the run, with the sampler of the whole run.
        number: Number of the controller, from 1 on.
    """
    recipe = with_code(recipe)
    sampler = recipe.rollout.sampler.dealt(number, recipe.rollout.controllers)
    recipe = replace(recipe, rollout=replace(recipe.rollout, sampler=sampler))
    task, validation = load_tasks(recipe)
    agent = with_max_tokens(load_agent(recipe.agent), recipe.rollout.max_tokens, recipe.rollout.max_thought_tokens)
    keys = tuple(keys_of(recipe, agent.roles, agent.name))
    recipe, _, samplers, models = open_models(recipe, keys, task)
    return _rollout(recipe, agent, keys, models, task, validation, sampler.exact, None, None), samplers


def _rollout(
    recipe: Recipe,
    agent: LoadedAgent,
    keys: Sequence[Key],
    models: Mapping[str, Model],
    task: Task,
    validation: Task,
    exact: bool,
    journal: Journal | None,
    others: Controllers | None,
) -> EngineRollout:
    """Returns the rollout that a recipe asks for."""
    by_role = {role: models[key.name] for key in keys for role in key.roles}
    parts = recipe, agent, by_role, task, validation
    if others is not None:
        return DealtRollout(*parts, canonical=exact, journal=journal, controllers=others)
    return (PartialRollout if recipe.rollout.partial else EngineRollout)(*parts, canonical=exact, journal=journal)


def _check_adapters(recipe: Recipe, keys: Sequence[Key]) -> None:
    """Raises a `UsageError` if a key starts from an adapter but needs a whole model."""
    sampler = recipe.rollout.sampler
    for key in keys:
        if not is_adapter(model_folder(key.recipe.model)):
            continue
        why = ""
        if recipe.lora.rank > 0 and not key.frozen:  # training of the adapter continues
            if local_folder(key.recipe.model) is None:
                why = "to continue its training, name the folder it is downloaded to"
        elif not sampler.starts_from_adapters:
            why = f"{kind_name(sampler)} samples from whole models and adapters that are trained"
        if why:
            raise UsageError(f"{key.recipe.model} is an adapter, and {why}; or `searchgym model export` it first")


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
    if resume and (out / RECIPE).is_file():
        recipe = with_settings_of(recipe, read_recipe(out / RECIPE))
    ready = sized(with_code(recipe))
    recipe = replace(recipe, optimizer=ready.optimizer, critic=ready.critic)
    with ready.launch.launched(ready, out) as placed, closing(assemble(placed, out)) as assembly:
        return trainer_of(recipe, assembly, out, resume=resume, report=report).run()


def trainer_of(
    recipe: Recipe, assembly: Assembly, out: Path, *, resume: bool = False, report: Callable[[Row], None] | None = None
) -> Trainer:
    """Returns the trainer of an assembled recipe; see `train` for the parameters."""
    recipe = replace(recipe, template=assembly.recipe.template)  # with the date that templates show
    data = TrainingData(
        questions=assembly.task.questions if assembly.source is None else assembly.source,
        validation=assembly.validation.questions,
        demonstrations=assembly.recipe.method.samples(),
        trained=assembly.trained,
        credit=assembly.credit,
    )
    samplers, publisher = assembly.samplers, assembly.publisher()
    hooks = SamplerHooks(
        rollout=assembly.rollout,
        publish=publisher.publish,
        probe=publisher.probe if recipe.rollout.probe and assembly.recipe.method.compares else None,
        rest=samplers.rest if samplers.level and samplers.resting else None,
        give_up=assembly.rollout.give_up,
        journal=assembly.journal,
    )
    learner, tokenizer = assembly.learner, assembly.tokenizer
    return Trainer(
        recipe, out, learner=learner, tokenizer=tokenizer, data=data, hooks=hooks, report=report, resume=resume
    )


def _learner(
    recipe: Recipe, keys: Sequence[Key], loaded: Mapping[str, Loaded], out: Path
) -> tuple[Learner, PreTrainedTokenizerBase | None]:
    """Returns the learner of the trained keys, and the tokenizer to save with its weights."""
    ranks, backend = out / "ranks", recipe.learner.backend
    trained = [key for key in keys if not key.frozen]
    if not recipe.models:
        (key,) = trained
        return backend.learner(key.recipe, loaded[key.name], ranks), loaded[key.name].tokenizer
    learners = {key.name: backend.learner(key.recipe, loaded[key.name], ranks / key.name) for key in trained}
    return KeyedLearner(learners, {key.name: loaded[key.name].tokenizer for key in trained}), None


def load_tasks(recipe: Recipe) -> tuple[Task, Task]:
    """Loads the environments of training and validation; dialect ``auto`` is determined from the model's files."""
    card, printed = find_env(recipe.env), set[str]()

    def spelled(options: dict[str, Any]) -> Task:
        if options.get("protocol", card.protocol) == "tool_calls":
            dialect = options.get("dialect", card.dialect)
            options["dialect"], notes = chosen_dialect(dialect, [model_folder(recipe.model)])
            for note in set(notes) - printed:
                sys.stderr.write(f"note: {note}\n")
            printed.update(notes)
        return load_task(card, **options)

    task = spelled({**env_options(recipe.env, recipe.env_options)})
    if not recipe.validation.every:
        return task, task
    return task, spelled({**env_options(recipe.env, recipe.env_options, recipe.validation.env_options)})

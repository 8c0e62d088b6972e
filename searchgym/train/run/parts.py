"""From a recipe to a run: environments, agent, model, engine and trainer, wired together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.agents.base import load_agent
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import UsageError
from searchgym.rollout.loading import device_of, is_adapter, model_folder
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampler
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.train.algorithms.credit import Credit
from searchgym.train.algorithms.samples import Sample, samples_from
from searchgym.train.distributed.remote import RemoteLearner
from searchgym.train.learner.keyed_learner import KeyedLearner
from searchgym.train.learner.learner import Learner, LocalLearner
from searchgym.train.recipe.keys import Key, check_comparison, keys_of
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.folder import Row
from searchgym.train.run.probe import ALLOWED, probe
from searchgym.train.run.rollout import EngineRollout
from searchgym.train.run.samplers import Loaded, Samplers, computed_in, load_keys, sampled_in, start_samplers
from searchgym.train.run.trainer import Trainer, TrainResult

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Parts:
    """What a recipe names, loaded and wired together."""

    recipe: Recipe
    task: Task
    """Of training."""
    validation: Task
    tokenizer: PreTrainedTokenizerBase | None
    """Saved with each checkpoint; None where the recipe names model keys, whose learner saves theirs."""
    keys: tuple[Key, ...]
    samplers: Samplers
    models: dict[str, Model]
    """Key to what episodes ask."""
    rollout: EngineRollout
    learner: Learner
    credit: Credit

    @property
    def trained(self) -> tuple[str, ...]:
        """Keys that are trained."""
        return tuple(key.name for key in self.keys if not key.frozen)

    @property
    def sampler(self) -> Sampler:
        """What the first of the trained keys samples from."""
        return self.models[self.trained[0]].sampler

    def publish(self, version: int) -> None:
        """Gives the samplers the learner's weights."""
        adapter = bool(self.recipe.lora.rank)
        for key in self.trained:
            sampler = self.models[key].sampler
            # transformers has no adapters of its own: it samples from the whole model, the adapter merged in
            alone = adapter and not isinstance(self.samplers.by_key[key], TransformersSampler)
            sampler.update(self.learner.weights_of(key, alone), self.learner.version_of(key))

    def probe(self, samples: Sequence[Sample]) -> Row:
        """Looks whether each sampler that does not share torch with the learner has its weights; see `probe`."""
        options, found = self.recipe.rollout, list[Row]()
        for key in self.trained:
            if not isinstance(self.samplers.by_key[key], TransformersSampler):
                own = [sample for sample in samples if sample.model_key == key]
                found.append(
                    probe(
                        self.models[key].sampler,
                        self.learner,
                        own,
                        key,
                        temperature=options.temperature,
                        count=options.probe,
                        allowed=allowed_difference(self.recipe),
                    )
                )
        return {name: max(row[name] for row in found if name in row) for row in found for name in row}

    def rest(self) -> None:
        """Makes the samplers give their GPUs to the learner until weights are published, if the recipe asks for it."""
        level = self.recipe.rollout.vllm.sleep
        for engine in self.samplers.resting if level else ():
            engine.sleep(level)

    def close(self) -> None:
        """Ends what was started."""
        self.learner.close()
        self.samplers.close()


def load_parts(recipe: Recipe, out: Path, wrap: Callable[[Sampler], Sampler] = lambda sampler: sampler) -> Parts:
    """Loads environments, agent and models of a recipe.

    Args:
        recipe: What to do.
        out: The run folder: ranks of their own write logs there.
        wrap: Puts something around each sampler.

    Raises:
        SearchGymError: Whatever is wrong with the recipe's environment, agent or models.
    """
    task, validation = load_tasks(recipe)
    agent = load_agent(recipe.agent)
    keys = tuple(keys_of(recipe, agent.roles, agent.name))
    check_comparison(recipe, agent.roles)
    credit = Credit.of(recipe.credit, agent.roles, task)
    for key in keys:
        again = recipe.lora.rank > 0 and not key.frozen
        if (again or recipe.rollout.sampler != "transformers") and is_adapter(model_folder(key.recipe.model)):
            why = "lora.rank makes another one" if again else "vLLM samples from whole models and their own adapters"
            raise UsageError(f"{key.recipe.model} is an adapter, and {why}: `searchgym export` it first")
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
        opened.pop_all()
    exact = not recipe.rollout.staleness
    exact = exact and all(isinstance(own, TransformersSampler) for own in samplers.by_key.values())
    by_role = {role: models[key.name] for key in keys for role in key.roles}
    rollout = EngineRollout(recipe, agent, by_role, task, validation, canonical=exact)
    return Parts(recipe, task, validation, tokenizer, keys, samplers, models, rollout, learner, credit)


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
        probe=parts.probe if recipe.rollout.probe and recipe.method == "policy" else None,
        rest=parts.rest if recipe.rollout.vllm.sleep and parts.samplers.resting else None,
        trained=parts.trained,
        credit=parts.credit,
        give_up=parts.rollout.give_up,
        report=report,
        resume=resume,
    )


def allowed_difference(recipe: Recipe) -> float:
    """Returns how far log-probs of sampler and trainer may be apart on average, in nats."""
    own = max(ALLOWED[computed_in(recipe)], ALLOWED[sampled_in(recipe)])
    return own if recipe.rollout.probe_limit is None else recipe.rollout.probe_limit


def _learner(
    recipe: Recipe, keys: Sequence[Key], loaded: Mapping[str, Loaded], out: Path
) -> tuple[Learner, PreTrainedTokenizerBase | None]:
    """Returns the learner of the keys that are trained, and the tokenizer that is saved beside its weights."""
    trained = [key for key in keys if not key.frozen]
    if not recipe.models:
        (key,) = trained
        return _key_learner(key.recipe, loaded[key.name].model, out / "ranks"), loaded[key.name].tokenizer
    learners: dict[str, Learner] = {}
    for key in trained:
        learners[key.name] = _key_learner(key.recipe, loaded[key.name].model, out / "ranks" / key.name)
    return KeyedLearner(learners, {key.name: loaded[key.name].tokenizer for key in trained}), None


def _key_learner(recipe: Recipe, model: PreTrainedModel, logs: Path) -> Learner:
    """Returns the learner of one key."""
    if recipe.learner.backend == "deepspeed":
        return RemoteLearner(recipe, logs, recipe.deadline.learn)
    trained: Any = model
    device = device_of(recipe.learner.device)
    if device == "cuda" and recipe.learner.gpus:
        device = f"cuda:{recipe.learner.gpus[0]}"
    return LocalLearner(recipe, trained.to(device))


def load_tasks(recipe: Recipe) -> tuple[Task, Task]:
    """Returns the environments of training and of validation."""
    task = _task(recipe, recipe.env_options)
    if not recipe.validation.every:
        return task, task
    return task, _task(recipe, recipe.env_options | recipe.validation.env_options)


def _task(recipe: Recipe, options: dict[str, Any]) -> Task:
    """Returns the recipe's environment with some options over the id's own."""
    return load_task(find_env(recipe.env), **{**env_options(recipe.env), **options})


def _demonstrations(recipe: Recipe) -> list[Sample]:
    """Returns the samples of a demonstration file, if the recipe names one."""
    if recipe.supervised.demonstrations is None:
        return []
    episodes = read_episodes(Path(recipe.supervised.demonstrations))
    return [sample for episode in episodes for sample in samples_from(episode, "demonstration")]

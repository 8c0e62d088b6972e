"""Models for an agent's roles: a sampler, its token format, and the batcher that episodes share."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import LoadedAgent
from searchgym.agents.roles import Role
from searchgym.corpora.files import sha256_file
from searchgym.errors import CardError, DataMissingError, UnknownNameError, UsageError, without_login
from searchgym.options import find_kind
from searchgym.options.yaml import read_yaml
from searchgym.protocol import Protocol
from searchgym.rollout.batcher import Batcher
from searchgym.rollout.folders import adapter_base, check_files, is_adapter, local_folder, model_folder, recipe_of
from searchgym.rollout.foreign.template_options import check_template, fitted, template_format, trained_template
from searchgym.rollout.sampler import Dtype, Sampled, Sampler, SampleRequest, StreamingSampler
from searchgym.rollout.sampler_kind import SamplerKind
from searchgym.rollout.tokens import ContextText, TokenFormat

if TYPE_CHECKING:
    from searchgym.rollout.api.sampler import MessageFormat

REQUESTS: Final = 256
"""Maximum number of requests per call of a non-streaming sampler."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One set of weights with its sampler and token format."""

    key: str
    """Name of the weights, recorded in every call."""
    sampler: Sampler
    """Sampler with the weights."""
    format: TokenFormat | MessageFormat
    """Converter between text and token ids."""
    batcher: Batcher[SampleRequest, Sampled]
    """Batcher through which all episodes share the sampler."""
    sha256: str | None = None
    """SHA-256 of the weight files; None for a model in memory."""
    engine: str = ""
    """Sampling engine and dtype; empty for transformers in float32. Scores of other engines may differ by rounding."""
    encoder: Batcher[Sequence[ContextText], list[npt.NDArray[np.int32]]] | None = None
    """Batcher through which episodes share `TokenFormat.encode`, in a thread; None: each episode encodes its texts
    itself."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, and the date that it shows, as in the run's record; see `fitted`."""

    @classmethod
    def over(
        cls,
        key: str,
        sampler: Sampler,
        format: TokenFormat | MessageFormat,
        *,
        sha256: str | None = None,
        engine: str = "",
        template: Mapping[str, Any] = {},
    ) -> Model:
        """Returns a model over a sampler, with new batchers."""
        stream = sampler.stream if isinstance(sampler, StreamingSampler) else None
        batcher: Batcher[SampleRequest, Sampled] = Batcher(sampler.sample, max_size=REQUESTS, stream=stream)
        encoder = Batcher(format.encode_lists, size=len) if isinstance(format, TokenFormat) else None
        return cls(key, sampler, format, batcher, sha256, engine, encoder, template)


def parse_models(specs: Sequence[str], roles: Mapping[str, Role]) -> dict[str, str]:
    """Parses ``[ROLE=]MODEL`` arguments of the command line.

    Args:
        specs: Arguments. A model is a folder, a name, or ``URL#NAME`` for a model behind an OpenAI-compatible server,
            ``URL#NAME?thinks=true`` if the server's chat template opens a thought; without ``ROLE=`` it is used for all
            roles that no other argument names.
        roles: Roles of the agent, by name.

    Returns:
        Role name to model.

    Raises:
        UsageError: A role has two models or none, or a model has no role.
        UnknownNameError: The agent has no such role.
    """
    named: dict[str, str] = {}
    bare: list[str] = []
    for spec in specs:
        role, equals, path = spec.partition("=")
        if not equals or is_url(spec):
            bare.append(spec)
        elif role not in roles:
            raise UnknownNameError("role", role, roles)
        elif role in named:
            raise UsageError(f"two models for role {role}: {named[role]} and {path}")
        else:
            named[role] = path
    if len(bare) > 1:
        raise UsageError(f"two models for the same roles: {' and '.join(bare)}; write ROLE=PATH")
    rest = [role for role in roles if role not in named]
    if bare and not rest:
        raise UsageError(f"no role is left for the model {bare[0]}")
    if rest and not bare:
        raise UsageError(f"no model for role {', '.join(rest)} (--model [ROLE=]PATH)")
    return named | {role: model for role in rest for model in bare}


def is_url(model: str | Path) -> bool:
    """Returns True if a model is the URL of a server."""
    return str(model).startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class Loading:
    """Sampling settings of locally loaded models."""

    by: str = "transformers"
    """Name of the sampler, one of the kinds of `SamplerKind`: ``transformers``, ``vllm``, ``auto``."""
    dtype: str = "float32"
    """Type of weights and computation."""
    requests: int = 64
    """Maximum number of concurrent requests."""
    max_context: int | None = None
    """Maximum number of tokens of request and response with vLLM, for which its cache is sized. Default: the model's
    limit."""
    chat: bool = True
    """If True, prompts use the model's chat template if it has one; if False, they are plain text."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of chat templates, such as ``enable_thinking``, each used by the models whose template names it, and
    ``date``, the day that a template shows. Default: the arguments that a checkpoint was trained with, and today."""


def load_models(models: Mapping[str, str | Path], protocol: Protocol, how: Loading = Loading()) -> dict[str, Model]:
    """Loads the models of all roles, each distinct model once.

    Args:
        models: Role name to model, as `parse_models` returns it.
        protocol: Action grammar of the environment.
        how: Settings for models that are not behind a server.

    Returns:
        Role name to loaded model, whose key is the name of its folder, or its name on the server.

    Raises:
        DataMissingError: A folder does not exist or holds no model.
        UsageError: A model has no tokenizer, two folders have the same name, a URL lacks the model's name, or no
            template uses a template argument.
    """
    paths = find_models(models, how)
    folders = {model for model in paths.values() if isinstance(model, Path)}
    if how.template:  # refused before weights are loaded
        from searchgym.rollout.loading import load_tokenizer

        check_template(map(load_tokenizer, sorted(folders) if how.chat else ()), how.template)
    kind = find_kind(SamplerKind, how.by)().chosen() if folders else None
    loaded: dict[str | Path, Model] = {}
    with ExitStack() as opened:
        for model in dict.fromkeys(paths.values()):
            if isinstance(model, str):
                from searchgym.rollout.api.sampler import ApiOptions, ApiSampler, MessageFormat

                api = ApiOptions.of(model)
                server, engine = ApiSampler(api, protocol), without_login(api.url) + " thinks" * api.thinks
                loaded[model] = Model.over(api.model, server, MessageFormat(protocol), engine=engine)
                continue
            assert kind is not None
            sampler, tokenizer = kind.load(
                model, how.dtype, requests=how.requests, max_context=how.max_context, share=0.9 / len(folders)
            )
            opened.callback(sampler.close)
            template = fitted(tokenizer, trained_template(model) | dict(how.template), how.chat)
            form = template_format(tokenizer, protocol, template, how.chat)
            # recorded, because other prompts give other answers
            engine = kind.label(how.dtype) if how.chat else f"{kind.label(how.dtype)} plain".strip()
            sha256 = weights_sha256(model)
            loaded[model] = Model.over(model.name, sampler, form, sha256=sha256, engine=engine, template=template)
        opened.pop_all()
    return {role: loaded[model] for role, model in paths.items()}


@contextmanager
def opened_models(
    models: Mapping[str, str | Path], protocol: Protocol, how: Loading = Loading()
) -> Iterator[dict[str, Model]]:
    """Loads the models of all roles, as `load_models`, and closes their samplers when the block ends."""
    with ExitStack() as opened:
        loaded = load_models(models, protocol, how)
        for model in {id(model): model for model in loaded.values()}.values():  # roles may share a model
            opened.callback(model.sampler.close)
        yield loaded


def find_models(models: Mapping[str, str | Path], how: Loading = Loading()) -> dict[str, str | Path]:
    """Finds models and makes all checks that need no torch, whose import takes seconds.

    Args:
        models: Role name to model, as `parse_models` returns it.
        how: Settings for models that are not behind a server.

    Returns:
        Role name to the model's URL or folder.

    Raises:
        UnknownNameError: The dtype or the sampler is unknown.
        DataMissingError: A folder does not exist or lacks files.
        UsageError: Two folders or servers have models with the same name, or a URL lacks the model's name.
    """
    if how.dtype not in get_args(Dtype):
        raise UnknownNameError("dtype", how.dtype, get_args(Dtype))
    find_kind(SamplerKind, how.by)
    served = sorted({str(model) for model in models.values() if is_url(model)})
    names = list[str]()
    if served:
        from searchgym.rollout.api.sampler import ApiOptions

        names = [ApiOptions.of(model).model for model in served]
    if len(set(names)) < len(names):
        raise UsageError(f"two servers have models with the same name: {', '.join(served)}")
    paths = {r: str(model) if is_url(model) else model_folder(model).resolve() for r, model in models.items()}
    folders = dict.fromkeys(model for model in paths.values() if isinstance(model, Path))
    if len({folder.name for folder in folders}) < len(folders):
        raise UsageError(f"two model folders have the same name: {', '.join(map(str, folders))}")
    for folder in folders:
        check_files(folder)
    return paths


def share_roles(
    keys: Mapping[str, Collection[str] | None], roles: Collection[str], agent: str
) -> dict[str, tuple[str, ...]]:
    """Returns the agent's roles of each model key.

    Args:
        keys: Roles of each key. None stands for every role that no other key names; an empty collection is a judge's
            key.
        roles: Roles of the agent.
        agent: Name of the agent, for messages.

    Raises:
        UnknownNameError: A key names a role that the agent does not have; the nearest is suggested.
        UsageError: A role has no key, or a key has no role.
    """
    named = [role for key_roles in keys.values() for role in key_roles or ()]
    if unknown := [role for role in named if role not in roles]:
        raise UnknownNameError(f"role of agent {agent}", unknown[0], roles)
    rest = [role for role in roles if role not in named]
    shared = {}
    for name, key_roles in keys.items():
        shared[name] = tuple(rest if key_roles is None else key_roles)
        if key_roles is None and not rest:
            raise UsageError(f"models.{name}: no role of agent {agent} uses it, each has another key: leave it out")
    if missing := set(roles).difference(*shared.values()):
        raise UsageError(f"agent {agent}: no model for role {', '.join(sorted(missing))}: name a key for it in models")
    return shared


def in_checkpoints(models: Mapping[str, str], agent: LoadedAgent) -> dict[str, str]:
    """Resolves checkpoints of runs with several model keys to each role's model.

    Args:
        models: Folder or name of each role's model; a folder may be a checkpoint with several keys.
        agent: Agent of the run.

    Raises:
        CardError: The run's ``recipe.yaml`` cannot be read.
        DataMissingError: A checkpoint with several keys is not in its run folder.
        UsageError: The checkpoint is of a team with other roles; an UnknownNameError if a key names an unknown role.
    """
    resolved = dict(models)
    for name in set(models.values()):
        if (checkpoint := local_folder(name)) is None:
            continue
        one = is_adapter(checkpoint) or (checkpoint / "config.json").is_file()
        if (checkpoint / "trainer.json").is_file() and not one:
            record = recipe_of(checkpoint)
            if not record.is_file():
                raise DataMissingError(
                    f"{name} has several models, and {record}, which names their roles, does not exist"
                )
            by_role = _models_by_role(record, agent, checkpoint)
            resolved |= {role: by_role[role] for role, model in models.items() if model == name}
    return resolved


def _models_by_role(record: Path, agent: LoadedAgent, checkpoint: Path) -> dict[str, str]:
    """Returns each role's model by a run's ``recipe.yaml``: a folder in the checkpoint, or a frozen model."""
    recipe = read_yaml(record)
    if not isinstance(recipe, dict) or not isinstance(recipe.get("model"), str):
        raise CardError(f"{record}: expected the recipe of a run, with its model")
    keys = recipe.get("models", {})
    if not isinstance(keys, dict) or not all(isinstance(options, dict) for options in keys.values()):
        raise CardError(f"{record}: models: expected keys with their values")
    if not keys:
        return dict.fromkeys(agent.roles, str(checkpoint))
    shared = share_roles({name: options.get("roles") for name, options in keys.items()}, agent.roles, agent.name)
    by_role: dict[str, str] = {}
    for name, roles in shared.items():
        frozen = keys[name].get("frozen", False)
        model = keys[name].get("model") or recipe["model"] if frozen else checkpoint / name
        by_role |= dict.fromkeys(roles, str(model))
    return by_role


def weights_sha256(folder: Path) -> str:
    """Returns one SHA-256 of the weight files in a folder and, for an adapter, of its base model."""
    folders = [folder, model_folder(adapter_base(folder))] if is_adapter(folder) else [folder]
    digest = hashlib.sha256()
    for weights_folder in folders:
        for file in sorted([*weights_folder.glob("*.safetensors"), *weights_folder.glob("pytorch_model*.bin")]):
            digest.update(bytes.fromhex(sha256_file(file)))
    return digest.hexdigest()

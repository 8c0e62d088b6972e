"""Models behind roles: a sampler, its token format, and the batcher that episodes share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from searchgym.agents.roles import Role
from searchgym.corpora.files import sha256_file
from searchgym.errors import UnknownNameError, UsageError
from searchgym.protocol import Protocol
from searchgym.rollout.batcher import Batcher
from searchgym.rollout.sampler import Sampled, Sampler, SampleRequest, StreamingSampler, VllmOptions
from searchgym.rollout.tokens import TokenFormat

if TYPE_CHECKING:
    from searchgym.rollout.api_sampler import MessageFormat
    from searchgym.rollout.loading import Dtype


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One set of weights that episodes sample from."""

    key: str
    """Names the weights; recorded in every call."""
    sampler: Sampler
    format: TokenFormat | MessageFormat
    batcher: Batcher[SampleRequest, Sampled]
    sha256: str | None = None
    """Of the weight files it was loaded from, None if it was made in memory."""
    engine: str = ""
    """What samples, where that is not transformers in float32: scores may differ by rounding."""

    @classmethod
    def over(
        cls,
        key: str,
        sampler: Sampler,
        format: TokenFormat | MessageFormat,
        *,
        max_requests: int = 256,
        sha256: str | None = None,
        engine: str = "",
    ) -> Model:
        """Returns a model whose calls hold at most `max_requests` requests, where requests are not streamed."""
        stream = sampler.stream if isinstance(sampler, StreamingSampler) else None
        batcher: Batcher[SampleRequest, Sampled] = Batcher(sampler.sample, max_size=max_requests, stream=stream)
        return cls(key, sampler, format, batcher, sha256, engine)


def parse_models(specs: Sequence[str], roles: Mapping[str, Role]) -> dict[str, str]:
    """Reads ``[ROLE=]MODEL`` arguments.

    Args:
        specs: A bare model is for every role that no other argument names: a folder, a name, or ``URL#NAME`` for a
            model behind an OpenAI-compatible server.
        roles: The agent's roles.

    Returns:
        Role to model.

    Raises:
        UsageError: Two paths for one role, or a path that no role uses.
        UnknownNameError: An unknown role.
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
    return named | {role: bare[0] for role in rest if bare}


def is_url(model: str | Path) -> bool:
    """Says whether a model is behind a server."""
    return str(model).startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class Loading:
    """What models that are loaded here sample by."""

    by: str = "transformers"
    """``transformers``, ``vllm``, or ``auto``: see `samples_by_vllm`."""
    dtype: str = "float32"
    """Of weights and computation."""
    requests: int = 64
    """Most requests under way at once."""
    max_context: int | None = None
    """Most tokens of request and response with vLLM, whose cache must hold that; the model's own limit if not given."""


def load_models(models: Mapping[str, str | Path], protocol: Protocol, how: Loading = Loading()) -> dict[str, Model]:
    """Loads each model once and returns the one behind each role; a model's key is its folder's name, or its server's.

    Args:
        models: Role to model.
        protocol: Of the environment.
        how: For those that are not behind a server.

    Raises:
        DataMissingError: A folder that is not there or holds no model.
        UsageError: A model without a tokenizer, two folders of one name, or a URL without a model's name.
    """
    served = {role: str(model) for role, model in models.items() if is_url(model)}
    if len({model.partition("#")[2] for model in served.values()}) < len(set(served.values())):
        raise UsageError(f"two servers have models of one name: {', '.join(sorted(set(served.values())))}")
    there = {model: _served(model, protocol) for model in dict.fromkeys(served.values())}
    found = _loaded({role: model for role, model in models.items() if role not in served}, protocol, how)
    return found | {role: there[model] for role, model in served.items()}


def _served(model: str, protocol: Protocol) -> Model:
    """Returns a model behind an OpenAI-compatible server."""
    from searchgym.rollout.api_sampler import ApiOptions, ApiSampler, MessageFormat

    url, _, name = model.partition("#")
    if not name:
        raise UsageError(f"{model}: which model of this server? Write {url}#NAME")
    options = ApiOptions(url=url, model=name)
    form = MessageFormat(protocol)
    return Model.over(name, ApiSampler(options), form, max_requests=options.at_once, engine=url)


def _loaded(models: Mapping[str, str | Path], protocol: Protocol, how: Loading) -> dict[str, Model]:
    """Returns models that are loaded here."""
    if not models:
        return {}
    from searchgym.rollout.loading import DTYPES, device_of, model_folder
    from searchgym.rollout.transformers.sampler import load_sampler
    from searchgym.rollout.vllm.engine import vllm_version
    from searchgym.rollout.vllm.start import load_vllm, samples_by_vllm

    if how.dtype not in DTYPES:
        raise UnknownNameError("dtype", how.dtype, DTYPES)
    paths = {role: model_folder(model).resolve() for role, model in models.items()}
    folders = list(dict.fromkeys(paths.values()))
    if len({folder.name for folder in folders}) < len(folders):
        raise UsageError(f"two model folders have the same name: {', '.join(map(str, folders))}")
    by_vllm = samples_by_vllm(how.by)
    engine = f"vllm {vllm_version()} {how.dtype}" if by_vllm else "" if how.dtype == "float32" else how.dtype
    loaded: dict[Path, Model] = {}
    sampler: Sampler
    with ExitStack() as opened:
        for path in folders:
            if by_vllm:
                options = VllmOptions(gpu_share=0.9 / len(folders), max_context=how.max_context)
                sampler, tokenizer = load_vllm(path, how.dtype, requests=how.requests, options=options)
            else:
                sampler, tokenizer = load_sampler(path, cast("Dtype", how.dtype), device=device_of("auto"))
            opened.callback(sampler.close)
            form = TokenFormat(tokenizer, protocol, chat=bool(tokenizer.chat_template))
            loaded[path] = Model.over(path.name, sampler, form, sha256=_weights_sha256(path), engine=engine)
        opened.pop_all()
    return {role: loaded[path] for role, path in paths.items()}


def _weights_sha256(folder: Path) -> str:
    """Returns one hash over the weight files of a folder; an adapter's base's too."""
    from searchgym.rollout.loading import adapter_base, is_adapter, model_folder

    folders = [folder, model_folder(adapter_base(folder))] if is_adapter(folder) else [folder]
    digest = hashlib.sha256()
    for own in folders:
        for file in sorted([*own.glob("*.safetensors"), *own.glob("pytorch_model*.bin")]):
            digest.update(bytes.fromhex(sha256_file(file)))
    return digest.hexdigest()

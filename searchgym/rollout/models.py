"""Models behind roles: a sampler, its token format, and the batcher that episodes share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from searchgym.agents.roles import Role
from searchgym.corpora.files import sha256_file
from searchgym.errors import UnknownNameError, UsageError
from searchgym.protocol import Protocol
from searchgym.rollout.batcher import Batcher
from searchgym.rollout.sampler import Sampled, Sampler, SampleRequest, StreamingSampler
from searchgym.rollout.tokens import TokenFormat


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One set of weights that episodes sample from."""

    key: str
    """Names the weights; recorded in every call."""
    sampler: Sampler
    format: TokenFormat
    batcher: Batcher[SampleRequest, Sampled]
    sha256: str | None = None
    """Of the weight files it was loaded from, None if it was made in memory."""

    @classmethod
    def over(
        cls, key: str, sampler: Sampler, format: TokenFormat, *, max_requests: int = 256, sha256: str | None = None
    ) -> Model:
        """Returns a model whose calls hold at most `max_requests` requests, where requests are not streamed."""
        stream = sampler.stream if isinstance(sampler, StreamingSampler) else None
        batcher: Batcher[SampleRequest, Sampled] = Batcher(sampler.sample, max_size=max_requests, stream=stream)
        return cls(key, sampler, format, batcher, sha256)


def parse_models(specs: Sequence[str], roles: Mapping[str, Role]) -> dict[str, Path]:
    """Reads ``[ROLE=]PATH`` arguments.

    Args:
        specs: A bare path is for every role that no other argument names.
        roles: The agent's roles.

    Returns:
        Role to model folder.

    Raises:
        UsageError: Two paths for one role, or a path that no role uses.
        UnknownNameError: An unknown role.
    """
    named: dict[str, Path] = {}
    bare: list[str] = []
    for spec in specs:
        role, equals, path = spec.partition("=")
        if not equals:
            bare.append(spec)
        elif role not in roles:
            raise UnknownNameError("role", role, roles)
        elif role in named:
            raise UsageError(f"two models for role {role}: {named[role]} and {path}")
        else:
            named[role] = Path(path)
    if len(bare) > 1:
        raise UsageError(f"two models for the same roles: {' and '.join(bare)}; write ROLE=PATH")
    rest = [role for role in roles if role not in named]
    if bare and not rest:
        raise UsageError(f"no role is left for the model {bare[0]}")
    return named | {role: Path(bare[0]) for role in rest if bare}


def load_models(paths: Mapping[str, Path], protocol: Protocol) -> dict[str, Model]:
    """Loads each model once and returns the one behind each role; a model's key is its folder's name.

    Raises:
        DataMissingError: A folder that is not there or holds no model.
        UsageError: A model without a tokenizer, or two folders of one name.
    """
    if not paths:
        return {}
    from searchgym.rollout.loading import model_folder
    from searchgym.rollout.transformers_sampler import load_sampler

    paths = {role: model_folder(path).resolve() for role, path in paths.items()}
    loaded: dict[Path, Model] = {}
    for path in dict.fromkeys(paths.values()):
        sampler, tokenizer = load_sampler(path)
        form = TokenFormat(tokenizer, protocol, chat=bool(tokenizer.chat_template))
        loaded[path] = Model.over(path.name, sampler, form, sha256=_weights_sha256(path))
    if len({model.key for model in loaded.values()}) < len(loaded):
        raise UsageError(f"two model folders have the same name: {', '.join(map(str, loaded))}")
    return {role: loaded[path] for role, path in paths.items()}


def _weights_sha256(folder: Path) -> str:
    """Returns one hash over the weight files of a folder."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        digest.update(bytes.fromhex(sha256_file(file)))
    return digest.hexdigest()

"""Rollout: the episode engine, its samplers, and episode files."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.rollout.engine import Engine
    from searchgym.rollout.loading import load_model, load_tokenizer
    from searchgym.rollout.models import Loading, Model, in_checkpoints, load_models, parse_models
    from searchgym.rollout.sampler import Sampled, Sampler, SampleRequest, Sampling, StreamingSampler
    from searchgym.rollout.storage import EpisodeWriter, read_episodes
    from searchgym.rollout.tokens import TokenFormat

__all__ = [
    "Engine",
    "EpisodeWriter",
    "Loading",
    "Model",
    "SampleRequest",
    "Sampled",
    "Sampler",
    "Sampling",
    "StreamingSampler",
    "TokenFormat",
    "in_checkpoints",
    "load_model",
    "load_models",
    "load_tokenizer",
    "parse_models",
    "read_episodes",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "engine": "Engine",
        "loading": "load_model load_tokenizer",
        "models": "Loading Model in_checkpoints load_models parse_models",
        "sampler": "Sampled SampleRequest Sampler Sampling StreamingSampler",
        "storage": "EpisodeWriter read_episodes",
        "tokens": "TokenFormat",
    },
)

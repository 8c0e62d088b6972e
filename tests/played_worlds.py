"""A small world and demonstrations from it, for tests of the package and of the tiny models."""

import functools
import random

from searchgym.protocol import get_protocol
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.demonstrations.play import play
from searchgym.train.demonstrations.worlds import demonstrate_all, world_task

TAGS_PROTOCOL = get_protocol("tags")


@functools.cache
def tokenizer():
    """The shipped one, since a test's own takes seconds to train."""
    return load_tokenizer("tiny")


@functools.cache
def token_format():
    return TokenFormat(tokenizer(), TAGS_PROTOCOL, chat=True)


@functools.cache
def world(seed=5, split="train"):
    return build_world(WorldSpec("simple", size=40, seed=seed, split=split))


@functools.cache
def episodes(early_stops):
    written = demonstrate_all(world(), early_stops, random.Random(1))
    return list(zip(written, play(world_task(world()), written, token_format()), strict=True))

"""Demonstrations from generated worlds, for supervised training before reinforcement learning.

The episode engine runs each episode: the outputs of the model are written from a question's decomposition, observations
come from the retriever. Some multi-hop episodes stop early, a fluent but poor strategy that reinforcement learning can
improve. Exercises train reading alone and cost less: some pages, and a question and answer for every fact on them.

Texts after a tag begin with a blank. Therefore a name consists of the same tokens in a question, on a page, in a query
and in an answer, and reading means copying tokens.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from string import ascii_lowercase, ascii_uppercase
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import load_agent
from searchgym.agents.mask import UNKNOWN
from searchgym.errors import WorldTooSmallError
from searchgym.protocol import Protocol
from searchgym.questions.worlds import World, build_world
from searchgym.questions.worlds.language import language_of, sentence
from searchgym.questions.worlds.names import HEADS
from searchgym.questions.worlds.schema import SPLITS, WorldSpec
from searchgym.records import Hit, Passage, Triple
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import Sample, samples_from
from searchgym.train.demonstrations.play import (
    AGENT,
    MODEL_KEY,
    Demonstration,
    first_prompt,
    play,
    text_ids,
)
from searchgym.train.demonstrations.worlds import demonstrate_all, thought, world_task

_TEMPLATES: Final = SPLITS["train"].templates
LEFT_OUT: Final = 10
"""Maximum number of consecutive worlds with too few questions."""


def with_prefixes(demonstration: Demonstration) -> Demonstration:
    """Returns a demonstration with a trial answer before each turn, from the facts seen by then (as in PRAISE)."""
    question = demonstration.question
    found = [UNKNOWN, *(fact.object for fact in question.evidences or ())]
    found[-1] = question.answers[0]
    turns: list[str] = []
    for known, turn in zip(found, demonstration.turns, strict=False):
        turns += [f"<answer> {known}</answer>", turn]
    return replace(demonstration, turns=tuple(turns))


# -- exercises -----------------------------------------------------------------------------------------------------


def exercise(world: World, pages: int, form: TokenFormat, rng: random.Random, strange_names: float = 0.0) -> Sample:
    """Returns a reading exercise: an observation of some pages, then a question and answer for every fact on them.

    Args:
        world: A `simple` world of the split ``train``.
        pages: Number of pages; half of the time they are linked, as the hits of one search often are.
        form: Token format of the model.
        rng: Random generator for pages, order and wordings.
        strange_names: Probability that every name is replaced by a string of letters drawn at random, which can be
            copied and not guessed.

    Returns:
        A sample whose mask is the answers, in the form of an episode's last turn.
    """
    shown = _pages(world, pages, rng)
    titles = {passage.title for passage in shown}
    facts = [fact for fact in world.triples if fact.subject in titles]
    rng.shuffle(facts)
    parts = [(_observation(shown, form.protocol), False)]
    for fact in facts:
        asked = rng.choice(language_of("simple").phrases[fact.relation].ask[_TEMPLATES]).format(s=fact.subject)
        parts += [(thought(asked), False), (_answered(fact), True)]
    if rng.random() < strange_names:
        names = {*titles, *(fact.object for fact in facts if not fact.object.isdecimal())}
        parts = _renamed(parts, sorted(names), rng)
    ids = [text_ids(text, form) for text, _ in parts]
    mask = np.concatenate([np.full(len(own), said) for own, (_, said) in zip(ids, parts, strict=True)])
    return _sample(np.concatenate(ids), mask, f"exercise-{world.spec.seed}-{shown[0].id}")


def _pages(world: World, count: int, rng: random.Random) -> list[Passage]:
    """Draws pages at random, or half of the time a page and pages linked with it by names."""
    order = rng.sample(world.passages, len(world.passages))
    if rng.random() < 0.5:
        title = order[0].title
        near = {fact.object for fact in world.triples if fact.subject == title}
        near |= {fact.subject for fact in world.triples if fact.object == title}
        order[1:] = sorted(order[1:], key=lambda page: page.title not in near)
    return rng.sample(order[:count], min(count, len(order)))


def opening(demonstration: Demonstration, form: TokenFormat, rng: random.Random, strange_names: float = 0.0) -> Sample:
    """Returns a sample with a question and the first turn of its demonstration.

    Args:
        demonstration: Demonstration of a question with evidences.
        form: Token format of the model.
        rng: Random generator for names.
        strange_names: As in `exercise`.

    Returns:
        A sample whose mask is the turn.
    """
    question, turn = demonstration.question, demonstration.turns[0]
    if rng.random() < strange_names:
        facts = question.evidences or ()
        named = {fact.subject for fact in facts} | {fact.object for fact in facts if not fact.object.isdecimal()}
        (text, _), (turn, _) = _renamed([(question.text, False), (turn, True)], sorted(named), rng)
        question = replace(question, text=text)
    prompt, ids = first_prompt(load_agent(AGENT), form, question), text_ids(turn, form)
    mask = np.arange(len(prompt) + len(ids)) >= len(prompt)
    return _sample(np.concatenate([prompt, ids]), mask, f"opening-{question.id}")


def _renamed(parts: Sequence[tuple[str, bool]], names: Sequence[str], rng: random.Random) -> list[tuple[str, bool]]:
    """Replaces names by random letters; no new name begins like a name of a held-out split."""
    held_out = tuple(head for heads in HEADS[1:] for head in heads)
    new: dict[str, str] = {}
    while len(new) < len(names):
        word = rng.choice(ascii_uppercase) + "".join(rng.choices(ascii_lowercase, k=rng.randint(2, 6)))
        if not word.startswith(held_out) and word not in new.values():
            new[names[len(new)]] = word
    pattern = re.compile(r"\b(?:" + "|".join(names) + r")\b")
    return [(pattern.sub(lambda found: new[found[0]], text), said) for text, said in parts]


def _observation(passages: Sequence[Passage], protocol: Protocol) -> str:
    """Returns the text of an observation of pages, without truncation."""
    return protocol.observation([[Hit(passage, 1.0) for passage in passages]], max_words=10**6)


def _answered(fact: Triple) -> str:
    """Returns the last turn of an episode about one fact: the sentence that states it, and the answer."""
    (stated,) = language_of("simple").phrases[fact.relation].state[_TEMPLATES]
    quote = sentence(stated.format(s=fact.subject, o=fact.object))
    return f"{thought(f'{quote}.')}<answer> {fact.object}</answer>"


def _sample(ids: npt.NDArray[np.int32], mask: npt.NDArray[np.bool_], name: str) -> Sample:
    zeros = np.zeros(len(ids), np.float32)
    return Sample(ids, mask, zeros, zeros, zeros, (), MODEL_KEY, name, name, 0, None, 0, kind="demonstration")


# -- streams -------------------------------------------------------------------------------------------------------


def worlds(seed: int, size: int) -> Iterator[World]:
    """Yields training worlds without end, each with its own facts.

    A world that has too few questions of some kind is left out.

    Args:
        seed: Seed of the stream; streams of different seeds below 1,000 share no world among their first million.
        size: Number of questions per world.

    Raises:
        WorldTooSmallError: `LEFT_OUT` consecutive worlds have too few questions, so that the size must be the cause.
    """
    left_out = 0
    for number in itertools.count(seed * 1_000_000):
        try:
            world = build_world(WorldSpec("simple", size=size, seed=number, split="train"))
        except WorldTooSmallError:
            left_out += 1
            if left_out == LEFT_OUT:
                raise
            continue
        left_out = 0
        yield world


def demonstration_samples(world: World, early_stops: float, form: TokenFormat) -> list[Sample]:
    """Returns the demonstrations of all of a world's questions as samples, a function of the arguments alone."""
    rng = random.Random(f"demonstrations {world.spec.seed}")
    episodes = play(world_task(world), demonstrate_all(world, early_stops, rng), form)
    return [sample for episode in episodes for sample in samples_from(episode, "demonstration")]


def exercise_samples(world: World, pages: int, form: TokenFormat, strange_names: float = 0.0) -> list[Sample]:
    """Returns exercises on a world's pages, as many as use each page once on average."""
    rng = random.Random(f"exercises {world.spec.seed} {pages}")
    return [exercise(world, pages, form, rng, strange_names) for _ in range(len(world.passages) // pages)]


def opening_samples(world: World, form: TokenFormat, strange_names: float = 0.0) -> list[Sample]:
    """Returns the opening of each of a world's multi-hop questions."""
    rng = random.Random(f"openings {world.spec.seed}")
    shown = [own for own in demonstrate_all(world, 0.0, rng) if len(own.turns) > 2]
    return [opening(own, form, rng, strange_names) for own in shown]


def with_one_page(world: World) -> World:
    """Returns the world with its questions about single facts only."""
    return replace(world, questions=tuple(q for q in world.questions if q.kind == "single"))

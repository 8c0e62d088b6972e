"""Demonstrations from generated worlds, whose questions have a decomposition, and a reading test on worlds.

The engine runs the episodes: the model's text is written from a question's decomposition, and observations come from
the retriever. Texts after a tag begin with a blank, so that a name has the same tokens in a question, on a page, in a
query and in an answer, and reading means copying tokens.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from searchgym.envs.cards import EnvCard
from searchgym.envs.task import Task, load_task
from searchgym.errors import UsageError
from searchgym.options.cards import find_card, load_card
from searchgym.protocol import THINK_CLOSE, THINK_OPEN
from searchgym.questions.worlds import World
from searchgym.records import Answer, Passage, Question
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.scoring import exact_match, golds_with_words
from searchgym.train.demonstrations.play import Demonstration, play

LAST_TURN: Final = 128
"""Maximum number of tokens in the last turn, which recalls up to four facts and answers."""


def world_task(world: World, top_k: int | None = None) -> Task:
    """Returns a world's questions as the task of ``searchgym/World-v0``, over the world's pages.

    Args:
        world: World whose questions and pages are used.
        top_k: Pages per query. Default: that of the environment's card.
    """
    card = load_card(EnvCard, find_card("envs", "world"))
    options: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    return load_task(card, questions=world.questions, retriever=build_in_memory(world.passages), **options)


def demonstrate(question: Question, quotes: Sequence[str], early: bool = False) -> Demonstration:
    """Writes the model's turns from a question's decomposition.

    Each thought repeats the last step's question, quotes the sentence that answers it, and asks the next step's
    question.

    Args:
        question: Question of a world, with one hop and one evidence per gold page.
        quotes: The gold sentences, which thoughts quote, in the same order; see `gold_sentences`.
        early: If True, the answer after the first search is the intermediate answer; no effect on single facts.

    Raises:
        UsageError: The question has no decomposition, or there is not one quote per hop.
    """
    hops, facts = question.hops or (), question.evidences or ()
    titles = question.gold_titles or ()
    if not hops or not len(hops) == len(facts) == len(titles) == len(quotes):
        raise UsageError(
            f"question {question.id!r} has no hops with evidences and quotes: only a world's can be demonstrated"
        )
    early = early and len(hops) > 1
    turns, recalled = [], ""  # recalled: the last step's question and the sentence that answers it
    for number, title in enumerate(titles[:1] if early else titles):
        step_question = _filled(hops[number].question, [fact.object for fact in facts[:number]])
        turns.append(f"{thought(recalled, step_question)}<search> {title}</search>")
        recalled = f"{step_question} {quotes[number]}"
    if question.kind in ("comparison", "bridge-comparison") and not early:
        recalled = " ".join([recalled, *quotes[:-1]])
    answer = next(iter(facts)).object if early else question.answers[0]
    turns.append(f"{thought(recalled)}<answer> {answer}</answer>")
    return Demonstration(question, tuple(turns), early)


def gold_sentences(question: Question, pages: Mapping[str, Passage]) -> list[str]:
    """Returns, for each gold page, the sentences that the question's supporting facts name, as one text.

    Args:
        question: Question of a world.
        pages: The world's passages by title.
    """
    sentences_by_title: dict[str, list[str]] = {}
    for fact in question.supporting_facts or ():
        sentences = re.split(r"(?<=\.) ", pages[fact.title].text)
        sentences_by_title.setdefault(fact.title, []).append(sentences[fact.sentence or 0])
    return [" ".join(sentences) for sentences in sentences_by_title.values()]


def demonstrate_all(world: World, early_stops: float, rng: random.Random) -> list[Demonstration]:
    """Writes a demonstration per question; each multi-hop one stops early with probability `early_stops`."""
    pages = {passage.title: passage for passage in world.passages}
    return [
        demonstrate(question, gold_sentences(question, pages), rng.random() < early_stops)
        for question in world.questions
    ]


def thought(*parts: str) -> str:
    """Returns a closed thought."""
    return f"{THINK_OPEN} {' '.join(part for part in parts if part)}{THINK_CLOSE}"


def _filled(question: str, answers: Sequence[str]) -> str:
    """Returns a hop's question in which each ``#n`` is replaced by the answer of hop n."""
    for number, answer in enumerate(answers, start=1):
        question = question.replace(f"#{number}", answer)
    return question


class ReadingTest:
    """Reading test: a model writes only the last turn of demonstrations, with the gold pages in context.

    Args:
        world: World to test on. Questions that read a page twice are left out, because a demonstration searches once
            per gold page.
        form: Token format of the models that are tested.
    """

    def __init__(self, world: World, form: TokenFormat) -> None:
        usable = tuple(q for q in world.questions if len(q.gold_titles or ()) == len(q.hops or ()))
        world = dataclasses.replace(world, questions=usable)
        self.task, self._form = world_task(world), form
        episodes = play(self.task, demonstrate_all(world, 0.0, random.Random(0)), form)
        # tokens before each episode's last response
        self._given = [np.concatenate([span.ids for span in e.contexts[0].spans[:-1]]) for e in episodes]

    def scores(self, sampler: TransformersSampler) -> list[float]:
        """Returns the exact match (0 or 1) of each question's greedy last turn."""
        sampling = Sampling(max_tokens=LAST_TURN, temperature=0.0, stop=self._form.stop)
        replies = sampler.sample([SampleRequest(ids, sampling) for ids in self._given])
        actions = [self._form.protocol.parse(self._form.response_text(reply.ids)) for reply in replies]
        return [
            exact_match(action.text, golds_with_words(question.golds)) if isinstance(action, Answer) else 0.0
            for question, action in zip(self.task.questions, actions, strict=True)
        ]

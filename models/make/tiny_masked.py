"""Demonstrations of masked spans on generated worlds: the first stage of a warm start, as in MaskSearch.

A thought repeats the sentences with their masks, a search names the page, and a second thought repeats the sentences
without masks, as on the page.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from searchgym.envs.cards import EnvCard
from searchgym.envs.task import Task, load_task
from searchgym.options.cards import find_card, load_card
from searchgym.questions.masked.generate import SearchLimits, generate
from searchgym.questions.masked.spans import SPAN_SEPARATOR, windows_by_triples
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.worlds import World
from searchgym.records import Question
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import Sample, samples_from
from searchgym.train.demonstrations.oracle import queries_of
from searchgym.train.demonstrations.play import Demonstration, play
from searchgym.train.demonstrations.worlds import thought


def masked_task(world: World, masks: int, source: Literal["kept", "hidden"] = "kept") -> Task:
    """Returns the masked spans of a world's pages as the task of ``searchgym/MaskedSpan-v0``: one for each page.

    Args:
        world: World whose facts are hidden.
        masks: Number of facts hidden in one text.
        source: Whether a page can be found; see `MaskedSpec.source`.

    Raises:
        DataError: No page has that many facts.
    """
    index = build_in_memory(world.passages)
    spec = MaskedSpec(n=2 * len(world.passages), seed=world.spec.seed, source=source, masks=[masks])
    fixed = windows_by_triples(world.passages, world.triples)
    card = load_card(EnvCard, find_card("envs", "maskedspan"))
    rules = SearchLimits(top_k=card.top_k, words=card.max_observation_words, searches=card.max_turns - 1)
    made = generate(world.passages, spec, rules, index, fixed=fixed)
    options: dict[str, Any] = {"questions": [question for own in made.questions.values() for question in own]}
    return load_task(card, retriever=index, **options)


def demonstrate_spans(question: Question) -> Demonstration:
    """Returns the model's turns of a demonstration, written from a masked text and its answer."""
    said = dict(enumerate(question.answers[0].split(SPAN_SEPARATOR), start=1))
    shown = [own for own in re.split(r"(?<=\.) ", question.text.partition(": ")[2]) if "[mask" in own]
    asked = " ".join(shown)
    filled = re.sub(r"\[mask(\d)\]", lambda match: said[int(match[1])].strip(), asked)
    searches = [f"{thought(asked)}<search> {query}</search>" for query in queries_of(question)]
    return Demonstration(question, (*searches, f"{thought(filled)}<answer> {question.answers[0]}</answer>"), False)


def masked_samples(world: World, masks: int, form: TokenFormat) -> list[Sample]:
    """Returns the demonstrations of a world's masked spans as samples, a function of the arguments alone."""
    task = masked_task(world, masks)
    episodes = play(task, [demonstrate_spans(question) for question in task.questions], form)
    return [sample for episode in episodes for sample in samples_from(episode, "demonstration")]

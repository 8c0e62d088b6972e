"""Tasks: environment cards with their questions, retriever and reward loaded, ready for environments and the engine."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Unpack

from searchgym import scoring
from searchgym.envs.cards import EnvCard
from searchgym.envs.core import Rules
from searchgym.envs.opening import find_card_of, load_retriever, load_sources, open_corpus_of
from searchgym.envs.options import TaskOptions, named_options, own_questions, with_options
from searchgym.envs.pages.pages import pages_of
from searchgym.envs.reward import RewardFunction, get_reward
from searchgym.errors import UnknownNameError, UsageError
from searchgym.options import name_of
from searchgym.questions.question_source import QuestionContext, given_label, given_questions
from searchgym.questions.subset import SEED, draw_subset
from searchgym.records import Question
from searchgym.retrieval.retriever import AnyRetriever, CorpusRetriever


@dataclass(frozen=True)
class Task:
    """One environment with its data loaded: questions, a retriever, rules and a reward."""

    card: EnvCard
    """Card of the environment, with the user's options applied."""
    rules: Rules
    questions: tuple[Question, ...]
    retriever: AnyRetriever
    reward: RewardFunction
    by_id: Mapping[str, Question]
    """Question id to question."""
    split: str = "all"
    """Split of the questions, or the names of the user's files."""
    aliases: scoring.EntityAliases | None = None
    """Names of entities by entity id, for 2WikiMultihopQA's evidence scores."""
    retrievers: Mapping[str, AnyRetriever] = dataclasses.field(default_factory=dict)
    """Additional retrievers by name."""
    subset_info: Mapping[str, int] | None = None
    """Description of a drawn subset: its size ``n``, the size of the whole set ``of``, and the ``seed``; None if the
    questions are the whole set."""

    def source(self, name: str) -> AnyRetriever:
        """Returns the additional retriever with a name; the main retriever for an empty name."""
        return self.retrievers[name] if name else self.retriever

    def find(self, question_id: str) -> Question:
        """Returns the question with an id.

        Raises:
            UnknownNameError: The task has no such question.
        """
        if question_id not in self.by_id:
            raise UnknownNameError("question id", question_id, self.by_id)
        return self.by_id[question_id]

    def asking(self, questions: Iterable[Question]) -> Task:
        """Returns the task with other questions, over the same corpus and under the same rules."""
        chosen = tuple(questions)
        return dataclasses.replace(self, questions=chosen, by_id={q.id: q for q in chosen}, subset_info=None)

    def subset(self, n: int | None, seed: int = SEED) -> Task:
        """Returns the task with `n` of its questions, drawn by `draw_subset`.

        It is returned unchanged if it has at most `n` questions or `n` is None.
        """
        if n is None or n >= len(self.questions):
            return self
        subset_info = {"n": n, "of": len(self.questions), "seed": seed}
        return dataclasses.replace(self.asking(draw_subset(self.questions, n, seed)), subset_info=subset_info)


def load_task(card: EnvCard, **options: Unpack[TaskOptions]) -> Task:
    """Resolves a card and a user's options into a task.

    Raises:
        UnknownNameError: An option does not exist.
        UsageError: An option has a wrong type, is out of range, or conflicts with another.
        DataMissingError: Questions or corpus are not among the options, in the data folder or on the Hugging Face hub.
        DataError: A file cannot be read.
    """
    options = named_options(card, options)
    card = with_options(card, options)
    source, user_questions, searched = card.questions, own_questions(options), options.get("retriever")
    if isinstance(searched, (str, dict)):
        options["retriever"] = find_card_of(card, searched)
    reward = get_reward(options.get("reward", card.reward))
    corpus = functools.cache(lambda: open_corpus_of(card, options))
    context = _context(card, options, corpus)
    try:
        problems = "; ".join(source.check_environment(context))
    except Exception as error:  # the class of another package may raise anything
        problems = f"the check of its question source failed: {type(error).__name__}: {error}"
    if problems:
        raise UsageError(f"{card.id}: {problems}")
    aliases = load_aliases(card, options.get("aliases"))
    questions = tuple(
        source.load(context)
        if user_questions is None
        else given_questions(card.id, user_questions, options.get("aliases"))
    )
    if not questions:
        raise UsageError(f"{card.id}: the question source {name_of(source)} returned no questions")
    by_id = {question.id: question for question in questions}
    if len(by_id) != len(questions):
        raise UsageError(f"{card.id}: question ids are not unique ({len(questions)} questions, {len(by_id)} ids)")
    retriever = load_retriever(card, questions, options, corpus)
    further = load_sources(card, questions, options)
    retriever = source.around(retriever, questions)
    rules = Rules.from_card(card, pages_of(retriever) if card.browse else None, tuple(further))
    split = (
        source.split_name if user_questions is None or source.is_own(user_questions) else given_label(user_questions)
    )
    return Task(card, rules, questions, retriever, reward, by_id, split, aliases, further)


def _context(card: EnvCard, options: TaskOptions, corpus: Callable[[], CorpusRetriever]) -> QuestionContext:
    """Returns the context for the question source."""
    named = options.get("retrievers", {})
    return QuestionContext(
        env=card.id,
        corpus=corpus,
        corpus_name=str(options.get("corpus", "")),
        aliases=options.get("aliases"),
        top_k=card.top_k,
        words=card.max_observation_words,
        searches=card.max_turns - 1,
        browse=card.browse,
        retrievers=tuple(named) if isinstance(named, Mapping) else (),
    )


def load_aliases(card: EnvCard, path: str | os.PathLike[str] | None) -> scoring.EntityAliases | None:
    """Returns entity aliases by entity id, or None if no file was passed.

    Raises:
        UsageError: The environment's scorer does not use aliases.
    """
    if path is None:
        return None
    if card.scorer != "2wiki":
        raise UsageError(f"{card.id}: aliases= is for 2WikiMultihopQA, the scorer here is {card.scorer!r}")
    from searchgym.corpora.questions import read_aliases

    return {entity: frozenset(names) for entity, names in read_aliases(path).items()}

"""Opens the retrievers of an environment: over its corpus, the user's, and additional ones."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from searchgym.envs.cards import EnvCard
from searchgym.envs.data import find_corpus, load_corpus
from searchgym.envs.options import TaskOptions
from searchgym.errors import UsageError
from searchgym.named import check_call
from searchgym.records import Question
from searchgym.retrieval.cards import RetrieverCard, Sources, find_retriever
from searchgym.retrieval.retriever import AnyRetriever, CorpusRetriever, QuestionRetriever, Retriever
from searchgym.retrieval.wrapper import check_retriever

SOURCE: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
"""Pattern of the name of an additional retriever, which is part of a tag."""


def open_corpus_of(card: EnvCard, options: TaskOptions) -> CorpusRetriever:
    """Returns a retriever over the corpus that the user passed.

    Raises:
        UsageError: The user passed no corpus.
        DataMissingError: The corpus cannot be found.
    """
    if "corpus" not in options:
        does = card.questions.of_corpus or "makes its questions from"
        raise UsageError(
            f"{card.id} {does} a corpus of yours: pass corpus=PATH, on the command line --corpus PATH (a file or a "
            "folder of documents)"
        )
    return load_corpus(find_corpus(options["corpus"]))


def find_card_of(card: EnvCard, retriever: str | dict[str, Any]) -> RetrieverCard:
    """Returns the retriever card that a user names; for a bare URL, the environment's deadline applies."""
    named = find_retriever(retriever)
    if isinstance(retriever, str) and retriever.startswith(("http://", "https://")):
        return dataclasses.replace(named, deadline=card.retriever_deadline)  # type: ignore[call-arg]
    return named


def load_retriever(
    card: EnvCard, questions: Sequence[Question], options: TaskOptions, corpus: Callable[[], CorpusRetriever]
) -> AnyRetriever:
    """Returns the user's retriever, the distractor retriever, or BM25 over the corpus.

    Args:
        card: The card, with the user's options applied.
        questions: All questions.
        options: The user's options.
        corpus: Function that opens the user's corpus.

    Raises:
        UsageError: `retriever` conflicts with `distractors`, is not a retriever, or has the wrong signature.
        DataMissingError: The corpus cannot be found.
    """
    retriever = options.get("retriever")
    if options.get("distractors"):
        if retriever is not None:
            raise UsageError("distractors=True searches each question's own paragraphs: leave out retriever=")
        from searchgym.retrieval.index.distractors import DistractorRetriever

        return DistractorRetriever(questions)
    if _is_retriever(retriever):
        check_retriever(retriever)
        return retriever
    if isinstance(retriever, RetrieverCard) and not retriever.needs_corpus:
        return _checked(retriever.open(Sources(questions=questions)), f"retriever {retriever.kind}")
    if retriever is None and "corpus" in options:
        return corpus()
    if "corpus" in options:
        path = find_corpus(options["corpus"])
    elif (brought := card.questions.corpus()) is not None:
        path = brought
    else:
        hint = "; or search each question's own paragraphs: distractors=True"
        path = find_corpus(card.corpus, hint if any(question.paragraphs for question in questions) else "")
    if retriever is None or isinstance(retriever, RetrieverCard):
        return load_corpus(path, retriever)
    if isinstance(retriever, type):
        raise UsageError(f"retriever= is the class {retriever.__name__}: pass an instance of it")
    if not callable(retriever):
        raise UsageError(f"retriever= has neither search() nor search_for(): got {type(retriever).__name__}")
    check_call("the function retriever=", retriever, "passages")
    from searchgym.corpora.documents import open_corpus

    return _checked(retriever(open_corpus(path)), "the function retriever=")


def _checked(opened: object, by: str) -> AnyRetriever:
    """Returns the retriever that a card or a user's function opened, after checking that it can search."""
    if not _is_retriever(opened):
        raise UsageError(f"{by} returned {type(opened).__name__}, which has no search()")
    check_retriever(opened)
    return opened


def load_sources(card: EnvCard, questions: Sequence[Question], options: TaskOptions) -> dict[str, AnyRetriever]:
    """Returns the additional retrievers by name, in the user's order.

    Raises:
        UsageError: `retrievers` is not a mapping, or a name is not a valid tag, or a value is not a retriever.
        DataMissingError: A corpus cannot be found.
    """
    retrievers = options.get("retrievers", {})
    if not isinstance(retrievers, Mapping):
        raise UsageError(
            f"{card.id}: retrievers= is a mapping such as {{'web': 'bm25'}}, got {type(retrievers).__name__}"
        )
    sources: dict[str, AnyRetriever] = {}
    for name, value in retrievers.items():
        if not isinstance(name, str) or not SOURCE.fullmatch(name):
            raise UsageError(
                f"{card.id}: retrievers= has the name {name!r:.60}: "
                "expected a small letter and at most 30 more, digits or _"
            )
        if value is None or (isinstance(value, (str, Mapping)) and not value):
            raise UsageError(f"{card.id}: retrievers.{name} is empty: give a retriever, its card or a corpus")
        source_options: dict[str, Any] = {"retriever": value}
        if isinstance(value, Mapping) and "corpus" in value:
            if unknown := sorted(map(str, value.keys() - {"corpus", "retriever"})):
                raise UsageError(f"{card.id}: retrievers.{name} has {', '.join(unknown)}: expected corpus, retriever")
            source_options = dict(value)
        if isinstance(source_options.get("retriever"), (str, dict)):
            source_options["retriever"] = find_card_of(card, source_options["retriever"])
        merged: Any = {key: options[key] for key in ("corpus",) if key in options} | source_options
        try:
            sources[name] = load_retriever(card, questions, merged, functools.partial(open_corpus_of, card, merged))
        except UsageError as error:
            raise UsageError(f"{card.id}: retrievers.{name}: {str(error).removeprefix(f'{card.id}: ')}") from None
    return sources


def _is_retriever(value: object) -> TypeGuard[AnyRetriever]:
    return isinstance(value, (Retriever, QuestionRetriever)) and not isinstance(value, type)

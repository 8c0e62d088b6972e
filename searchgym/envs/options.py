"""Options that override an environment's card, and rules for merging several layers of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from searchgym.envs.cards import EnvCard
from searchgym.envs.data import find_corpus
from searchgym.envs.faults.fault import Fault
from searchgym.envs.reward import RewardFunction
from searchgym.errors import CardError, UnknownNameError, UsageError
from searchgym.options import plain, read
from searchgym.options.cards import ProtocolName, SeveralCalls
from searchgym.questions.question_source import QuestionSource
from searchgym.records import Passage, Question
from searchgym.retrieval.cards import RetrieverCard
from searchgym.retrieval.retriever import AnyRetriever


class TaskOptions(TypedDict, total=False):
    """Options that override an environment's card; an option that is missing or None comes from the card."""

    questions: str | os.PathLike[str] | Sequence[Question] | Sequence[str] | Mapping[str, Any] | QuestionSource
    """Questions: a file, a Hugging Face data set (``hf:OWNER/NAME:CONFIG/SPLIT``), several of these, or `Question`
    records; or a mapping of fields that replace those of the card's question source (``{"seed": 7, "split": "test"}``);
    ``kind`` in it selects another source."""
    corpus: str | os.PathLike[str]
    """Corpus to search: a file or folder of documents (indexed once, then cached), an index folder, or a card name."""
    retriever: AnyRetriever | Callable[[Iterable[Passage]], AnyRetriever] | str | dict[str, Any] | RetrieverCard
    """Retriever to use instead of BM25: a retriever card, its name or a mapping; the URL of a server; a retriever
    object; or a function that builds one from the corpus's passages."""
    retrievers: Mapping[str, Any]
    """Additional retrievers by name, each with a separate search action (``<web_search>`` for one called web). A value
    has the forms of `retriever`, over the same corpus, or is ``{"corpus": ..., "retriever": ...}`` for another one."""
    reward: str | Mapping[str, Any] | RewardFunction
    """Reward: the name of a kind (a module of `searchgym.envs.rewards`), ``kind`` and options, ``"module:function"``,
    or a callable that takes the final `State`."""
    protocol: ProtocolName
    """Action grammar that the model writes."""
    dialect: str
    """Syntax of tool calls (protocol ``tool_calls``): ``hermes``, ``qwen3_coder``, ``llama3``, ``mistral``, ``gemma``,
    ``gpt_oss``, the path of a YAML file, or ``auto`` for the syntax of the model's chat template, if the model is
    known."""
    several_calls: SeveralCalls
    """Handling of several tool calls in one response: only the first counts, all are queries of one search, or the
    response is invalid."""
    distractors: bool
    """Whether each question searches only its own paragraphs instead of `corpus`."""
    aliases: str | os.PathLike[str]
    """Path to 2WikiMultihopQA's ``id_aliases.json``, for its evidence scores."""
    top_k: int
    """Passages retrieved per query."""
    max_turns: int
    """Maximum number of actions per episode, the answer included."""
    max_queries: int
    """Maximum number of queries per search action."""
    max_observation_words: int
    """Maximum number of words of retrieved text per turn."""
    browse: bool
    """Whether searches show only the beginning of each passage, and pages of the corpus can be opened."""
    snippet_words: int
    """Maximum number of words of each passage in search results when pages can be opened (`browse`)."""
    find: bool
    """Whether plain texts can be found in the page opened last; needs `browse`."""
    cite: bool
    """Whether pages can be cited as evidence by a quote of them; needs `browse`."""
    token_budget: int
    """Number of tokens after which an episode reads no more: it can then only cite and answer."""
    faults: Sequence[Mapping[str, Any] | Fault]
    """Faults of the search engine: each has ``kind`` and the options of the kind; see `searchgym.envs.faults`."""
    retriever_deadline: float
    """Time limit of one retrieval in seconds, retries included."""


RULE_OPTIONS: Final = TaskOptions.__annotations__.keys() & EnvCard.__annotations__.keys() - {
    "questions",
    "corpus",
    "reward",
}
"""Options that are fields of the card, except its data and its reward."""
UNSEARCHED: Final[Mapping[str, Any]] = {"browse": False, "find": False, "cite": False, "faults": ()}
"""Options of a task that is not searched: no page can be opened, and no class of a fault is imported."""
RENAMED: Final = ("world", "generated", "masked", "open_answers")
"""Options of earlier versions, now fields of `TaskOptions.questions`."""


def check_option_names(options: Iterable[str], where: str) -> None:
    """Checks that all options exist.

    Raises:
        UnknownNameError: An option does not exist; the nearest is suggested.
        UsageError: An option has an old name; the message shows the new spelling.
    """
    for name in options:
        if name in RENAMED:
            raise UsageError(f"{where}: {name}= is an old spelling: write questions={{...}}, with the same fields")
        if name not in TaskOptions.__annotations__:
            raise UnknownNameError("option", name, TaskOptions.__annotations__)


def named_options(card: EnvCard, options: Mapping[str, Any]) -> TaskOptions:
    """Returns the options that are not None, after checking their names and that the corpus exists; reads no file.

    Raises:
        UnknownNameError: An option or a corpus card does not exist.
        UsageError: The corpus is neither a path nor a name, or an option has an old name.
        DataMissingError: The corpus cannot be found.
    """
    check_option_names(options, card.id)
    set_options = cast(TaskOptions, {name: value for name, value in options.items() if value is not None})
    if "corpus" in set_options and not set_options.get("distractors"):
        find_corpus(set_options["corpus"])
    return set_options


def own_questions(options: Mapping[str, Any]) -> Any:
    """Returns the user's files, data sets or records; None if the questions come from a question source."""
    questions = options.get("questions")
    return None if isinstance(questions, (Mapping, QuestionSource)) else questions


def with_options(card: EnvCard, options: Mapping[str, Any]) -> EnvCard:
    """Returns the card with the user's rules and question source applied and checked.

    Raises:
        UsageError: A value is invalid, or the question source does not exist.
    """
    changes: dict[str, Any] = {name: value for name, value in options.items() if name in RULE_OPTIONS}
    questions = options.get("questions")
    if isinstance(questions, Mapping):
        changes["questions"] = merged(plain(card.questions), questions)
    else:
        changes["questions"] = questions if isinstance(questions, QuestionSource) else card.questions
    try:
        return read(EnvCard, plain(card) | changes, card.id)
    except CardError as error:
        raise UsageError(str(error)) from None


def merge_options(card: EnvCard, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merges layers of options; later layers override earlier ones, and question sources are merged field by field.

    Fields are merged because the splits of one corpus are disjoint only if all fields that determine them, such as
    ``hold_out``, are the same.
    """
    options: dict[str, Any] = {}
    for layer in layers:
        before, questions = options.get("questions"), layer.get("questions")
        options |= layer
        if isinstance(questions, Mapping):
            base = plain(before) if isinstance(before, (Mapping, QuestionSource)) else {}
            options["questions"] = merged({"kind": plain(card.questions)["kind"]} | base, questions)
    return options


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two mappings recursively; values of `over` replace those of `base`.

    If `over` has a different ``kind``, no value of `base` is kept.
    """
    if over.get("kind", base.get("kind")) != base.get("kind"):
        return dict(over)
    result = {**base, **over}
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(before := base.get(key), Mapping):
            result[key] = merged(before, value)
    return result

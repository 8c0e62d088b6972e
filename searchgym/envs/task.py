"""A task: a card with its data resolved. Every shell (single, vector, engine, evaluation) is built on one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from searchgym import scoring
from searchgym.cards import CorpusCard, EnvCard, ProtocolName, QuestionSource, find_card, load_card
from searchgym.corpora.retriever import AnyRetriever, DistractorRetriever, QuestionRetriever, Retriever
from searchgym.envs.core import Rules, State
from searchgym.errors import DataMissingError, RewardError, UnknownNameError, UsageError
from searchgym.records import Passage, Question

if TYPE_CHECKING:
    from searchgym.corpora.bm25 import BM25Retriever

Reward = Callable[[State], float]
"""Called once, with the state of a finished episode; returns a finite number."""


class TaskOptions(TypedDict, total=False):
    """What a user may override when making an environment; everything else comes from the card."""

    questions: str | os.PathLike[str] | Sequence[Question]
    """A question file, a hub data set (``hf:OWNER/NAME:CONFIG/SPLIT``), or `Question` records."""
    corpus: str | os.PathLike[str]
    """A corpus file of any supported format (indexed once, then cached) or an index folder."""
    retriever: AnyRetriever | Callable[[Iterable[Passage]], AnyRetriever]
    """A retriever, used instead of BM25 over the corpus; or a function that builds one from the corpus's passages."""
    reward: str | Reward
    """``"em"``, ``"f1"``, ``"module:function"`` or a callable that takes the final `State`."""
    protocol: ProtocolName
    distractors: bool
    """True: each question searches only its own paragraphs."""
    aliases: str | os.PathLike[str]
    """2WikiMultihopQA's ``id_aliases.json``."""
    top_k: int
    max_turns: int
    max_queries: int
    max_observation_words: int
    retriever_deadline: float


RULE_OPTIONS = ("protocol", "top_k", "max_turns", "max_queries", "max_observation_words", "retriever_deadline")


@dataclass(frozen=True)
class Task:
    """Questions, a retriever, rules and a reward."""

    card: EnvCard
    rules: Rules
    questions: tuple[Question, ...]
    retriever: AnyRetriever
    reward: Reward
    by_id: Mapping[str, Question]
    """Question id to question."""
    aliases: scoring.EntityAliases | None = None
    """Entity id to names, for 2WikiMultihopQA's evidence scores."""

    def find(self, question_id: str) -> Question:
        """Returns a question by id.

        Raises:
            UnknownNameError: No such question in this task.
        """
        if question_id not in self.by_id:
            raise UnknownNameError("question id", question_id, self.by_id)
        return self.by_id[question_id]

    def score(self, state: State) -> tuple[float, dict[str, float]]:
        """Returns the reward and the scores of a finished episode; zeros if its retriever failed.

        Raises:
            RewardError: The reward raised, or returned something that is not a finite number.
        """
        if state.stop_reason == "retriever_error":
            return 0.0, {"em": 0.0, "f1": 0.0}
        scores = {name: reward(state) for name, reward in REWARDS.items()}
        return checked_reward(self.reward, state), scores


def reward_em(state: State) -> float:
    """1 if the answer is a gold answer or alias after normalisation, else 0; 0 without an answer."""
    return 0.0 if state.answer is None else scoring.exact_match(state.answer.text, state.question.golds)


def reward_f1(state: State) -> float:
    """Token F1 against the best gold answer or alias (HotpotQA's yes/no rule); 0 without an answer."""
    return 0.0 if state.answer is None else scoring.f1_score(state.answer.text, state.question.golds)


REWARDS: dict[str, Reward] = {"em": reward_em, "f1": reward_f1}


def get_reward(reward: str | Reward) -> Reward:
    """Returns a reward function from a callable, a known name or ``"module:function"``.

    Raises:
        UsageError: The name is unknown, or the module or function cannot be loaded.
    """
    if callable(reward):
        return reward
    if reward in REWARDS:
        return REWARDS[reward]
    if ":" not in reward:
        raise UnknownNameError("reward", reward, [*REWARDS, "module:function"])
    loaded = load_object(reward)
    if not callable(loaded):
        raise UsageError(f"reward {reward!r} is a {type(loaded).__name__}, not a function")
    return loaded  # type: ignore[no-any-return]


def checked_reward(reward: Reward, state: State) -> float:
    """Calls a reward and refuses anything but a finite number.

    Raises:
        RewardError: With the question id and what was got.
    """
    name = getattr(reward, "__qualname__", type(reward).__name__)
    try:
        value = float(reward(state))
    except Exception as error:
        raise RewardError(
            f"reward {name} raised {type(error).__name__} on question {state.question.id!r}: {error}"
        ) from error
    if not math.isfinite(value):
        raise RewardError(f"reward {name} returned {value} on question {state.question.id!r}: expected a finite number")
    return value


def load_object(spec: str) -> Any:
    """Imports ``"module:attribute"``.

    Raises:
        UsageError: The module or the attribute is not there.
    """
    module, _, attribute = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"cannot load {spec!r} (expected module:name): {error}") from error


# -- resolving a card ----------------------------------------------------------------------------------------------


def load_task(card: EnvCard, **options: Unpack[TaskOptions]) -> Task:
    """Resolves a card and a user's options into a task.

    Raises:
        UnknownNameError: An option that does not exist.
        DataMissingError: Questions or corpus are neither given, nor in the data folder, nor on a hub.
        DataError: A file that cannot be read.
    """
    known = TaskOptions.__annotations__
    for name in options:
        if name not in known:
            raise UnknownNameError("option", name, known)
    card = _override(card, options)
    aliases = load_aliases(card, options.get("aliases"))
    questions = load_questions(card, options.get("questions"), options.get("aliases"))
    by_id = {question.id: question for question in questions}
    if len(by_id) != len(questions):
        raise UsageError(f"{card.id}: question ids are not unique ({len(questions)} questions, {len(by_id)} ids)")
    retriever = load_retriever(card, questions, options)
    reward = get_reward(options.get("reward", card.reward))
    return Task(card, Rules.from_card(card), questions, retriever, reward, by_id, aliases)


def load_aliases(card: EnvCard, path: str | os.PathLike[str] | None) -> scoring.EntityAliases | None:
    """Returns entity aliases by id, if a file was given.

    Raises:
        UsageError: The environment's scorer has no use for them.
    """
    if path is None:
        return None
    if card.scorer != "2wiki":
        raise UsageError(f"{card.id}: aliases= is for 2WikiMultihopQA, the scorer here is {card.scorer!r}")
    from searchgym.corpora.questions import read_aliases

    return {entity: frozenset(names) for entity, names in read_aliases(path).items()}


def _override(card: EnvCard, options: TaskOptions) -> EnvCard:
    """Returns the card with the user's rules in place, checked."""
    given = {name: value for name, value in options.items() if name in RULE_OPTIONS}
    card = dataclasses.replace(card, **given)  # type: ignore[arg-type]
    for name in ("top_k", "max_turns", "max_queries", "max_observation_words", "retriever_deadline"):
        if not getattr(card, name) > 0:
            raise UsageError(f"{card.id}: {name} must be positive, got {getattr(card, name)!r}")
    if card.protocol not in ("tags", "tool_calls"):
        raise UnknownNameError("protocol", card.protocol, ("tags", "tool_calls"))
    return card


def home() -> Path:
    """Returns SearchGym's folder for data and cached indexes: ``$SEARCHGYM_HOME`` or ``~/.cache/searchgym``."""
    return Path(os.environ.get("SEARCHGYM_HOME") or Path.home() / ".cache" / "searchgym")


def bundled_file(name: str) -> Path:
    """Returns a file that ships inside the package."""
    return Path(__file__).parent.parent / name


def load_questions(
    card: EnvCard, given: str | os.PathLike[str] | Sequence[Question] | None, aliases: str | os.PathLike[str] | None
) -> tuple[Question, ...]:
    """Returns the questions a user gave, or the card's own: bundled, in the data folder, or on a hub."""
    source = card.questions
    if given is not None and not isinstance(given, (str, os.PathLike)):
        if not given:
            raise UsageError(f"{card.id}: questions= is empty")
        return tuple(given)
    from searchgym.corpora.hub import read_hub_questions
    from searchgym.corpora.questions import read_questions

    local = home() / "data" / source.file
    if given is not None and str(given).startswith("hf:"):
        return tuple(read_hub_questions(str(given)))
    if given is not None:
        path = Path(given)
    elif source.bundled:
        path = bundled_file(source.bundled)
    elif local.exists():
        path = local
    else:
        return _hub_questions(card, source, local)
    return tuple(read_questions(path, aliases=aliases))


def _hub_questions(card: EnvCard, source: QuestionSource, local: Path) -> tuple[Question, ...]:
    """Returns questions from the hub, or says which file to get and where to put it."""
    reason = "no hub data set is named in its card"
    if source.hub is not None:
        reason = "the datasets package is not installed (pip install 'searchgym[train]')"
        if importlib.util.find_spec("datasets") is not None:
            from searchgym.corpora.hub import read_hub_questions

            try:
                return tuple(read_hub_questions(source.hub))
            except DataMissingError as error:
                reason = str(error)
    raise DataMissingError(
        f"{card.id} has no questions: questions= was not given, {local} is not there, and the hub gave none "
        f"({reason}). Get {source.file} ({source.dataset}, {source.split}, {source.size} questions) from {source.get}, "
        f"then pass questions=PATH or put it at {local}"
    )


def load_retriever(card: EnvCard, questions: Sequence[Question], options: TaskOptions) -> AnyRetriever:
    """Returns the retriever a user gave, the distractor retriever, or BM25 over the corpus."""
    given = options.get("retriever")
    if options.get("distractors"):
        if given is not None or "corpus" in options:
            raise UsageError(
                "distractors=True searches each question's own paragraphs: leave out corpus= and retriever="
            )
        return DistractorRetriever(questions)
    if isinstance(given, (Retriever, QuestionRetriever)) and not isinstance(given, type):
        return given
    path = find_corpus(card.corpus if "corpus" not in options else os.fspath(options["corpus"]))
    if given is not None:
        if not callable(given):
            raise UsageError(f"retriever= has neither search() nor search_for(): got {type(given).__name__}")
        from searchgym.corpora.documents import open_corpus

        return given(open_corpus(path))
    return load_corpus(path)


def find_corpus(name: str) -> Path:
    """Returns the path behind ``corpus=``: a path itself, or a corpus card's bundled or downloaded file.

    Raises:
        DataMissingError: The card's file is not in the data folder; says how to get it.
        UnknownNameError: Neither a path that exists nor a corpus card.
    """
    path = Path(name)
    if path.exists():
        return path
    if path.suffix or len(path.parts) > 1:
        raise DataMissingError("no such corpus file or index folder: check corpus=", path)
    card = load_card(CorpusCard, find_card("corpora", name))
    if card.bundled:
        return bundled_file(card.bundled)
    local = home() / "data" / card.file
    index = home() / "indexes" / card.name
    for found in (index, local):
        if found.exists():
            return found
    raise DataMissingError(
        f"corpus {card.name!r} ({card.summary}) is neither at {local} nor indexed at {index}: run "
        f"`searchgym corpus get {card.name}`, or pass corpus=PATH (a corpus file or an index folder)"
    )


def load_corpus(path: Path) -> BM25Retriever:
    """Returns BM25 over an index folder, or over a corpus file whose index is built once and cached by content."""
    from searchgym.corpora.files import sha256_file
    from searchgym.corpora.index import build_index, load_index
    from searchgym.corpora.passages import read_passages
    from searchgym.errors import RunExistsError

    if (path / "manifest.json").exists():
        return load_index(path)
    file = path / "corpus.jsonl" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise DataMissingError(
            "is a folder, but neither an index (manifest.json) nor a BEIR corpus (corpus.jsonl)", path
        )
    folder = home() / "indexes" / f"bm25-{sha256_file(file)[:24]}"
    if not folder.exists():
        with contextlib.suppress(RunExistsError):  # another process may build the same index meanwhile
            build_index(read_passages(path), folder)
    return load_index(folder)

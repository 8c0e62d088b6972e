"""Tasks: environment cards with their questions, retriever and reward loaded, ready for environments and the engine."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, TypeGuard, Unpack, cast

from searchgym import scoring
from searchgym.browsing.pages import pages_of
from searchgym.cards import EnvCard, GeneratedSpec, MaskedSpec, ProtocolName, QuestionSource, data_file
from searchgym.corpora.own import home
from searchgym.corpora.retrieval.cards import RetrieverCard, Sources, find_retriever
from searchgym.corpora.retrieval.retriever import AnyRetriever, QuestionRetriever, Retriever, check_retriever
from searchgym.envs.core import Rules, State
from searchgym.envs.data import bundled_file, find_corpus, load_corpus
from searchgym.envs.reward import RewardFunction, answer_scores, checked_reward, get_reward
from searchgym.errors import CardError, DataMissingError, UnknownNameError, UsageError
from searchgym.named import check_call
from searchgym.options import read
from searchgym.packages import install_command
from searchgym.questions.subset import SEED, draw_subset
from searchgym.records import Passage, Question, simulated_share


class TaskOptions(TypedDict, total=False):
    """Options that override an environment's card; an option that is missing or None comes from the card."""

    questions: str | os.PathLike[str] | Sequence[Question] | Sequence[str]
    """Questions: a file, a Hugging Face data set (``hf:OWNER/NAME:CONFIG/SPLIT``), several of these, or `Question`
    records."""
    corpus: str | os.PathLike[str]
    """Corpus to search: a file or folder of documents (indexed once, then cached), an index folder, or a card name."""
    retriever: AnyRetriever | Callable[[Iterable[Passage]], AnyRetriever] | str | dict[str, Any] | RetrieverCard
    """How to search, instead of BM25: a retriever card, its name or a mapping; the URL of a server; a retriever;
    or a function that builds one from the corpus's passages."""
    retrievers: Mapping[str, Any]
    """Further retrievers by name, each searched by actions of its own (``<web_search>`` for one called web). A value is
    what `retriever` takes, searching the same corpus, or ``{"corpus": ..., "retriever": ...}`` for one of its own."""
    reward: str | Mapping[str, Any] | RewardFunction
    """Reward: a kind's name (a module of `searchgym.envs.rewards`), ``kind`` and options, ``"module:function"``, or a
    callable that takes the final `State`."""
    protocol: ProtocolName
    """Action grammar that the model writes."""
    distractors: bool
    """Whether each question searches only the paragraphs that come with it, instead of `corpus`."""
    aliases: str | os.PathLike[str]
    """Path to 2WikiMultihopQA's ``id_aliases.json``, for its evidence scores."""
    world: Mapping[str, Any]
    """Fields of `WorldSpec` that replace the card's, to generate another world: ``{"seed": 7, "size": 200}``."""
    generated: Mapping[str, Any]
    """Fields of `GeneratedSpec` that replace the card's: ``{"n": 200, "split": "test"}``."""
    masked: Mapping[str, Any]
    """Fields of `MaskedSpec` that replace the card's: ``{"source": "hidden", "masks": [1, 2]}``."""
    open_answers: Mapping[str, Any]
    """Fields of `OpenSpec` that replace the card's: ``{"n": 50, "facts": 3}``."""
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
    """Maximum number of words of each passage that a search shows where pages can be opened."""
    retriever_deadline: float
    """Seconds that one retrieval may take, retries included."""


SOURCE: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
"""Pattern of the name of a further retriever, which is part of a tag."""

_GIVE_CORPUS: Final = "pass corpus=PATH, on the command line --corpus PATH (a file or a folder of documents)"

RULE_OPTIONS = (
    "protocol", "top_k", "max_turns", "max_queries", "max_observation_words", "browse", "snippet_words",
    "retriever_deadline",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One environment with its data loaded: questions, a retriever, rules and a reward."""

    card: EnvCard
    rules: Rules
    questions: tuple[Question, ...]
    retriever: AnyRetriever
    reward: RewardFunction
    by_id: Mapping[str, Question]
    """Question id to question."""
    aliases: scoring.EntityAliases | None = None
    """Entity id to the entity's names, for 2WikiMultihopQA's evidence scores."""
    retrievers: Mapping[str, AnyRetriever] = dataclasses.field(default_factory=dict)
    """Further retrievers by name."""
    drawn: Mapping[str, int] | None = None
    """How the questions were drawn (``n`` of how many, ``of``, by which ``seed``); None: all that there are."""

    def source(self, name: str) -> AnyRetriever:
        """Returns the retriever of that name; the environment's own for an empty one."""
        return self.retrievers[name] if name else self.retriever

    def find(self, question_id: str) -> Question:
        """Returns the question with an id.

        Raises:
            UnknownNameError: No such question in this task.
        """
        if question_id not in self.by_id:
            raise UnknownNameError("question id", question_id, self.by_id)
        return self.by_id[question_id]

    def asking(self, questions: Iterable[Question]) -> Task:
        """Returns the task with other questions, over the same corpus and under the same rules."""
        asked = tuple(questions)
        return dataclasses.replace(self, questions=asked, by_id={q.id: q for q in asked}, drawn=None)

    def subset(self, n: int | None, seed: int = SEED) -> Task:
        """Returns the task with `n` of its questions, drawn by `draw_subset`; itself if it has no more, or for None."""
        if n is None or n >= len(self.questions):
            return self
        drawn = {"n": n, "of": len(self.questions), "seed": seed}
        return dataclasses.replace(self.asking(draw_subset(self.questions, n, seed)), drawn=drawn)

    def score(self, state: State) -> tuple[float, dict[str, float]]:
        """Returns the reward and the scores of a finished episode; zeros if its retriever failed, so without an answer.

        Raises:
            RewardError: The reward function raised, or returned something other than a finite number.
        """
        scores = answer_scores(state)
        if state.stop_reason == "retriever_error":
            return 0.0, scores
        if written := simulated_share(state.searches):
            scores["simulated"] = written
        return checked_reward(self.reward, state), scores


# -- resolving a card ----------------------------------------------------------------------------------------------


def load_task(card: EnvCard, **options: Unpack[TaskOptions]) -> Task:
    """Resolves a card and a user's options into a task.

    Raises:
        UnknownNameError: An option that does not exist.
        UsageError: An option has a wrong type, is out of range, or conflicts with another.
        DataMissingError: Questions or corpus are neither given, nor in the data folder, nor on the Hugging Face hub.
        DataError: A file cannot be read.
    """
    options = named_options(card, options)
    card = _labelled(_override(card, options), options.get("questions"))
    given = options.get("retriever")
    if isinstance(given, (str, dict)):
        options["retriever"] = _find_card(card, given)
    reward = get_reward(options.get("reward", card.reward))
    options = _generate(card, options)
    aliases = load_aliases(card, options.get("aliases"))
    questions = load_questions(card, options.get("questions"), options.get("aliases"))
    by_id = {question.id: question for question in questions}
    if len(by_id) != len(questions):
        raise UsageError(f"{card.id}: question ids are not unique ({len(questions)} questions, {len(by_id)} ids)")
    retriever = load_retriever(card, questions, options)
    further = load_sources(card, questions, options)
    if card.masked is not None:
        from searchgym.masking.hiding import hiding

        if card.browse:
            raise UsageError(f"{card.id}: browse would open the pages that searches hide: leave browse off")
        if further:
            raise UsageError(f"{card.id}: retrievers would find the pages that searches hide: leave them out")
        retriever = hiding(retriever, questions, card.masked.hold_out)
    pages = pages_of(retriever) if card.browse else None
    rules = Rules.from_card(card, pages, tuple(further))
    return Task(card, rules, questions, retriever, reward, by_id, aliases, further)


def named_options(card: EnvCard, options: Mapping[str, Any]) -> TaskOptions:
    """Returns the options that are not None, once their names are known and the corpus is there; no file is read.

    Raises:
        UnknownNameError: An option or a corpus card that does not exist.
        UsageError: The corpus is neither a path nor a name.
        DataMissingError: The corpus cannot be found.
    """
    for name in options:
        if name not in TaskOptions.__annotations__:
            raise UnknownNameError("option", name, TaskOptions.__annotations__)
    given = cast(TaskOptions, {name: value for name, value in options.items() if value is not None})
    if "corpus" in given and not given.get("distractors"):
        find_corpus(_path(card, given["corpus"]))
    return given


def load_aliases(card: EnvCard, path: str | os.PathLike[str] | None) -> scoring.EntityAliases | None:
    """Returns entity aliases by entity id, or None if no file was given.

    Raises:
        UsageError: The environment's scorer does not use aliases.
    """
    if path is None:
        return None
    if card.scorer != "2wiki":
        raise UsageError(f"{card.id}: aliases= is for 2WikiMultihopQA, the scorer here is {card.scorer!r}")
    from searchgym.corpora.questions import read_aliases

    return {entity: frozenset(names) for entity, names in read_aliases(path).items()}


def _override(card: EnvCard, options: TaskOptions) -> EnvCard:
    """Returns the card with the user's rules and world applied and checked."""
    given: dict[str, Any] = {name: value for name, value in options.items() if name in RULE_OPTIONS}
    if "world" in options:
        given["world"] = _spec(card, "world", options["world"])
    if "generated" in options:
        given["generated"] = _spec(card, "generated", options["generated"])
    if "masked" in options:
        given["masked"] = _spec(card, "masked", options["masked"])
    if "open_answers" in options:
        given["open_answers"] = _spec(card, "open_answers", options["open_answers"])
    try:
        return read(EnvCard, dataclasses.asdict(card) | given, card.id)
    except CardError as error:
        raise UsageError(str(error)) from None


def _labelled(card: EnvCard, given: object) -> EnvCard:
    """Returns the card with the split of the questions that are asked, in place of that of its own data set.

    Args:
        card: The card, with the user's options applied.
        given: The user's questions; None for the card's.
    """
    source, spec = card.questions, card.world or card.generated or card.masked
    if given is None:
        label = spec.split if spec is not None else source.split
    else:
        several = given if isinstance(given, (list, tuple)) else [given]
        names = [Path(one).name for one in several if isinstance(one, (str, os.PathLike))]
        if not source.file or names == [source.file] or given == source.hub:
            return card
        label = f"given ({', '.join(names)})" if names else "given"
    return dataclasses.replace(card, questions=dataclasses.replace(source, split=label))


def _spec(card: EnvCard, name: str, given: object) -> dict[str, Any]:
    """Returns the fields of the card's world or generated questions with those the user gave replaced."""
    spec = getattr(card, name)
    if spec is None:
        what = {
            "world": "generated worlds",
            "generated": "generated questions",
            "masked": "masked spans",
            "open_answers": "reports and questions with several answers",
        }[name]
        raise UsageError(f"{card.id}: {name}= is for {what}, this environment's questions are not generated so")
    if not isinstance(given, Mapping):
        raise UsageError(f"{card.id}: {name}= is a mapping such as {{'seed': 7}}, got {type(given).__name__}")
    return dataclasses.asdict(spec) | dict(given)


def _generate(card: EnvCard, options: TaskOptions) -> TaskOptions:
    """Returns the options, completed with generated questions, and a world's corpus, where the user gave none."""
    if card.generated is not None and "questions" not in options:
        return _with_generated(card, card.generated, options)
    if card.masked is not None and "questions" not in options:
        return _with_masked(card, card.masked, options)
    user_corpus = "corpus" in options or bool(options.get("distractors")) or _has_corpus(options.get("retriever"))
    if card.world is None or ("questions" in options and user_corpus):
        return options
    from searchgym.corpora.worlds import cached_world

    folder = cached_world(card.world, home() / "worlds")
    files: TaskOptions = {"questions": folder / "questions.jsonl"}
    if card.open_answers is not None:
        from searchgym.open_answers.tasks import open_tasks

        files["questions"] = open_tasks(card.world, card.open_answers)
    if not user_corpus:
        files["corpus"] = folder / "corpus.jsonl"
    return {**files, **options}


def _with_generated(card: EnvCard, spec: GeneratedSpec, options: TaskOptions) -> TaskOptions:
    """Returns the options with questions generated from the user's corpus: at first use, then from the cache."""
    if "corpus" not in options:
        raise UsageError(f"{card.id} asks about a corpus of yours: {_GIVE_CORPUS}")
    from searchgym.questions.generate import USUAL, Plan
    from searchgym.questions.storage import cached_set, read_split

    path = find_corpus(_path(card, options["corpus"]))
    corpus = load_corpus(path)
    plan = Plan(n=spec.n, seed=spec.seed, top_k=card.top_k, shapes=tuple(spec.shapes) or USUAL)
    folder = cached_set(corpus, spec.pack, plan, home() / "questions", str(path), spec.hold_out)
    return {"retriever": corpus, **options, "questions": read_split(folder, spec.split)}


def _with_masked(card: EnvCard, spec: MaskedSpec, options: TaskOptions) -> TaskOptions:
    """Returns the options with masked spans of the user's corpus: generated at first use, then from the cache."""
    if "corpus" not in options:
        raise UsageError(f"{card.id} hides parts of a corpus of yours: {_GIVE_CORPUS}")
    from searchgym.masking.generate import Rules as Shown
    from searchgym.masking.storage import cached_masks
    from searchgym.questions.storage import read_split

    corpus = load_corpus(find_corpus(_path(card, options["corpus"])))
    shown = Shown(top_k=card.top_k, words=card.max_observation_words, searches=max(1, card.max_turns - 1))
    folder = cached_masks(corpus, spec, shown, home() / "masked")
    return {"retriever": corpus, **options, "questions": read_split(folder, spec.split)}


def _has_corpus(retriever: object) -> bool:
    """Returns whether a user's retriever needs no corpus from the environment."""
    if isinstance(retriever, RetrieverCard):
        return not retriever.needs_corpus
    return retriever is not None and not _is_function(retriever)


def _is_function(retriever: object) -> bool:
    """Returns whether this is a function that builds a retriever from passages, rather than a retriever itself."""
    return callable(retriever) and not _is_retriever(retriever)


def _is_retriever(given: object) -> TypeGuard[AnyRetriever]:
    return isinstance(given, (Retriever, QuestionRetriever)) and not isinstance(given, type)


def load_questions(
    card: EnvCard,
    given: str | os.PathLike[str] | Sequence[Question] | Sequence[str] | None,
    aliases: str | os.PathLike[str] | None,
) -> tuple[Question, ...]:
    """Returns the user's questions, or else the card's: bundled, from the data folder, or from the Hugging Face hub.

    Raises:
        UsageError: `given` is empty, or neither paths nor `Question` records.
        DataMissingError: No questions were given and the card's cannot be found.
    """
    source = card.questions
    if given is not None and not isinstance(given, (str, os.PathLike)):
        records: list[Any] = list(given) if isinstance(given, Sequence) else [given]
        if not records:
            raise UsageError(f"{card.id}: questions= is empty")
        if all(isinstance(record, (str, os.PathLike)) for record in records):
            return _from_several(card, records, aliases)
        if not all(isinstance(record, Question) for record in records):
            what = "neither paths nor a list of Question records"
            raise UsageError(f"{card.id}: questions= is {what}: {given!r:.80}")
        return tuple(records)
    from searchgym.corpora.hub import open_questions

    local = data_file(home() / "data", source.file)
    if given is None and not source.bundled and not local.exists():
        return _hub_questions(card, source, local)
    default = bundled_file(source.bundled) if source.bundled else local
    return tuple(open_questions(default if given is None else given, aliases=aliases))


def _from_several(
    card: EnvCard, sources: Sequence[str], aliases: str | os.PathLike[str] | None
) -> tuple[Question, ...]:
    """Returns the questions of several sources in a row; where they share ids, each id gets its source's number."""
    parts = [load_questions(card, source, aliases) for source in sources]
    ids = [question.id for part in parts for question in part]
    if len(set(ids)) == len(ids):
        return tuple(question for part in parts for question in part)
    return tuple(
        dataclasses.replace(question, id=f"{number}/{question.id}")
        for number, part in enumerate(parts, start=1)
        for question in part
    )


def _hub_questions(card: EnvCard, source: QuestionSource, local: Path) -> tuple[Question, ...]:
    """Returns questions from the Hugging Face hub; if it has none, the error tells where to get the file and put it."""
    reason = ""
    if source.hub is not None:
        reason = f" (from the hub: {install_command('train')})"
        if importlib.util.find_spec("datasets") is not None:
            from searchgym.corpora.hub import read_hub_questions

            try:
                return tuple(read_hub_questions(source.hub))
            except DataMissingError as error:
                reason = f" (the hub: {error.reason.partition(' (')[0]})"
    folder = source.dataset.lower()
    raise DataMissingError(
        f"{card.id} has no questions: {source.file} is not here ({source.dataset}, {source.size:,} questions)\n"
        f"get it from {source.get}{reason}\n"
        f"put it at {local}, or pass questions=PATH; to evaluate: or SEARCHGYM_DATA=DIR with {folder}/questions.json"
    )


def _find_card(card: EnvCard, given: str | dict[str, Any]) -> RetrieverCard:
    """Returns the retriever card that a user names; a bare URL sets no deadline, so that the environment's applies."""
    found = find_retriever(given)
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return dataclasses.replace(found, deadline=card.retriever_deadline)  # type: ignore[call-arg]
    return found


def load_retriever(card: EnvCard, questions: Sequence[Question], options: TaskOptions) -> AnyRetriever:
    """Returns the user's retriever, the distractor retriever, or BM25 over the corpus.

    Raises:
        UsageError: `retriever` conflicts with `distractors`, is not a retriever, or takes other arguments.
        DataMissingError: The corpus cannot be found.
    """
    given = options.get("retriever")
    if options.get("distractors"):
        if given is not None:
            raise UsageError("distractors=True searches each question's own paragraphs: leave out retriever=")
        from searchgym.corpora.retrieval.index.distractors import DistractorRetriever

        return DistractorRetriever(questions)
    if _is_retriever(given):
        check_retriever(given)
        return given
    if isinstance(given, RetrieverCard) and not given.needs_corpus:
        return _checked(given.open(Sources(questions=questions)), f"retriever {given.kind}")
    path = _corpus_of(card, questions, options)
    if given is None or isinstance(given, RetrieverCard):
        return load_corpus(path, given)
    if not callable(given):
        raise UsageError(f"retriever= has neither search() nor search_for(): got {type(given).__name__}")
    check_call("the function retriever=", given, "passages")
    from searchgym.corpora.documents import open_corpus

    return _checked(given(open_corpus(path)), "the function retriever=")


def _checked(opened: object, by: str) -> AnyRetriever:
    """Returns what a card or a function of a user's opened, after checking that it can be searched."""
    if not _is_retriever(opened):
        raise UsageError(f"{by} returned {type(opened).__name__}, which has no search()")
    check_retriever(opened)
    return opened


def _corpus_of(card: EnvCard, questions: Sequence[Question], options: TaskOptions) -> Path:
    """Returns the path of the user's corpus, or else of the card's."""
    if "corpus" in options:
        return find_corpus(_path(card, options["corpus"]))
    own = "; or search each question's own paragraphs: distractors=True"
    return find_corpus(card.corpus, own if any(question.paragraphs for question in questions) else "")


def load_sources(card: EnvCard, questions: Sequence[Question], options: TaskOptions) -> dict[str, AnyRetriever]:
    """Returns the further retrievers by name, in the user's order.

    Raises:
        UsageError: `retrievers` is no mapping, or one has a name that is no tag or a value that is no retriever.
        DataMissingError: A corpus cannot be found.
    """
    given = options.get("retrievers", {})
    if not isinstance(given, Mapping):
        raise UsageError(f"{card.id}: retrievers= is a mapping such as {{'web': 'bm25'}}, got {type(given).__name__}")
    found: dict[str, AnyRetriever] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not SOURCE.fullmatch(name):
            raise UsageError(
                f"{card.id}: retrievers= has the name {name!r:.60}: "
                "expected a small letter and at most 30 more, digits or _"
            )
        if value is None or (isinstance(value, (str, Mapping)) and not value):
            raise UsageError(f"{card.id}: retrievers.{name} is empty: give a retriever, its card or a corpus")
        own: dict[str, Any] = {"retriever": value}
        if isinstance(value, Mapping) and "corpus" in value:
            if unknown := sorted(map(str, value.keys() - {"corpus", "retriever"})):
                raise UsageError(f"{card.id}: retrievers.{name} has {', '.join(unknown)}: expected corpus, retriever")
            own = dict(value)
        if isinstance(own.get("retriever"), (str, dict)):
            own["retriever"] = _find_card(card, own["retriever"])
        merged: Any = {key: options[key] for key in ("corpus",) if key in options} | own
        try:
            found[name] = load_retriever(card, questions, merged)
        except UsageError as error:
            raise UsageError(f"{card.id}: retrievers.{name}: {str(error).removeprefix(f'{card.id}: ')}") from None
    return found


def _path(card: EnvCard, given: object) -> str | os.PathLike[str]:
    """Returns the user's ``corpus=``, refusing anything but a path or a name."""
    if not isinstance(given, (str, os.PathLike)):
        raise UsageError(f"{card.id}: corpus= is a path or the name of a corpus card, got {type(given).__name__}")
    return given

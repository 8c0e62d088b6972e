"""Cards: small YAML files that describe environments, agents and corpora, read into typed dataclasses.

A card is strict: an unknown key is refused with the nearest known one, a missing key and a wrong type are named with
the file they stand in. Cards live in the top-level folders of the repository and in ``searchgym/_cards`` of a wheel.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union

import yaml

from searchgym.errors import CardError, UnknownNameError, did_you_mean

T = TypeVar("T")
ScorerName = Literal["hotpotqa", "2wiki", "musique", "flashrag", "search_r1"]
ProtocolName = Literal["tags", "tool_calls"]
MAX_CALLS: Final = 100
"""Calls to models in one episode, unless an agent's card says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSource:
    """Where an environment's questions come from."""

    dataset: str
    """The data set's own name."""
    split: str
    size: int
    """Number of questions in the split; a file of another size is reported, not refused."""
    file: str
    """File name to look for in the data folder."""
    get: str
    """Where a person gets that file."""
    hub: str | None = None
    """Hugging Face data set: ``hf:OWNER/NAME:CONFIG/SPLIT``."""
    bundled: str | None = None
    """File inside the package, for the demonstration data."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A generated world: the same spec gives the same pages and questions, byte for byte."""

    level: Literal["simple", "full"] = "simple"
    """Short templated pages, or varied language with ambiguity and distractors."""
    size: int = 500
    """Number of questions; the number of pages follows from it."""
    seed: int = 0
    split: Literal["train", "validation", "test", "transfer"] = "train"
    """Which names, templates and relations it may use."""
    hops: tuple[int, ...] = (1, 2, 3, 4)
    """Pages that its questions need."""
    strata: tuple[str, ...] = ()
    """``full`` only: where a question's own text must find its gold pages: some of ``1``, ``2-5``, ``6-20`` and
    ``reformulation`` (further down); all if empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCard:
    """One environment id: data, budgets and rules."""

    id: str
    """``namespace/Name-vN``; the version changes when results would."""
    summary: str
    questions: QuestionSource
    corpus: str
    """Name of a corpus card, or a path to a corpus file or an index folder."""
    world: WorldSpec | None = None
    """Where questions and corpus are generated: by what."""
    scorer: ScorerName = "hotpotqa"
    """Which official scorer evaluation reports."""
    reward: str = "em"
    """``em``, ``f1`` or ``module:function``."""
    protocol: ProtocolName = "tags"
    thoughts: Literal["keep", "drop"] = "keep"
    """Whether the transcript keeps the model's ``<think>`` blocks."""
    top_k: int = 3
    """Passages per query."""
    max_turns: int = 5
    """Actions per episode, the answer included: n - 1 searches at most."""
    max_queries: int = 1
    """Queries per search action."""
    max_observation_words: int = 500
    """Words of retrieved text per turn; what is longer is cut."""
    retriever_deadline: float = 30.0
    """Seconds that a retrieval may take, retries included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCard:
    """One job of an agent that a model does."""

    prompt: str
    """Prompt file: beside the card, or an absolute path. ``{field}`` stands for a field."""
    fields: list[str]
    """What the workflow fills in; the prompt must use each and no other."""
    max_tokens: int = 256
    """Tokens of one response at most."""
    stop: list[str] | None = None
    """Texts that end a response beside the model's end-of-turn; the closing tags of actions if not given."""
    penalty: float = 0.0
    """Added by credit ``format`` to the reward of a response that the role's parser refuses; at most 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCard:
    """One agent: the workflow behind a name."""

    name: str
    summary: str
    workflow: str
    """``module:Class`` of the agent."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the class."""
    max_calls: int = MAX_CALLS
    """Calls to models in one episode at most: a workflow that never ends is ended."""
    roles: dict[str, RoleCard] = dataclasses.field(default_factory=dict)
    """What models do in it, by name; empty for a scripted agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusCard:
    """One corpus: where it comes from and what it must be."""

    name: str
    summary: str
    source: str
    """Where it was published."""
    licence: str
    file: str
    """File name to look for in the data folder."""
    url: str | None = None
    """What ``searchgym corpus get`` downloads."""
    hub: str | None = None
    """Hugging Face data set file: ``hf:OWNER/NAME/FILE``."""
    bundled: str | None = None
    """File inside the package, for the demonstration data."""
    sha256: str | None = None
    """Of the file as published; None where the project has not seen the file."""
    bytes: int | None = None
    passages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCard:
    """One text encoder of sentence-transformers: which weights, and how texts are given to them."""

    name: str
    summary: str = ""
    model: str
    """Name on the Hugging Face hub, a folder, or ``package:NAME/FOLDER`` inside an installed package."""
    revision: str | None = None
    """Commit of the hub's repository."""
    licence: str = ""
    query: str = "{text}"
    """What is encoded of a query; ``{text}`` stands for it."""
    passage: str = "{title}\n{text}"
    """What is encoded of a passage; ``{title}`` and ``{text}`` stand for its own."""
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"
    normalise: bool = True
    """To length 1: inner products are then cosines."""
    max_tokens: int = 512
    """Of one text; what is longer is cut."""
    dimension: int
    """Numbers of one vector."""
    batch: int = 64
    """Texts encoded at once."""
    device: str | None = None
    """``cpu``, ``cuda``; the best there is where None."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def vectors(self) -> dict[str, Any]:
        """Returns what the vectors of passages depend on."""
        names = ("model", "revision", "passage", "pooling", "normalise", "max_tokens", "dimension")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One model of this project: how it was made and what it can do. The card stands in the model's folder."""

    name: str
    summary: str
    licence: str
    command: str
    """Makes it again."""
    seed: int
    tokens: int
    """Read in training."""
    seconds: int
    """Of training, evaluations apart."""
    threads: int
    """Of torch in training; the same number gives the same weights on the same kind of machine."""
    parameters: int
    vocabulary: int
    """Tokens of the tokenizer."""
    positions: int
    """Tokens of a context at most."""
    sha256: str
    """Of ``model.safetensors``."""
    questions: dict[str, int]
    """Of each world of `scores`; those that read a page twice are not asked."""
    scores: dict[str, Any]
    """EM by world (``LEVEL/SPLIT``), by ``reading`` (gold pages given) or ``search`` (its own), by hops."""
    teams: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Agent to ``em`` and, by role, ``legal``: the share of outputs that the role may write. On the first 100 questions
    of ``simple/validation``, sampled at temperature 1."""


CARD_KINDS: dict[str, type[Any]] = {
    "envs": EnvCard,
    "agents": AgentCard,
    "corpora": CorpusCard,
    "models": ModelCard,
    "encoders": EncoderCard,
}

CARD_FOLDERS = {kind: kind for kind in CARD_KINDS} | {
    "encoders": "corpora/encoders",
    "retrievers": "corpora/retrievers",
    "train": "train",
}
"""Kind of card to its folder. ``retrievers`` are read by `searchgym.corpora.retrieval.cards`, recipes in ``train`` by
`searchgym.train.recipe.load`."""

SINGULAR = {
    "envs": "environment",
    "agents": "agent",
    "corpora": "corpus",
    "models": "model",
    "encoders": "encoder",
    "retrievers": "retriever",
    "train": "recipe",
}


def cards_folder(kind: str) -> Path:
    """Returns the folder of a kind of card: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent
    shipped = package / "_cards" / CARD_FOLDERS[kind]
    return shipped if shipped.is_dir() else package.parent / CARD_FOLDERS[kind]


def list_cards(kind: str) -> dict[str, Path]:
    """Returns ``{name: file}`` of every shipped card of a kind; cards with more beside them are ``NAME/card.yaml``."""
    folder = cards_folder(kind)
    flat = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return flat | {path.parent.name: path for path in sorted(folder.glob("*/card.yaml"))}


def find_card(kind: str, name: str) -> Path:
    """Returns the file of a card given its name or its path.

    Raises:
        CardError: No such file.
        UnknownNameError: No such card; the nearest name is suggested.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise CardError(f"{path}: no such file")
        return path
    if (path / "card.yaml").is_file():
        return path / "card.yaml"
    known = list_cards(kind)
    if name not in known:
        raise UnknownNameError(f"{SINGULAR[kind]} card", name, known)
    return known[name]


class _Loader(yaml.SafeLoader):
    """Reads plain YAML and refuses a key that stands twice, of which YAML's own loader keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


# ``1e-4`` is a number, as in YAML 1.2; in the 1.1 that PyYAML reads it would be text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str) -> Any:
    """Returns what a YAML text holds, strictly: a key that stands twice is a ``yaml.YAMLError``."""
    return yaml.load(text, _Loader)  # a SafeLoader


def load_card(cls: type[T], path: Path) -> T:
    """Reads one YAML card.

    Raises:
        CardError: The file cannot be read, is not YAML, or does not fit `cls`.
    """
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CardError(f"{path}: cannot be read as YAML: {error}") from error
    return build(cls, data, str(path))


def build(cls: type[T], data: object, where: str) -> T:
    """Builds a dataclass from plain data, strictly.

    Args:
        cls: A dataclass type; nested dataclasses, unions, literals, tuples, lists and dicts are followed.
        data: What YAML or JSON gave.
        where: File and key path, for messages.

    Raises:
        CardError: An unknown key, a missing key or a value of the wrong type.
    """
    if not isinstance(data, dict):
        raise CardError(f"{where}: expected keys and values, got {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise CardError(f"{where}: unknown key {key!r}{did_you_mean(str(key), fields)}")
    required = {n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING}
    if missing := sorted(required - data.keys()):
        raise CardError(f"{where}: missing key {', '.join(missing)}")
    return cls(**{key: _convert(hints[key], value, f"{where}: {key}") for key, value in data.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Returns `value` as the type `hint` asks; floats accept integers, tuples accept lists, nothing else is coerced."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return value if type(value) is hint else build(typing.cast(type[Any], hint), value, where)
    if origin in (Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is Literal:
        if value not in args:
            raise CardError(f"{where}: got {value!r}{did_you_mean(str(value), map(str, args))}")
        return value
    if origin in (list, tuple) and isinstance(value, list):
        return origin(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _convert(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = origin or hint
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        raise CardError(f"{where}: expected {getattr(plain, '__name__', plain)}, got {value!r}")
    return value


def _convert_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    """Returns `value` as the first member of a union that takes it."""
    if value is None and type(None) in args:
        return None
    problems = []
    for arg in args:
        if arg is not type(None):
            try:
                return _convert(arg, value, where)
            except CardError as error:
                problems.append(str(error))
    raise CardError("; ".join(problems))

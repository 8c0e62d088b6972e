"""Cards: small YAML files that describe environments, agents, corpora and models, read into typed dataclasses.

Cards are read strictly: the error for an unknown key suggests the nearest known one, and every error names the file and
the key. Cards live in the top-level folders of the repository and in ``searchgym/_cards`` of a wheel.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from annotated_types import Ge

from searchgym.errors import CardError, UnknownNameError
from searchgym.options import Options, read
from searchgym.options.yaml import read_source

T = TypeVar("T")
ProtocolName = Literal["tags", "tool_calls", "propose"]
SeveralCalls = Literal["first", "all", "refuse"]
MAX_CALLS: Final = 100
"""Default limit on model calls per episode, for agents whose card sets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCard(Options):
    """One role of an agent, filled by a model: its prompt, limits and stop strings."""

    prompt: str
    """Prompt file, relative to the card's folder or absolute; ``{name}`` in it is replaced by that field's value."""
    fields: list[str]
    """Names of the fields that the workflow fills in; the prompt must use all of them and no others."""
    max_tokens: int = 256
    """Maximum length of one response, in tokens."""
    max_thought_tokens: Annotated[int, Ge(1)] | None = None
    """Maximum number of tokens before an open thought is closed by inserting its closing marker, which is not trained
    on; the rest of `max_tokens` remains for the action. None: thoughts may fill the response."""
    stop: list[str] | None = None
    """Strings that end a response, in addition to the model's end-of-turn token. Default: the closing tags of
    actions."""
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
    max_calls: Annotated[int, Ge(1)] = MAX_CALLS
    """Maximum number of model calls per episode, which stops workflows that loop forever."""
    roles: dict[str, RoleCard] = dataclasses.field(default_factory=dict)
    """Role name to role; empty for a scripted agent, which calls no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusCard(Options):
    """Card of one corpus: its source, its licence, and its file with the required checksum and size."""

    name: str
    summary: str
    source: str
    """Where the corpus is published, such as a URL."""
    licence: str
    file: str
    """Name of the file in the data folder."""
    url: str | None = None
    """URL that ``searchgym corpus get`` downloads."""
    hub: str | None = None
    """File of a Hugging Face data set: ``hf:OWNER/NAME/FILE``."""
    bundled: str | None = None
    """Path inside the package of a corpus file that ships with it (the demonstration data)."""
    sha256: str | None = None
    """SHA-256 of the published file; None if it was never checked."""
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
        """Replaces a text by the encoder card with that name or path."""
        return load_card(cls, find_card("encoders", value)) if isinstance(value, str) else value

    def vectors(self) -> dict[str, Any]:
        """Returns the fields that the passage vectors depend on, for comparison with a stored index."""
        names = ("model", "revision", "passage", "pooling", "normalise", "max_tokens", "dimension")
        return {name: getattr(self, name) for name in names}


CARD_FOLDERS: Final = {
    "envs": "envs",
    "agents": "agents",
    "corpora": "corpora",
    "models": "models",
    "encoders": "corpora/encoders",
    "retrievers": "corpora/retrievers",
    "packs": "corpora/packs",
    "pretrained": "models/pretrained",
    "suites": "eval",
    "train": "train",
    "pipelines": "train/pipelines",
}
"""Kind of card to its folder. ``retrievers`` are read by `searchgym.retrieval.cards`, packs by
`searchgym.questions.graphs.packs`, suites by `searchgym.eval.suites.cards`, recipes (``train``) by
`searchgym.train.recipe.load`, pipelines by `searchgym.cli.pipeline.pipeline`."""
NOUNS: Final = {"envs": "environment", "corpora": "corpus", "pretrained": "model", "train": "recipe"}
"""Kind of card to its singular for error messages; the singular of other kinds lacks only the last letter."""


def cards_folder(kind: str) -> Path:
    """Returns the folder with all cards of a kind: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).parents[1]
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
    """Returns the path of a card's file inside a folder.

    Raises:
        CardError: The name contains a folder.
    """
    if Path(name).name != name:
        raise CardError(f"file {name!r}: a card names a file in {folder} without its folder")
    return folder / name


def is_path(name: str, *kinds: str) -> bool:
    """Returns whether a name is a path: it has a separator or a suffix, or begins with a dot.

    Any other name refers to a shipped card, even if the working folder, which may be somebody else's, has a file of
    that name.

    Args:
        name: The name.
        kinds: Kinds of cards whose shipped names never count as paths, even with a suffix.
    """
    if any(name in list_cards(kind) for kind in kinds):
        return False
    return "/" in name or os.sep in name or name.startswith(".") or bool(Path(name).suffix)


def found_here(name: str) -> str:
    """Returns a hint for the error about an unknown name, if the working folder has a file or folder of that name."""
    here = bool(name) and os.path.exists(name)  # noqa: PTH110 - unlike Path's, it takes any text
    return f"; for the {'folder' if Path(name).is_dir() else 'file'} of that name here write ./{name}" if here else ""


def find_card(kind: str, name: str) -> Path:
    """Returns the file of a card given its name or its path (see `is_path`).

    Raises:
        CardError: No such file.
        UnknownNameError: No such card; the nearest name is suggested.
    """
    shipped, path = list_cards(kind), Path(name)
    if name in shipped:
        return shipped[name]
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise CardError(f"{path}: no such file")
        return path
    if is_path(name) and (path / "card.yaml").is_file():
        return path / "card.yaml"
    raise UnknownNameError(f"{NOUNS.get(kind, kind[:-1])} card", name, shipped, found_here(name))


def load_card(cls: type[T], path: Path) -> T:
    """Reads one YAML card.

    Raises:
        CardError: The file cannot be read, is not YAML, or does not fit `cls`.
    """
    return read(cls, *read_source(path))

"""Text encoders, which turn queries and passages into vectors with sentence-transformers.

Templates, pooling, maximum length and normalisation come from the encoder's card; those that the model's repository
configures are ignored.
"""

from __future__ import annotations

import importlib.util
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.hub import hub_answers, named_folder
from searchgym.errors import CardError, DataMissingError, UsageError
from searchgym.options.cards import EncoderCard
from searchgym.packages import install_command
from searchgym.records import Passage
from searchgym.threads import choose_threads

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Floats = npt.NDArray[np.float32]

CHARACTERS: Final = 64
"""Maximum number of characters of a text per token that the model accepts; longer texts are cut before tokenising.

A token has 2 to 5 characters in the languages of the world, so the tokenizer would cut the rest anyway. Exceptions are
long runs of spaces, and words of more than a hundred letters.
"""

_PACKAGE: Final = "package:"
_FIELD: Final = re.compile(r"\{(title|text)\}")
_lock = threading.Lock()
_encoders: dict[EncoderCard, Encoder] = {}


class Encoder:
    """Text encoder that runs in this process. Several threads may share it; they wait for each other.

    The vector of a text does not depend on the other texts of the batch, except for rounding (1e-6 in float32).

    Args:
        card: Encoder card, which names the model and its settings.

    Raises:
        CardError: The card's numbers or templates are not valid.
        UsageError: sentence-transformers is not installed, the device is not available, or the model's vectors have
            another dimension or the model fewer positions than the card says.
        DataMissingError: The model cannot be loaded.
    """

    def __init__(self, card: EncoderCard) -> None:
        _check(card)
        self.card = card
        self._lock = threading.Lock()  # tokenizers cannot be used by two threads at the same time
        self._model = _load(card)
        actual = self._encode(["a"]).shape[1]
        if actual != card.dimension:
            raise UsageError(
                f"encoder card {card.name!r}: dimension is {card.dimension}, the vectors of {card.model} have {actual}"
            )

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Returns the vectors of queries, (Q, D) float32, encoded by the card's template for queries."""
        return self._encode([_fill(self.card.query, {"text": text}) for text in texts])

    def encode_passages(self, passages: Sequence[Passage]) -> Floats:
        """Returns the vectors of passages, (N, D) float32, encoded by the card's template for passages."""
        return self._encode([_fill(self.card.passage, {"title": p.title, "text": p.text}) for p in passages])

    def _encode(self, texts: list[str]) -> Floats:
        import torch

        if not texts:
            return np.zeros((0, self.card.dimension), np.float32)
        most = CHARACTERS * self.card.max_tokens
        clean = [valid_text(text[:most]) or " " for text in texts]
        with self._lock, torch.inference_mode():
            vectors = self._model.encode(
                clean, batch_size=self.card.batch, show_progress_bar=False, convert_to_tensor=True
            ).float()
            if self.card.normalise:  # in float32 even if the model computes in half precision
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        return np.ascontiguousarray(vectors.cpu().numpy(), np.float32)


def load_encoder(card: EncoderCard) -> Encoder:
    """Returns the encoder of a card, which each process loads only once; raises the errors of `Encoder`."""
    with _lock:
        if card not in _encoders:
            _encoders[card] = Encoder(card)
        return _encoders[card]


def _fill(template: str, fields: Mapping[str, str]) -> str:
    """Returns a filled-in template. Fields are replaced in one pass, so braces inside a text stay as they are."""
    return _FIELD.sub(lambda match: fields.get(match[1], match[0]), template)


def valid_text(text: str) -> str:
    """Returns a text that every tokenizer accepts, unless it is empty: lone surrogates become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# -- loading -------------------------------------------------------------------------------------------------------


def _check(card: EncoderCard) -> None:
    """Raises a CardError if a card's numbers or templates are not valid."""
    for name, least in (("max_tokens", 4), ("dimension", 1), ("batch", 1)):
        if getattr(card, name) < least:
            raise CardError(f"encoder card {card.name!r}: {name} must be at least {least}, got {getattr(card, name)}")
    for name in ("query", "passage"):
        if "{text}" not in getattr(card, name):
            raise CardError(f"encoder card {card.name!r}: {name} must contain {{text}}, got {getattr(card, name)!r}")
    if "{title}" in card.query:
        raise CardError(f"encoder card {card.name!r}: query contains {{title}}, but queries have no title")


def _load(card: EncoderCard) -> SentenceTransformer:
    """Returns the card's model with its pooling, ready to encode."""
    if not card.model.startswith(_PACKAGE):
        named_folder(card.model)  # a wrong name is refused before the libraries are loaded, which takes seconds
    try:
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError as error:
        raise UsageError(
            f"encoders need sentence-transformers 6 or newer ({error}): {install_command('dense')}"
        ) from error
    if (card.device or "").startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"encoder card {card.name!r}: torch finds no GPU for device {card.device!r}")
    where: dict[str, Any] = {}
    if card.model.startswith(_PACKAGE):
        weights = str(_in_package(card.model))
    elif (folder := named_folder(card.model)) is not None:
        weights = str(folder)
    else:
        weights, where = card.model, {"revision": card.revision, "local_files_only": not hub_answers()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the libraries warn about each other and about a repository's files
            # `modality_config` passes texts on as they are: by default they are put into a model's chat template.
            transformer = Transformer(
                weights,
                model_kwargs={"dtype": getattr(torch, card.dtype), **where, "trust_remote_code": False},
                config_kwargs={**where, "trust_remote_code": False},
                processor_kwargs={**where, "trust_remote_code": False},
                modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
                module_output_name="token_embeddings",
                max_seq_length=card.max_tokens,
            )
            pooling = Pooling(card.dimension, pooling_mode=card.pooling)
            model = SentenceTransformer(modules=[transformer, pooling], device=card.device)
    except Exception as error:  # transformers, torch and the hub's client raise exceptions of many types
        why = "the hub cannot be reached, and in its cache: " if where.get("local_files_only") else ""
        raise DataMissingError(
            f"the encoder cannot be loaded ({why}{type(error).__name__}: {error!s:.300}): download it on a machine "
            f"with a network with `hf download {card.model}`, or make a card whose model is a folder",
            card.model,
        ) from error
    positions = getattr(transformer.model.config, "max_position_embeddings", card.max_tokens)
    if card.max_tokens > positions:
        raise UsageError(
            f"encoder card {card.name!r}: max_tokens is {card.max_tokens}, {card.model} has {positions} positions"
        )
    choose_threads(sum(parameter.numel() for parameter in model.parameters()))
    return model.eval()


def _in_package(model: str) -> Path:
    """Returns the folder that ``package:NAME/FOLDER`` names inside an installed package."""
    name, _, inside = model.removeprefix(_PACKAGE).partition("/")
    if (name and not name.isidentifier()) or ".." in Path(inside).parts or Path(inside).is_absolute():
        raise UsageError(f"{model}: expected package:NAME/FOLDER, a folder inside an installed package")
    spec = importlib.util.find_spec(name) if name else None  # finds a package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise DataMissingError(f"no such package: pip install {name.replace('_', '-')}", model)
    folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not folder.is_dir():
        raise DataMissingError(f"the package {name} has no folder {inside!r}: reinstall it", model)
    return folder

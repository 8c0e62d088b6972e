"""What an index folder may choose by its own card: the folder may be somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from searchgym.cards import EncoderCard, list_cards, load_card
from searchgym.corpora.own import is_own
from searchgym.corpora.retrieval.cards import (
    OUTSIDE,
    CacheCard,
    DenseCard,
    HybridCard,
    NoiseCard,
    RerankCard,
    RetrieverCard,
    leaves,
)
from searchgym.errors import CardError, UsageError


def check_own(folder: Path, manifest: bytes, card: RetrieverCard) -> None:
    """Refuses a folder's own card if it names code or servers, or models that this user did not build it with.

    Raises:
        UsageError: Says what the card names, and how to allow it.
    """
    if any(isinstance(leaf, OUTSIDE) for leaf in leaves(card)):
        raise UsageError(f"{folder}: its own card searches elsewhere too: name one that you trust (card=, --retriever)")
    name = unknown_model(card)
    if name is not None and not is_own(folder, manifest):
        raise UsageError(
            f"{folder} was not built by you, and its own card loads the model {name!r}, which no card of this "
            "installation names: if you trust it, name the card it was built for (card=, --retriever CARD)"
        )


def unknown_model(card: RetrieverCard) -> str | None:
    """Returns a model that a card loads and no encoder card of the package names; None if it loads no such model."""
    known = shipped_encoders()
    for model in models_of(card):
        if isinstance(model, str) or (model.model, model.revision) not in known:
            return model if isinstance(model, str) else model.model
    return None


def check_whole(data: Any) -> None:
    """Raises a CardError if a card in a manifest names another card, which would be a file outside of the folder."""
    if isinstance(data, list):
        for item in data:
            check_whole(item)
    elif isinstance(data, dict):
        for name in ("of", "encoder"):
            check_whole(data.get(name))
    elif data is not None:
        raise CardError(f"the manifest names the card {data!r:.80} instead of holding it")


def models_of(card: RetrieverCard) -> Iterator[EncoderCard | str]:
    """Yields the models that a card and those it wraps load: encoders, and cross-encoders by name."""
    if isinstance(card, HybridCard):
        for inner in card.of:
            yield from models_of(inner)
    elif isinstance(card, (RerankCard, NoiseCard, CacheCard)):
        yield from models_of(card.of)
    if isinstance(card, (DenseCard, RerankCard)) and card.encoder is not None:
        yield card.encoder
    if isinstance(card, RerankCard) and card.cross_encoder is not None:
        yield card.cross_encoder


def shipped_encoders() -> set[tuple[str, str | None]]:
    """Returns (model, revision) of the encoder cards that come with the package."""
    cards = (load_card(EncoderCard, path) for path in list_cards("encoders").values())
    return {(card.model, card.revision) for card in cards}

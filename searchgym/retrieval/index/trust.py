"""Trust in the retriever card of an index folder, which somebody else may have made."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.folders import home
from searchgym.errors import CardError, UsageError
from searchgym.options import kinds
from searchgym.options.cards import EncoderCard, list_cards, load_card
from searchgym.retrieval.cards import RetrieverCard

MARK: Final = ".own"
"""File that marks a folder made by this user: a keyed digest of its manifest, without meaning for anyone else."""


def names_code(data: Any) -> bool:
    """Returns whether a card in a manifest, or one inside it, is of a kind that does not ship with this package."""
    if isinstance(data, dict):
        kind = str(data.get("kind", ""))
        modules = [kind, *kinds(RetrieverCard).get(kind, [])]
        return any(":" in module for module in modules) or any(map(names_code, data.values()))
    return isinstance(data, list) and any(map(names_code, data))


def check_own(folder: Path, manifest: bytes, card: RetrieverCard | None) -> RetrieverCard:
    """Returns a folder's own card unless it names code or servers, or models that this user did not build it with.

    Args:
        folder: The index folder.
        manifest: Bytes of its manifest.
        card: Its own card; None if that names code.

    Raises:
        UsageError: The card names one of these; the message names it and the way to allow it.
    """
    if card is None:
        raise UsageError(f"{folder}: its own card names code: name one that you trust (card=, --retriever)")
    if any(not each.inner and not each.needs_corpus for each in card.walk()):
        raise UsageError(f"{folder}: its own card searches elsewhere too: name one that you trust (card=, --retriever)")
    name = unknown_model(card)
    if name is not None and not is_own(folder, manifest):
        raise UsageError(
            f"{folder} was not built by you, and its own card loads the model {name!r}, which no card of this "
            "installation names: if you trust it, name the card it was built for (card=, --retriever CARD)"
        )
    return card


def unknown_model(card: RetrieverCard) -> str | None:
    """Returns a model that a card loads and no encoder card of the package names; None if it loads no such model."""
    shipped = shipped_encoders()
    for model in (model for each in card.walk() for model in each.models):
        if isinstance(model, str) or (model.model, model.revision) not in shipped:
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


def shipped_encoders() -> set[tuple[str, str | None]]:
    """Returns (model, revision) of the encoder cards that ship with the package."""
    cards = (load_card(EncoderCard, path) for path in list_cards("encoders").values())
    return {(card.model, card.revision) for card in cards}


def mark_own(folder: Path, manifest: bytes) -> None:
    """Marks a folder as made by this user; without a writable home folder it stays unmarked."""
    with contextlib.suppress(OSError):
        home().mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            key = os.open(home() / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(key, secrets.token_hex(32).encode())
            os.close(key)
        (folder / MARK).write_text(_digest(manifest), encoding="ascii")


def is_own(folder: Path, manifest: bytes) -> bool:
    """Returns whether this user marked a folder when it had the same manifest."""
    try:
        return hmac.compare_digest((folder / MARK).read_bytes(), _digest(manifest).encode())
    except OSError:
        return False


def _digest(manifest: bytes) -> str:
    """Returns the digest of a manifest by the user's key."""
    key = (home() / "key").read_bytes()
    if len(key) < 32:
        raise OSError("the key is incomplete")
    return hmac.new(key, manifest, hashlib.sha256).hexdigest()

"""Encoding and decoding by the tokenizers of others: plain text that stays text, with a blank where they put one.

Tokenizers of SentencePiece's kind put a blank before a text: before each that begins a context or follows an added
token, or only before one that begins a context. Text that goes on after other text has none, so a piece is encoded for
its place.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from searchgym.errors import DataError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Position = Literal["start", "after", "inside"]
"""Where a text stands: at the start of a context, right after an added token, or after other text."""
BLANKS: Final = ("▁", "Ġ")
"""Beginnings of tokens that stand for a blank."""

Given = TypeVar("Given")
Made = TypeVar("Made")


class TextEncoder:
    """Encoder of texts as plain text: no special token is made of them.

    Args:
        tokenizer: Is copied, since the switch is part of its state, which other threads may be reading.

    Raises:
        UsageError: The tokenizer puts a blank before text that goes on after other text, and cannot be told not to.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._name, plain = tokenizer.name_or_path, copy.deepcopy(tokenizer)
        plain.split_special_tokens = True
        alone = _encoder(plain)
        self._by_position: dict[Position, Callable[[list[str]], list[list[int]]]] = dict.fromkeys(
            ("start", "after", "inside"), alone
        )
        self.blank = False
        """Whether the tokenizer puts a blank before texts at some places."""
        if _by_library(tokenizer, "_encode_plus"):
            self._set_encoders(cast(Any, plain).backend_tokenizer)
        ids = self._by_position["inside"](["x"])[0]
        if ids and str(tokenizer.convert_ids_to_tokens(ids)[0]).startswith(BLANKS):
            raise UsageError(
                f"{tokenizer.name_or_path}: {type(tokenizer).__name__} puts a blank before every text, so what follows "
                "a response would not be what it is within a text; use the fast tokenizer (tokenizer.json)"
            )

    def _set_encoders(self, library: Any) -> None:
        """Sets the encoders of places where the tokenizer, one of the library `tokenizers`, puts no blank."""
        steps, first = dict[str, Any](), False
        for name in ("normalizer", "pre_tokenizer"):
            if (step := getattr(library, name)) is None:
                continue
            state = json.loads(step.__getstate__())
            if (changed := _without_blank(state)) != state:
                first = first or '"prepend_scheme": "first"' in json.dumps(state)
                steps[name] = copy.deepcopy(step)
                steps[name].__setstate__(json.dumps(changed).encode())
        if not steps:
            return
        other = copy.deepcopy(library)
        for name, step in steps.items():
            setattr(other, name, step)
        other.encode_special_tokens = True

        def inside(texts: list[str]) -> list[list[int]]:
            return [list(made.ids) for made in other.encode_batch_fast(texts, add_special_tokens=False)]

        self.blank = True
        self._by_position["inside"] = _without_panic(self._name, inside)
        if first:
            self._by_position["after"] = self._by_position["inside"]

    def ids(self, texts: Sequence[str], places: Sequence[Position]) -> list[list[int]]:
        """Returns the ids of each text at its place."""
        if not self.blank:
            return self._by_position["start"](list(texts))
        made: list[list[int]] = [[] for _ in texts]
        for place, encode in self._by_position.items():
            chosen = [n for n, own in enumerate(places) if own == place]
            for n, ids in zip(chosen, encode([texts[n] for n in chosen]), strict=True):
                made[n] = ids
        return made


def _without_blank(state: Any) -> Any:
    """Returns the description of a step of a tokenizer without what puts a blank before texts."""
    if isinstance(state, list):
        return [_without_blank(part) for part in state]
    if not isinstance(state, dict):
        return state
    kind = state.get("type")
    if kind == "Prepend":
        return {"type": "Sequence", "normalizers": []}
    if kind == "Metaspace":
        return state | {"prepend_scheme": "never"}
    if kind == "ByteLevel" and "add_prefix_space" in state:
        return state | {"add_prefix_space": False}
    return {key: _without_blank(value) for key, value in state.items()}


def _encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], list[list[int]]]:
    """Returns a function from texts to ids, without special tokens around it, by a tokenizer that is not changed again.

    A tokenizer on the library `tokenizers` is asked for ids alone: the class around it also has offsets and masks made,
    which takes half as long again.
    """

    def by_class(texts: list[str]) -> list[list[int]]:
        return [list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]

    if not _by_library(tokenizer, "_encode_plus"):
        return _without_panic(tokenizer.name_or_path, by_class)
    by_class([""])  # hands the class's settings (nothing cut or padded, special tokens as text) to the library
    library = cast(Any, tokenizer).backend_tokenizer

    def by_library(texts: list[str]) -> list[list[int]]:
        return [list(own.ids) for own in library.encode_batch_fast(texts, add_special_tokens=False)]

    return _without_panic(tokenizer.name_or_path, by_library)


def marked(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[tuple[int, ...], Sequence[tuple[int, int]] | None]:
    """Encodes a text whose special tokens are special, as `apply_chat_template` does with what a template writes.

    Returns:
        The ids; (start, end) in characters of each, or None by a tokenizer that does not tell.
    """

    def encode(given: str) -> Any:
        return tokenizer(given, add_special_tokens=False, return_offsets_mapping=bool(tokenizer.is_fast))

    made = _without_panic(tokenizer.name_or_path, encode)(text)
    return tuple(made["input_ids"]), made.get("offset_mapping")


def decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], str]:
    """Returns a function from ids to text, special tokens included.

    As with `_encoder`, the library is asked where it can be: the class first copies the ids one by one.
    """
    if _by_library(tokenizer, "decode", "_decode"):
        library = cast(Any, tokenizer).backend_tokenizer
        return _without_panic(tokenizer.name_or_path, lambda ids: str(library.decode(ids, skip_special_tokens=False)))

    def by_class(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return _without_panic(tokenizer.name_or_path, by_class)


def _by_library(tokenizer: PreTrainedTokenizerBase, *methods: str) -> bool:
    """Returns whether a tokenizer leaves methods to the library `tokenizers`, as no class of its own overrides one."""
    from transformers import TokenizersBackend

    return all(getattr(type(tokenizer), name, None) is getattr(TokenizersBackend, name) for name in methods)


def _without_panic(name: str, convert: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """Returns a function that raises a `DataError` where the library `tokenizers` panics, which is no `Exception`."""

    def converted(given: Given) -> Made:
        try:
            return convert(given)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            reason = f"the tokenizer fails on {given!r:.80} ({error}): use the one that belongs to the model"
            raise DataError(reason, name) from error

    return converted


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the ids of all special tokens: those the tokenizer names, and added tokens marked as special."""
    named = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(named | set(tokenizer.all_special_ids))


def one_id(token: Any) -> tuple[int, ...]:
    """Returns a one-element tuple with a token id, or an empty tuple for None."""
    return () if token is None else (int(token),)

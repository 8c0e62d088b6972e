"""Encoding and decoding by third-party tokenizers: text is encoded as plain text, with their leading blanks.

Tokenizers like SentencePiece's insert a blank before a text that begins a context or follows an added token, or only
before one that begins a context. Text after other text gets none, so each piece is encoded for its position.
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
"""Position of a text: at the start of a context, right after an added token, or after other text."""
BLANKS: Final = ("▁", "Ġ")
"""First characters of tokens that represent a blank."""

Given = TypeVar("Given")
Made = TypeVar("Made")


class TextEncoder:
    """Encoder of texts as plain text, without special tokens.

    Args:
        tokenizer: The tokenizer; it is copied, because the setting is part of its state, which other threads may use.

    Raises:
        UsageError: The tokenizer inserts a blank before text that follows other text, and this cannot be turned off.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._name, plain = tokenizer.name_or_path, copy.deepcopy(tokenizer)
        plain.split_special_tokens = True
        alone = _encoder(plain)
        self._by_position: dict[Position, Callable[[list[str]], list[list[int]]]] = dict.fromkeys(
            ("start", "after", "inside"), alone
        )
        self.blank = False
        """True if the tokenizer inserts a blank before texts in some positions."""
        if _by_library(tokenizer, "_encode_plus"):
            self._set_encoders(cast(Any, plain).backend_tokenizer)
        ids = self._by_position["inside"](["x"])[0]
        if ids and str(tokenizer.convert_ids_to_tokens(ids)[0]).startswith(BLANKS):
            raise UsageError(
                f"{tokenizer.name_or_path}: {type(tokenizer).__name__} puts a blank before every text, so text after "
                "a response would not be what it is within a text; use the fast tokenizer (tokenizer.json)"
            )

    def _set_encoders(self, library: Any) -> None:
        """Sets the encoders for positions in which the tokenizer, from the library `tokenizers`, inserts no blank."""
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
            return [list(encoding.ids) for encoding in other.encode_batch_fast(texts, add_special_tokens=False)]

        self.blank = True
        self._by_position["inside"] = _without_panic(self._name, inside)
        if first:
            self._by_position["after"] = self._by_position["inside"]

    def ids(self, texts: Sequence[str], positions: Sequence[Position]) -> list[list[int]]:
        """Returns the ids of each text in its position."""
        if not self.blank:
            return self._by_position["start"](list(texts))
        encoded: list[list[int]] = [[] for _ in texts]
        for position, encode in self._by_position.items():
            chosen = [n for n, other in enumerate(positions) if other == position]
            for n, ids in zip(chosen, encode([texts[n] for n in chosen]), strict=True):
                encoded[n] = ids
        return encoded


def _without_blank(state: Any) -> Any:
    """Returns a tokenizer step's description without the parts that insert a blank before texts."""
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
    """Returns a function from texts to ids without special tokens; the tokenizer must not be changed afterwards.

    The library `tokenizers` is called directly if possible: the class around it also computes offsets and masks, which
    takes half as long again.
    """

    def by_class(texts: list[str]) -> list[list[int]]:
        return [list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]

    if not _by_library(tokenizer, "_encode_plus"):
        return _without_panic(tokenizer.name_or_path, by_class)
    by_class([""])  # passes the class's settings (no truncation or padding, special tokens as text) to the library
    library = cast(Any, tokenizer).backend_tokenizer

    def by_library(texts: list[str]) -> list[list[int]]:
        return [list(encoding.ids) for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]

    return _without_panic(tokenizer.name_or_path, by_library)


def marked(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[tuple[int, ...], Sequence[tuple[int, int]] | None]:
    """Encodes a text with its special tokens as special, as `apply_chat_template` does with rendered text.

    Returns:
        The ids; and the (start, end) characters of each id, or None if the tokenizer has no offsets.
    """

    def encode(content: str) -> Any:
        return tokenizer(content, add_special_tokens=False, return_offsets_mapping=bool(tokenizer.is_fast))

    encoding = _without_panic(tokenizer.name_or_path, encode)(text)
    return tuple(encoding["input_ids"]), encoding.get("offset_mapping")


def decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], str]:
    """Returns a function from ids to text, special tokens included.

    As in `_encoder`, the library is called directly if possible: the class first copies the ids one by one.
    """
    if _by_library(tokenizer, "decode", "_decode"):
        library = cast(Any, tokenizer).backend_tokenizer
        return _without_panic(tokenizer.name_or_path, lambda ids: str(library.decode(ids, skip_special_tokens=False)))

    def by_class(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return _without_panic(tokenizer.name_or_path, by_class)


def _by_library(tokenizer: PreTrainedTokenizerBase, *methods: str) -> bool:
    """Returns True if a tokenizer uses the library `tokenizers` and its class overrides none of the methods."""
    from transformers import TokenizersBackend

    return all(getattr(type(tokenizer), name, None) is getattr(TokenizersBackend, name) for name in methods)


def _without_panic(name: str, convert: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """Wraps a function so that panics of the library `tokenizers`, which are no `Exception`, become a `DataError`."""

    def converted(argument: Given) -> Made:
        try:
            return convert(argument)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            reason = f"the tokenizer fails on {argument!r:.80} ({error}): use the one that belongs to the model"
            raise DataError(reason, name) from error

    return converted


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the ids of all special tokens: the tokenizer's named ones, and added tokens marked as special."""
    named = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(named | set(tokenizer.all_special_ids))


def one_id(token: Any) -> tuple[int, ...]:
    """Returns a one-element tuple with a token id, or an empty tuple for None."""
    return () if token is None else (int(token),)

"""What a tokenizer and its chat template tell of token ids: ends of turns, marks of observations, text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from searchgym.testing.dumps.sample import Ints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAGS: Final = ("information", "tool_response", "result", "observation", "tool_result", "search_results")
"""Tags between which agents return text of the environment."""
SHOWN: Final = 60
"""Maximum number of characters of tokens' text in a finding."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer, with the marks of its chat template."""

    tokenizer: PreTrainedTokenizerBase
    """The tokenizer."""
    end_ids: frozenset[int]
    """Token ids that end a response."""
    marks: tuple[tuple[str, str], ...]
    """Texts between which the environment writes, as (first, last)."""
    reply: tuple[int, ...]
    """Ids with which the chat template opens a reply; empty without a template."""

    def pieces(self, ids: Ints) -> list[str]:
        """Returns the text of each token."""
        return [self.decode([int(token)]) for token in ids]

    def decode(self, ids: Sequence[int] | Ints) -> str:
        """Returns the text of tokens, with marks such as the end token."""
        text: Any = self.tokenizer.decode(list(map(int, ids)), clean_up_tokenization_spaces=False)
        return str(text)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Returns the ids of a text, without BOS; marks in it are single tokens if `special`."""
        ids: Any = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not special)
        return list(ids)

    def observations(self, ids: Ints) -> Iterator[tuple[int, int, str]]:
        """Yields (start, end, mark) of each range of tokens between two marks; without a last mark, up to the end."""
        pieces = self.pieces(ids)
        starts = [0]
        for piece in pieces:
            starts.append(starts[-1] + len(piece))
        text = "".join(pieces)
        for first, last in self.marks:
            at = text.find(first)
            while at >= 0:
                close = text.find(last, at + len(first))
                end = len(text) if close < 0 else close + len(last)
                inside = [n for n in range(len(pieces)) if starts[n] >= at and starts[n + 1] <= end]
                if inside:
                    yield inside[0], inside[-1] + 1, first
                at = text.find(first, end)


def vocabulary(folder: str) -> Vocabulary:
    """Loads the tokenizer of a model.

    Raises:
        SearchGymError: The folder does not exist, or its tokenizer cannot be read.
    """
    from searchgym.rollout.folders import model_folder
    from searchgym.rollout.loading import generation_settings, load_tokenizer

    tokenizer = load_tokenizer(folder)
    ends = generation_settings(model_folder(folder)).eos_token_id
    eos: Any = tokenizer.eos_token_id
    ids: set[int | None] = {eos, *(ends if isinstance(ends, list) else [ends])}
    chat = _chat_marks(tokenizer) if tokenizer.chat_template else None
    marks: list[tuple[str, str]] = [(f"<{tag}>", f"</{tag}>") for tag in TAGS]
    reply: tuple[int, ...] = ()
    if chat is not None:
        header, opener, end = chat
        reply = tuple(tokenizer.encode(opener, add_special_tokens=False))
        if header and opener and header != opener:
            marks.append((header, opener))
        if end is not None:
            ids.add(end)
    return Vocabulary(tokenizer, frozenset(token for token in ids if token is not None), tuple(marks), reply)


def _chat_marks(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str, int | None] | None:
    """Returns (header of a user turn, opening of a reply, id of the end of a turn); None if the template refuses."""
    messages = [{"role": role, "content": text} for role, text in (("user", "Q1"), ("assistant", "A1"), ("user", "Q2"))]
    try:
        text: Any = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception:  # templates are programs of others
        return None
    between, _, rest = str(text).partition("A1")[2].partition("Q2")
    tokens: Any = tokenizer.encode(between, add_special_tokens=False)
    special = set(tokenizer.all_special_ids)
    end = tokens[0] if tokens and (tokens[0] in special or tokens[0] == tokenizer.eos_token_id) else None
    close = tokenizer.decode([end]) if end is not None else ""
    return between.removeprefix(str(close)).strip(), rest.removeprefix(str(close)).lstrip(), end


def text_of(words: Vocabulary | None, ids: Ints) -> str:
    """Returns ``: 'text'`` for a finding; empty without a tokenizer."""
    if words is None:
        return ""
    text = words.decode(ids)
    return f": {text[:SHOWN]!r}" + ("..." if len(text) > SHOWN else "")

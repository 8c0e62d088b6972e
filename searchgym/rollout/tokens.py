"""The token format: how prompts and observations become token ids, and which ids and strings end a response.

Sampled tokens are never encoded again; prompts and observations are encoded once and inserted around them. The turn
markers of a chat template are determined by rendering it with sentinels instead of texts. History is never rendered, so
templates that rewrite it (Qwen3's drops old thoughts) do no harm. Only the template's markers become special tokens:
text is encoded as plain text, even if it spells a special token. A tokenizer may also have the grammar's tags as added
tokens that are not special; they are used only for our own text (the wording of prompts, the tags around pages), never
for pages, questions or texts of models.
"""

from __future__ import annotations

import copy
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.protocol import Parts, Protocol, joined
from searchgym.rollout.foreign.encoding import Position, TextEncoder, decoder, one_id, special_ids
from searchgym.rollout.foreign.templates import NO_ARGS
from searchgym.rollout.foreign.turns import Slot, composed, end_of_turn, take_apart
from searchgym.rollout.sampler import Finish

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ContextText", "TokenFormat", "decoder", "end_ids"]


@dataclass(slots=True, eq=False)
class ContextText:
    """A text that begins or continues a context, and that no model has processed yet."""

    parts: str | Parts
    """The text: a string of own text, or parts that are marked as own or foreign text."""
    finish: Finish | None
    """Reason why the previous response ended; None for a first prompt."""
    ids: npt.NDArray[np.int32] | None = None
    """(T,) int32 token ids; None before encoding."""
    goes_on: bool = False
    """True if the text continues the model's turn in any grammar, as the closing marker of a thought does."""


class TokenFormat:
    """Converter between texts and the token ids of one model.

    Args:
        tokenizer: The model's tokenizer.
        protocol: Action grammar: with ``"tags"`` observations continue the model's turn, with ``"tool_calls"`` they are
            user turns.
        chat: If True, prompts are user messages in the tokenizer's chat template; if False, plain text.
        template_args: Arguments for the chat template, such as ``enable_thinking``; ignored without a template.
        date: Current date passed to the chat template, as ISO text. Default: the day on which this process started.

    Raises:
        UsageError: `chat` is set but there is no template, the template cannot be analysed, or the tokenizer cannot
            encode the text of a special token as plain text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        protocol: Protocol,
        chat: bool,
        template_args: Mapping[str, Any] = NO_ARGS,
        *,
        date: str | None = None,
    ) -> None:
        if chat and not tokenizer.chat_template:
            raise UsageError("the tokenizer has no chat template; use the model as a base model (chat=False)")
        self.protocol, self.chat, self.template_args, self.date = protocol, chat, template_args, date
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._encoder = TextEncoder(tokenizer)
        self.blanks = self._encoder.blank
        """True if the tokenizer inserts a blank before texts in some positions, which decoded prompts then contain."""
        self._text = decoder(tokenizer)
        added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if i not in self._special}
        # Added tokens for runs of blanks or line ends are no tags; they are encoded by the tokenizer as usual.
        self._tags = {i: content for i, content in added.items() if content.strip()}
        self.marks = frozenset({*self._special, *self._tags})
        """Ids of the tokenizer's special tokens and of its tags."""
        by_length = sorted(self._tags.values(), key=len, reverse=True)
        self._tag = re.compile("|".join(map(re.escape, by_length)) or r"(?!)")
        spelled = {i: self.decode([i]) for i in sorted(self._special)}
        self._check_plain(spelled)
        self._turns = take_apart(tokenizer, self._encoder, template_args, date=date) if chat else None
        finishes: tuple[Finish | None, ...] = (None, *get_args(Finish))
        self._slots = {finish: self._slot(finish) for finish in finishes}
        self.stop = protocol.stop_strings
        """Strings that end a response: the closing tags of actions."""
        self.end_ids = end_ids(tokenizer, template_args, date=date) if chat else one_id(tokenizer.eos_token_id)
        """Token ids that end a response."""

    def prompt_ids(self, text: str | Parts) -> npt.NDArray[np.int32]:
        """Returns the token ids of a first prompt, up to the start of the model's response.

        For a chat model the prompt is a user message; for a base model it is plain text after the beginning-of-text id,
        if the tokenizer has one.

        Args:
            text: The prompt, as own text or in parts; text that spells a special token stays text.

        Returns:
            (T,) int32 token ids.
        """
        return self.encode([ContextText(text, None)])[0]

    def observation_ids(self, text: str | Parts, finish: Finish) -> npt.NDArray[np.int32]:
        """Returns the token ids between a response and the model's next one: the observation and any turn markers.

        For a chat model with tool calls: the end-of-turn if the model did not sample it, a user turn with the text, and
        the start of the model's next turn. With tags, or for a base model: only the text. A chat model with tags that
        ended its turn also gets a user turn, because it has never seen text outside of turns.

        Args:
            text: The observation, as own text or in parts (`Protocol.parts`).
            finish: Why the response ended.

        Returns:
            (T,) int32 token ids.
        """
        return self.encode([ContextText(text, finish)])[0]

    def reply_ids(self, text: str, finish: Finish | None) -> npt.NDArray[np.int32]:
        """Returns the token ids of a scripted response, encoded as the chat template would.

        Args:
            text: The text.
            finish: Reason why the previous response ended; None after a first prompt.

        Returns:
            (T,) int32 token ids, without an end-of-turn.
        """
        begins = finish is None or not self.goes_on(finish)
        slot = self._turns.reply if self._turns is not None and begins else Slot(position="inside")
        return np.array(composed(self._encoder, slot, text), np.int32)

    def encode(self, texts: Sequence[ContextText]) -> list[npt.NDArray[np.int32]]:
        """Returns the token ids of each prompt or observation, as `prompt_ids` and `observation_ids` return them.

        Encoding many texts together is faster if the tokenizer uses the library `tokenizers`, which distributes them
        over all cores while other Python threads run. A lone surrogate, which has no UTF-8 encoding, becomes a question
        mark.
        """
        slots = [Slot(position="inside") if text.goes_on else self._slots[text.finish] for text in texts]
        wholes = [joined(text.parts).encode("utf-8", "replace").decode("utf-8") for text in texts]
        bodies = [slot.body(whole) for slot, whole in zip(slots, wholes, strict=True)]
        plain = self._encoder.ids(bodies, [slot.position for slot in slots])
        encoded = []
        for text, slot, whole, body, ids in zip(texts, slots, wholes, bodies, plain, strict=True):
            first = len(whole) - len(whole.lstrip()) if slot.strip[0] else 0
            checked = self._checked(text.parts, slot, body, first, ids)
            encoded.append(np.array([*slot.before, *checked, *slot.after], np.int32))
        return encoded

    def encode_lists(self, lists: Sequence[Sequence[ContextText]]) -> list[list[npt.NDArray[np.int32]]]:
        """Returns the token ids of the texts of several contexts, encoded together; see `encode`."""
        encoded = iter(self.encode([text for texts in lists for text in texts]))
        return [[next(encoded) for _ in texts] for texts in lists]

    def thought_after(self, finish: Finish | None) -> str:
        """Returns the beginning of a thought that the chat template writes for the model, such as ``<think>``.

        Empty if the template leaves no thought open, for a base model, and if the model's turn continues after an
        observation.

        Args:
            finish: Reason why the previous response ended; None for a first prompt.
        """
        if self._turns is None:
            return ""
        if finish is None:
            return self._turns.thought
        return "" if self.goes_on(finish) else self._turns.thought_later

    continues = True
    """True if a response can be continued in a further request."""

    def goes_on(self, finish: Finish) -> bool:
        """Returns True if an observation after a response with this `finish` belongs to the model's turn."""
        return not self.chat or (self.protocol.name == "tags" and finish != "eos")

    def _slot(self, finish: Finish | None) -> Slot:
        """Returns the slot of a text.

        Args:
            finish: See `ContextText.finish`.
        """
        turns = self._turns
        if finish is None:
            bos = one_id(self._tokenizer.bos_token_id)
            return Slot(before=bos, position="start") if turns is None else turns.first
        if turns is None or self.goes_on(finish):
            return Slot(position="inside")
        closing = () if finish == "eos" else turns.closing
        return replace(turns.later, before=(*closing, *turns.later.before))

    def _check_plain(self, spelled: Mapping[int, str]) -> None:
        """Raises a UsageError if the tokenizer encodes plain text as special tokens.

        Args:
            spelled: Text of each special token.
        """
        name, class_ = self._tokenizer.name_or_path, type(self._tokenizer).__name__
        unknown = one_id(self._tokenizer.unk_token_id)
        texts = ["x", "\n".join(spelled.values())]
        added, leaked = (
            self._special.intersection(ids).difference(unknown) for ids in self._encoder.ids(texts, ["start", "start"])
        )
        if added:
            raise UsageError(
                f"{name}: {class_} adds {spelled[min(added)]!r} to every text although told not to, so it would occur "
                "within turns; use the fast tokenizer (tokenizer.json)"
            )
        if leaked:
            raise UsageError(
                f"{class_} encodes the text {spelled[min(leaked)]!r} as a special token although told not to, so a "
                "retrieved page could end a turn; use the fast tokenizer (tokenizer.json)"
            )

    @property
    def closing_ids(self) -> tuple[int, ...]:
        """Token ids that close a turn of the model; empty for a base model."""
        return () if self._turns is None else self._turns.closing

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids, special tokens included."""
        return self._text(ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids])

    def response_text(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> str:
        """Returns the text of a response without the special tokens at its end, such as the end-of-turn."""
        end = len(ids)
        while end and int(ids[end - 1]) in self._special:
            end -= 1
        return self.decode(ids[:end])

    def _checked(self, text: str | Parts, slot: Slot, whole: str, first: int, ids: list[int]) -> list[int]:
        """Returns the ids of a text; encodes it again if anything other than its own parts became a tag.

        Args:
            text: The text.
            slot: Slot of the text.
            whole: The text as it was encoded; see `Slot.body`.
            first: Number of characters stripped from the start of the text.
            ids: Ids of the text, in which foreign text may have become tags.
        """
        if isinstance(text, str) or self._tags.keys().isdisjoint(ids):
            return ids
        by_content, at = {content: i for i, content in self._tags.items()}, len(slot.left) - first
        tags: list[tuple[int, int, int]] = []  # (start, end, id) of each one in an own part
        for part, is_own in text:
            if is_own:
                tags += [(at + m.start(), at + m.end(), by_content[m[0]]) for m in self._tag.finditer(part)]
            at += len(part)
        if not Counter(filter(self._tags.__contains__, ids)) - Counter(i for _, _, i in tags):
            return ids
        # The text between the own tags is encoded without tags.
        between = zip([0, *(end for _, end, _ in tags)], [*(start for start, _, _ in tags), len(whole)], strict=True)
        after: list[Position] = ["after"] * len(tags)
        pieces = self._bare.ids([whole[start:end] for start, end in between], [slot.position, *after])
        return [*pieces[0], *(i for (_, _, tag), piece in zip(tags, pieces[1:], strict=True) for i in (tag, *piece))]

    @functools.cached_property
    def _bare(self) -> TextEncoder:
        """Encoder of texts without added tokens: all of them count as special, and special tokens are turned off."""
        from tokenizers import AddedToken

        bare = copy.deepcopy(self._tokenizer)
        added = [AddedToken(token.content, special=True) for token in bare.added_tokens_decoder.values()]
        cast(Any, bare).backend_tokenizer.add_special_tokens(added)
        return TextEncoder(bare)


def end_ids(
    tokenizer: PreTrainedTokenizerBase, template_args: Mapping[str, Any] = NO_ARGS, *, date: str | None = None
) -> tuple[int, ...]:
    """Returns the token ids that end a response: the tokenizer's end-of-text and its chat template's end-of-turn.

    Args:
        tokenizer: A tokenizer, with or without a chat template.
        template_args: Arguments for the chat template, if it needs some.
        date: Current date passed to the chat template.

    Raises:
        UsageError: The chat template cannot be analysed.
    """
    turn = end_of_turn(tokenizer, template_args, date=date) if tokenizer.chat_template else ()
    return tuple(dict.fromkeys((*one_id(tokenizer.eos_token_id), *turn)))

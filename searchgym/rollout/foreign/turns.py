"""Turn markers of a chat template, determined by rendering it with sentinels instead of texts.

If a template writes only special tokens next to a text, the text is encoded separately. If it writes text there
(``[INST] `` of Llama 2), or the tokenizer inserts blanks before texts, the template's text is encoded together with it.
In both cases the ids equal those of the whole rendered text; other tokenizers are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from searchgym.errors import UsageError
from searchgym.protocol import opened_by
from searchgym.rollout.foreign.encoding import Position, TextEncoder, marked, special_ids
from searchgym.rollout.foreign.templates import NO_ARGS, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

USER, ASSISTANT, NEXT = "sentinelofauser", "sentinelofanassistant", "sentinelofthenextuser"
"""Sentinels that replace message texts while a chat template is rendered; no template contains or changes them."""
PAD: Final = " \n"
"""Blanks around a sentinel, to detect whether a template trims texts."""
PROBES: Final = ("The gull", "who is it?", "(a) 1901.", "東京")
"""Test texts for which the ids of a prompt are compared with those of the rendered text."""
MARK: Final = re.compile(r"\s*(<\|[^|<>\s]+\|>|</?\w+>)")
"""Pattern of text that begins with a marker in the form of a special token."""
CHANNEL: Final = "<|channel|>"
"""Marker of templates in which a model's turn may have several messages, so that a message's end does not end the
turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Position of a text in a context, and the template's ids and texts around it."""

    before: tuple[int, ...] = ()
    """Ids before the text."""
    left: str = ""
    """Text before the text, encoded together with it."""
    right: str = ""
    """Text after the text, encoded together with it."""
    after: tuple[int, ...] = ()
    """Ids after the text."""
    position: Position = "after"
    """Position of the text, together with `left`."""
    strip: tuple[bool, bool] = (False, False)
    """True if blanks and line ends are stripped from the text's start, and from its end."""

    def body(self, text: str) -> str:
        """Returns a text as it is encoded: stripped, between `left` and `right`."""
        text = text.lstrip() if self.strip[0] else text
        return self.left + (text.rstrip() if self.strip[1] else text) + self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turn markers of a chat template."""

    first: Slot
    """Slot of the first user text; before it any default system prompt, after it the start of the model's turn."""
    reply: Slot
    """Slot of a model's text at the start of its turn, after text that the template writes there and that a model
    samples."""
    closing: tuple[int, ...]
    """Ids from the end of a model's text to its end-of-turn, inclusive; a model samples them itself. Empty if there are
    none."""
    later: Slot
    """Slot of the next user text, from the model's end-of-turn on."""
    thought: str
    """End of the first prompt from the marker of a thought that it leaves open; empty without one."""
    thought_later: str
    """End of the text after a later user message, as in `thought`."""


def take_apart(
    tokenizer: PreTrainedTokenizerBase,
    encoder: TextEncoder,
    variables: Mapping[str, Any] = NO_ARGS,
    *,
    date: str | None = None,
) -> Turns:
    """Determines a chat template's turn markers.

    Args:
        tokenizer: Has a chat template.
        encoder: Its encoder of plain text.
        variables: See `render`.
        date: See `render`.

    Raises:
        UsageError: The template cannot be rendered, does not contain each text once, in order and unchanged, or ends
            turns with a marker that the tokenizer does not have; or the ids of a whole text differ from those of its
            pieces.
    """
    first, padded, whole = _rendered(tokenizer, variables, date)
    (before, after), (_, joiner, again) = _split(first, USER), _split(whole, ASSISTANT, NEXT)
    special, (ids, _) = special_ids(tokenizer), _placed(tokenizer, encoder, joiner, "inside")
    closing = ids[: next((at + 1 for at, i in enumerate(ids) if i in special), 0)]
    later = _slot(tokenizer, encoder, joiner, again, "inside", (True, True))
    later = replace(later, before=later.before[len(closing) :])
    if closing:
        rendered, expected = marked(tokenizer, whole)[0], (*closing[-1:], *composed(encoder, later, NEXT))
        if rendered[-len(expected) :] != expected:
            raise _other_ids(tokenizer, rendered[-len(expected) :], expected)
    slot = _slot(tokenizer, encoder, before, after, "start", _strips(before, after, padded))
    answered = _before_reply(whole)
    lead = answered.removeprefix(after) if answered.startswith(after) else ""
    marked_start = bool(slot.after) and slot.after[-1] in tokenizer.added_tokens_decoder
    return Turns(
        first=slot,
        reply=_reply(tokenizer, encoder, lead, "after" if marked_start else "inside"),
        closing=closing,
        later=later,
        thought=opened_by(after),
        thought_later=opened_by(again),
    )


def end_of_turn(
    tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any] = NO_ARGS, *, date: str | None = None
) -> tuple[int, ...]:
    """Returns the id that ends a model's turn in its chat template, as a tuple; empty if there is none.

    `variables` and `date` as for `render`.

    Raises:
        UsageError: The template cannot be rendered, does not contain each text once, in order, or ends turns with a
            marker that the tokenizer does not have.
    """
    whole = _rendered(tokenizer, variables, date)[-1]
    _, joiner, _ = _split(whole, ASSISTANT, NEXT)
    if (mark := MARK.match(joiner)) and len(marked(tokenizer, mark[1])[0]) != 1:
        raise UsageError(
            f"{tokenizer.name_or_path}: the chat template ends turns with {mark[1]!r}, which the tokenizer does not "
            "know as one token, so no model can end a turn: use the tokenizer that belongs to the model"
        )
    if CHANNEL in _before_reply(whole):
        return ()
    special = special_ids(tokenizer)
    return tuple(i for i in marked(tokenizer, joiner)[0] if i in special)[:1]


def composed(encoder: TextEncoder, slot: Slot, text: str) -> tuple[int, ...]:
    """Returns the ids of a text in its slot."""
    return (*slot.before, *encoder.ids([slot.body(text)], [slot.position])[0], *slot.after)


def _rendered(tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any], date: str | None) -> list[str]:
    """Returns a rendered first prompt, one whose text is surrounded by blanks, and a conversation of three messages."""
    first, padded, second = ({"role": "user", "content": text} for text in (USER, PAD + USER + PAD, NEXT))
    conversation = [first, {"role": "assistant", "content": ASSISTANT}, second]
    return render(tokenizer, [[first], [padded], conversation], variables, date=date)


def _before_reply(conversation: str) -> str:
    """Returns the part of a rendered conversation between the first user text and the model's text."""
    return conversation.partition(ASSISTANT)[0].rpartition(USER)[2]


def _split(text: str, *sentinels: str) -> list[str]:
    """Splits a rendered conversation at sentinels.

    Raises:
        UsageError: A sentinel does not occur exactly once, in order.
    """
    parts = re.split("|".join(sentinels), text)
    if re.findall("|".join(sentinels), text) != list(sentinels):
        raise UsageError(f"the chat template does not contain each message once, in order: it wrote {text!r:.500}")
    return parts


def _strips(before: str, after: str, padded: str) -> tuple[bool, bool]:
    """Returns (True if a template strips blanks from the start of a text, True if from its end).

    Raises:
        UsageError: The template changes them in another way.
    """
    left, right = _split(padded, USER)
    if left not in (before, before + PAD) or right not in (after, PAD + after):
        raise UsageError(
            f"the chat template changes texts: for {PAD + USER + PAD!r} it wrote {padded!r:.500}; put "
            "a template that does into its folder (chat_template.jinja)"
        )
    return left == before, right == after


def _placed(
    tokenizer: PreTrainedTokenizerBase, encoder: TextEncoder, text: str, start: Position
) -> tuple[tuple[int, ...], Sequence[tuple[int, int]] | None]:
    """Returns the ids of a rendered text in a position, and the (start, end) characters of its added tokens."""
    ids, spans = marked(tokenizer, text)
    if start == "start" or not encoder.blank or spans is None:
        return ids, spans
    # The text before the first added token is not at the start of the context.
    added = tokenizer.added_tokens_decoder
    at = next((n for n, i in enumerate(ids) if i in added), len(ids))
    head = encoder.ids([text[: spans[at][0] if at < len(ids) else None]], [start])[0]
    return (*head, *ids[at:]), [*[(0, 0)] * len(head), *spans[at:]]


def _slot(
    tokenizer: PreTrainedTokenizerBase,
    encoder: TextEncoder,
    before: str,
    after: str,
    start: Position,
    strip: tuple[bool, bool],
) -> Slot:
    """Returns the slot between two texts of a template.

    Args:
        tokenizer: Tokenizer.
        encoder: Its encoder of plain text.
        before: Text of the template before a text.
        after: Text of the template after it.
        start: Position of `before`.
        strip: See `Slot.strip`.

    Raises:
        UsageError: The ids of the whole text differ from those of its pieces.
    """
    wholes = {text: _placed(tokenizer, encoder, before + text + after, start) for text in PROBES}
    slot = Slot(before=marked(tokenizer, before)[0], after=marked(tokenizer, after)[0], strip=strip)
    if not encoder.blank and all(composed(encoder, slot, text) == ids for text, (ids, _) in wholes.items()):
        return slot
    ids, spans = wholes[PROBES[0]]
    if spans is not None:
        slot = _joint_slot(tokenizer, (before, PROBES[0], after), ids, spans, Slot(position=start, strip=strip))
    for text, (ids, _) in wholes.items():
        if (pieces := composed(encoder, slot, text)) != ids:
            raise _other_ids(tokenizer, ids, pieces)
    return slot


def _reply(tokenizer: PreTrainedTokenizerBase, encoder: TextEncoder, lead: str, start: Position) -> Slot:
    """Returns the slot of a model's text.

    Args:
        tokenizer: Tokenizer.
        encoder: Its encoder of plain text.
        lead: Text that the template writes before it but that is not part of the prompt.
        start: Position of `lead`.
    """
    ids, spans = _placed(tokenizer, encoder, lead + PROBES[0], start)
    if not lead or spans is None:
        return Slot(position=start)
    return _joint_slot(tokenizer, (lead, PROBES[0], ""), ids, spans, Slot(position=start))


def _joint_slot(
    tokenizer: PreTrainedTokenizerBase,
    texts: tuple[str, str, str],
    ids: tuple[int, ...],
    spans: Sequence[tuple[int, int]],
    plain: Slot,
) -> Slot:
    """Returns a slot whose text is encoded together with everything between it and the nearest added tokens.

    Args:
        tokenizer: Tokenizer.
        texts: Text before, text, text after.
        ids: Ids of the three, joined.
        spans: (start, end) in characters of each id.
        plain: Slot of the text without anything around it.
    """
    before, text, after = texts
    # Runs of blanks, which some tokenizers add too, and unknown text do not end a text.
    added_tokens = {i: token for i, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
    added = [n for n, i in enumerate(ids) if i in added_tokens and i != tokenizer.unk_token_id]
    first, last = len(before), len(before) + len(text)
    left = max((n for n in added if spans[n][1] <= first), default=None)
    right = min((n for n in added if spans[n][0] >= last), default=None)
    strip_left, strip_right = plain.strip
    if left is not None:
        head = before[spans[left][1] :]
        plain = replace(plain, before=ids[: left + 1], position="after")
        strip_left = strip_left or (not head and bool(added_tokens[ids[left]].rstrip))
    else:
        head = before
    if right is not None:
        tail = after[: spans[right][0] - last]
        plain = replace(plain, after=ids[right:])
        strip_right = strip_right or (not tail and bool(added_tokens[ids[right]].lstrip))
    else:
        tail = after
    return replace(plain, left=head, right=tail, strip=(strip_left, strip_right))


def _other_ids(tokenizer: PreTrainedTokenizerBase, whole: Sequence[int], pieces: Sequence[int]) -> UsageError:
    """Returns the error for a tokenizer whose ids of a rendered text differ from those of its pieces."""
    tokens = [tokenizer.convert_ids_to_tokens(list(ids))[:40] for ids in (whole, pieces)]
    return UsageError(
        f"{tokenizer.name_or_path}: {type(tokenizer).__name__} gives {tokens[0]} for a rendered conversation "
        f"and {tokens[1]} for its pieces, so the model would read other tokens than those it was trained on; use the "
        "fast tokenizer that belongs to the model (tokenizer.json)"
    )

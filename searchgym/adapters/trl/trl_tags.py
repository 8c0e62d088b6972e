"""The ``tags`` grammar in TRL, for models whose chat template has no tools; see `searchgym.adapters.trl.trl`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from searchgym.errors import UsageError
from searchgym.protocol import get_protocol, opened_by
from searchgym.rollout.foreign.templates import render

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TAGS: Final = get_protocol("tags")

IF_TOOLS: Final = (
    "{% if messages | selectattr('tool_calls') | list or messages | selectattr('role', 'equalto', 'tool') | list %}"
)
"""First part of the chat template; conversations without tools use the tokenizer's template."""

TOOLS_IN_TAGS: Final = (
    "{% for message in messages %}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{% set called = call['function'] %}"
    "{% if called['name'] == 'search' %}<search>{{ called['arguments']['query'] }}</search>"
    "{% else %}<tool_call>{{ called | tojson }}</tool_call>{% endif %}{% endfor %}{% endfor %}"
)
"""Template part that renders conversations with tools. TRL uses it to determine the text that a tool result adds after
the last end-of-turn token. With tags the model continues in its turn, so only the result is rendered."""

RESPONSE_TEMPLATE: Final[dict[str, Any]] = {
    "defaults": {"role": "assistant"},
    # Parse nothing in the prompt: pages and earlier calls would be taken for the model's calls.
    "start_anchor_pattern": r"\Z",
    "fields": {
        "tool_calls": {
            # Not inside an open thought.
            "open_pattern": r"(?<!<think>(?:(?!</think>)[\s\S])*)<search>(?=.*?</search>)",
            "close": "</search>",
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "search", "arguments": {"query": "{content}"}}},
        },
        "content": {"content_args": {"strip": False}},
    },
}
"""Rules with which TRL parses a response: ``<search>query</search>`` is a tool call, everything else is content."""


@contextlib.contextmanager
def use_tags(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Lets a trainer created inside the block use the ``tags`` grammar with a model whose chat template has no tools.

    The tokenizer gets a chat template that can also render tool calls, as tags, and the response template with which
    TRL parses them; both remain after the block. The closing tags of actions become end-of-generation tokens. TRL
    copies them when the trainer is created; after the block the model's generation settings, which checkpoints save,
    are restored. The tags also end turns inside thoughts, where they are not executed: such a turn has no action.

    Args:
        model: Model of the trainer.
        tokenizer: Tokenizer of the trainer (its ``processing_class``).

    Raises:
        UsageError: The tokenizer does not have exactly one chat template, the template opens a thought, or a closing
            tag is not an added token.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str):
        raise UsageError(f"use_tags needs one chat template, {tokenizer.name_or_path!r} has {template!r:.80}")
    if opened_by(render(tokenizer, [[{"role": "user", "content": ""}]])[0]):
        raise UsageError(
            f"the chat template of {tokenizer.name_or_path!r} opens a thought, and TRL ends a turn at any closing tag, "
            "those in thoughts too: train this model with searchgym train, or give it a template without thoughts"
        )
    ends = [_one_token(tokenizer, tag) for tag in TAGS.stop_strings]
    settings: Any = model.generation_config
    before = settings.eos_token_id
    earlier_ends = [] if before is None else [before] if isinstance(before, int) else list(before)
    if not template.startswith(IF_TOOLS):  # checkpoints of such a training have it already
        # Jinja drops the line end that closes a template; here it would no longer be the last.
        tokenizer.chat_template = f"{IF_TOOLS}{TOOLS_IN_TAGS}{{% else %}}{template.removesuffix(chr(10))}{{% endif %}}"
    tokenizer.response_template = RESPONSE_TEMPLATE
    settings.eos_token_id = [*earlier_ends, *ends]
    try:
        yield
    finally:
        settings.eos_token_id = before


def _one_token(tokenizer: PreTrainedTokenizerBase, tag: str) -> int:
    """Returns the id of a tag.

    Raises:
        UsageError: The tag is not an added token; TRL ends turns at tokens, and other tags may be tokenised differently
            in context.
    """
    added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
    if tag not in added:
        raise UsageError(
            f"{tag} is not an added token of {tokenizer.name_or_path!r}, so TRL cannot end a turn there: add it with "
            'add_tokens, or use protocol="tool_calls" with a model whose chat template has tools'
        )
    return int(added[tag])

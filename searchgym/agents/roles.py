"""Roles of an agent: a prompt template with fields, and the limits of a response."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from searchgym.errors import CardError, UsageError
from searchgym.options.cards import RoleCard
from searchgym.options.yaml import read_small
from searchgym.protocol import Parts, joined

FIELD = re.compile(r"\{([a-z_]+)\}")
"""Matches a placeholder in a prompt; other braces, as in JSON examples, are left unchanged."""


@dataclass(frozen=True, slots=True)
class Role:
    """One role of an agent, filled by a model, with its prompt loaded."""

    name: str
    template: str
    """Prompt with ``{field}`` placeholders."""
    max_tokens: int
    """Maximum length of one response, in tokens."""
    stop: tuple[str, ...] | None = None
    """Strings that end a response; None for the closing tags of the environment's actions."""
    penalty: float = 0.0
    """Number (at most 0) that the credit term ``format`` adds to the reward of a response that fails to parse."""
    max_thought_tokens: int | None = None
    """Maximum tokens of a response before an open thought is closed; None: no limit."""

    def render(self, **fields: str) -> str:
        """Returns the prompt with its fields filled in; braces inside a value are not treated as placeholders.

        Raises:
            UsageError: A placeholder got no value, or a value has no placeholder.
        """
        return joined(self.parts(fields))

    def parts(self, fields: Mapping[str, str], trusted: str = "") -> Parts:
        """Returns the parts of the prompt with its fields filled in.

        A prompt may omit ``instructions``, the description of the action grammar: prompts of released models have their
        own wording of it.

        Args:
            fields: Values of the fields, which are untrusted.
            trusted: Value of ``instructions``, the only field whose text comes from this package.

        Raises:
            UsageError: A placeholder got no value, or a value has no placeholder.
        """
        pieces = FIELD.split(self.template)  # text, name, text, name, ..., text
        names = set(pieces[1::2])
        if not fields.keys() - {"instructions"} <= names <= fields.keys():
            raise UsageError(f"role {self.name}: the prompt has fields {sorted(names)}, got {sorted(fields)}")
        return [
            (fields[piece], piece == "instructions" and fields[piece] == trusted) if number % 2 else (piece, True)
            for number, piece in enumerate(pieces)
        ]


def load_role(name: str, card: RoleCard, folder: Path) -> Role:
    """Reads a role's prompt file.

    Args:
        name: Name of the role.
        card: Section of the agent's card about the role.
        folder: Folder of the card, which the prompt's path is relative to.

    Raises:
        CardError: The prompt file cannot be read, lacks a field of the card or uses an unknown one; or the penalty is
            above 0.
    """
    if card.penalty > 0:
        raise CardError(f"role {name}: penalty is {card.penalty:g}, but it is added to a reward: expected at most 0")
    path = folder / card.prompt
    try:
        template = read_small(path).strip()
    except (OSError, ValueError) as error:
        raise CardError(f"role {name}: prompt file {path} cannot be read: {error}") from error
    used = set(FIELD.findall(template))
    if unknown := sorted(used - set(card.fields)):
        raise CardError(f"{path}: unknown field {', '.join(unknown)}; role {name} has {', '.join(card.fields)}")
    if unused := sorted(set(card.fields) - used):
        raise CardError(f"{path}: the prompt does not use {', '.join(unused)}: role {name} would not see it")
    stop = None if card.stop is None else tuple(card.stop)
    return Role(name, template, card.max_tokens, stop, card.penalty, card.max_thought_tokens)

"""Roles: a prompt with fields, and what a model may spend on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from searchgym.cards import RoleCard
from searchgym.errors import CardError, UsageError

FIELD = re.compile(r"\{([a-z_]+)\}")
"""A placeholder; other braces in a prompt (JSON examples) stay as they are."""


@dataclass(frozen=True, slots=True)
class Role:
    """One job of an agent that a model does."""

    name: str
    template: str
    """Prompt with ``{field}`` placeholders."""
    max_tokens: int
    """Tokens of one response at most."""
    stop: tuple[str, ...] | None = None
    """Texts that end a response; None: the closing tags of the environment's actions."""
    penalty: float = 0.0
    """See `RoleCard.penalty`."""

    def render(self, **fields: str) -> str:
        """Returns the prompt with its fields filled in; what a field holds is never read as a placeholder.

        Raises:
            UsageError: A placeholder got no value, or a value has no placeholder.
        """
        wanted = set(FIELD.findall(self.template))
        if wanted != fields.keys():
            raise UsageError(f"role {self.name}: the prompt has fields {sorted(wanted)}, got {sorted(fields)}")
        return FIELD.sub(lambda match: fields[match.group(1)], self.template)


def load_role(name: str, card: RoleCard, folder: Path) -> Role:
    """Reads a role's prompt file.

    Args:
        name: The role.
        card: Its part of the agent's card.
        folder: Where the card lies; the prompt's path is relative to it.

    Raises:
        CardError: The prompt file is not there, does not use a field of the card, or uses another; a penalty above 0.
    """
    if card.penalty > 0:
        raise CardError(f"role {name}: penalty is {card.penalty:g}, it is added to a reward: expected at most 0")
    path = folder / card.prompt
    try:
        template = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CardError(f"role {name}: prompt file {path} cannot be read: {error}") from error
    found = set(FIELD.findall(template))
    if unknown := sorted(found - set(card.fields)):
        raise CardError(f"{path}: unknown field {', '.join(unknown)}; role {name} has {', '.join(card.fields)}")
    if unused := sorted(set(card.fields) - found):
        raise CardError(f"{path}: the prompt does not use {', '.join(unused)}: role {name} would not see it")
    stop = None if card.stop is None else tuple(card.stop)
    return Role(name, template, card.max_tokens, stop, card.penalty)

"""A page with the tokens of one episode: who wrote each, its log-prob and its advantage; no script, one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeGuard

import jinja2

from searchgym.corpora.files import write_atomic
from searchgym.eval.viewing.saved import Terms
from searchgym.eval.viewing.tokens import Decode, Token, rewards_of
from searchgym.records import Episode

TEMPLATE: Final = Path(__file__).with_name("tokens.html")
LEVELS: Final = 4
"""Strengths of colour on either side of an advantage of 0."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens with one author."""

    kind: str
    context: int
    call: int | None
    text: str
    """Text of all tokens, decoded at once: a character may be several tokens."""
    tokens: Sequence[Token]


def write_page(path: Path, episode: Episode, tokens: Sequence[Token], decode: Decode, terms: Terms) -> None:
    """Writes the page of an episode; it is whole or absent.

    Args:
        path: File to write.
        episode: The episode.
        tokens: Its tokens, as `tokens_of` gives them.
        decode: Function from a model key and token ids to text.
        terms: Rewards of the calls by credit term.
    """
    page = render(episode, tokens, decode, terms)
    with write_atomic(path) as file:
        file.write(page.encode("utf-8", errors="replace"))


def render(episode: Episode, tokens: Sequence[Token], decode: Decode, terms: Terms) -> str:
    """Returns the page of an episode as HTML; every text is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "nats": nats, "shown": shown}
    keys = {call.context: call.model_key for call in episode.calls}
    pieces = [
        Piece(own[0].kind, context, call, decode(keys[context], [token.id for token in own]), own)
        for (context, call, _), group in groupby(tokens, key=lambda token: (token.context, token.call, token.kind))
        for own in [list(group)]
    ]
    strongest = max((abs(value) for token in tokens if _finite(value := token.advantage)), default=0.0)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        episode=episode,
        pieces=pieces,
        terms=list(terms),
        calls=[_call(episode, index, tokens, terms) for index in range(len(episode.calls))],
        level=lambda token: _level(token.advantage, strongest),
        trained=sum(token.trained for token in tokens),
        total=len(tokens),
    )


def number(value: float | None) -> str:
    """Returns a number with its sign and three digits; a dash for None."""
    return "–" if value is None else f"{value:+.3g}".replace("-", "−")


def nats(value: float | None) -> str:
    """Returns a log-prob with two decimals; a dash for None."""
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def shown(text: str) -> str:
    """Returns the text of one token with its ends of lines and blanks made visible; an empty token shows too."""
    return text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·") or "∅"


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _level(advantage: float | None, strongest: float) -> str:
    """Returns the class of a token's colour: ``p1`` to ``p4`` above 0, ``n1`` to ``n4`` below, ``z`` for 0 or none."""
    if advantage is None or not math.isfinite(advantage) or advantage == 0 or strongest == 0:
        return "z"
    return f"{'p' if advantage > 0 else 'n'}{max(1, math.ceil(LEVELS * abs(advantage) / strongest))}"


def _call(episode: Episode, index: int, tokens: Sequence[Token], terms: Terms) -> dict[str, Any]:
    """Returns the row of a call in the table."""
    own = [token for token in tokens if token.call == index]
    values = [token.advantage for token in own if token.advantage is not None]
    return {
        "call": episode.calls[index],
        "tokens": len(own),
        "parts": [row[index] for row in terms.values()],
        "reward": rewards_of(episode, terms)[index],
        "logp": math.fsum(token.logp or 0.0 for token in own) if own else None,
        "low": min(values) if values else None,
        "high": max(values) if values else None,
    }

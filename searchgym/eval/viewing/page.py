"""HTML page with the tokens of one episode, their origins, log-probs and advantages; one file without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import jinja2

from searchgym.corpora.files import write_atomic
from searchgym.eval.rows import CallRow
from searchgym.eval.viewing.tokens import Piece
from searchgym.records import Episode

TEMPLATE: Final = Path(__file__).with_name("tokens.html")
LEVELS: Final = 4
"""Number of colour levels for positive advantages, and for negative ones."""


def write_page(path: Path, episode: Episode, pieces: Sequence[Piece], calls: Sequence[CallRow]) -> None:
    """Writes the page of an episode, given its tokens from `pieces_of`; the file is complete or absent."""
    page = render(episode, pieces, calls)
    with write_atomic(path) as file:
        file.write(page.encode("utf-8", errors="replace"))


def render(episode: Episode, pieces: Sequence[Piece], calls: Sequence[CallRow]) -> str:
    """Returns the page of an episode as HTML; every text is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "nats": nats, "visible": visible}
    tokens = [token for piece in pieces for token in piece.tokens]
    values = [abs(token.advantage) for token in tokens if token.advantage is not None]
    strongest = max(filter(math.isfinite, values), default=0.0)

    def level(advantage: float | None) -> str:
        """Returns the CSS class of a colour: ``p1`` to ``p4`` above 0, ``n1`` to ``n4`` below, ``z`` for 0 or none."""
        if advantage is None or not math.isfinite(advantage) or advantage == 0:
            return "z"
        return f"{'p' if advantage > 0 else 'n'}{max(1, math.ceil(LEVELS * abs(advantage) / strongest))}"

    by_call = {piece.call: piece for piece in pieces}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        episode=episode,
        pieces=pieces,
        terms=list(calls[0].parts) if calls else [],
        calls=[(row, episode.calls[n].policy_version, by_call.get(n)) for n, row in enumerate(calls)],
        level=level,
        trained=sum(token.trained for token in tokens),
        total=len(tokens),
    )


def number(value: float | None) -> str:
    """Formats a number with its sign and three digits; a dash for None."""
    return "–" if value is None else f"{value:+.3g}".replace("-", "−")


def nats(value: float | None) -> str:
    """Formats a log-prob with two decimals; a dash for None."""
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def visible(text: str) -> str:
    """Returns the text of a token with visible symbols for line ends, tabs and blanks, and for an empty token."""
    return text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·") or "∅"

"""Tokens of an episode with their origin, loss mask, log-prob, reward and advantage, and a text view of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from searchgym.eval.rows import CallRow
from searchgym.records import Episode, SpanKind
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.loop.folder import Advantages

Decode = Callable[[str, Iterable[int]], str]
"""Function that decodes token ids of a model key's tokenizer, given (key, ids)."""

DIM, BLUE, GREEN, RED, YELLOW, BOLD, RESET = (f"\x1b[{code}m" for code in ("2", "34", "32", "31", "33", "1", "0"))


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a context as training sees it."""

    context: int
    position: int
    """0-based index of the token in its context."""
    id: int
    text: str
    kind: SpanKind
    trained: bool
    """Value of the loss mask: True exactly for generated tokens."""
    logp: float | None
    """Log-prob under the sampler, in nats; None for tokens that were not generated."""
    reward: float
    """Reward of this token."""
    advantage: float | None
    """Advantage of the token; None if training recorded none."""
    call: int | None
    """Index of the token's call in `Episode.calls`; None outside calls."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one origin: a part of a prompt, an observation, or the response of one call."""

    kind: SpanKind
    context: int
    call: int | None
    text: str
    """Text of all tokens, decoded together, since a character may consist of several tokens."""
    tokens: Sequence[Token]

    @property
    def logp(self) -> float:
        """Sum of the tokens' log-probs, in nats."""
        return math.fsum(token.logp or 0.0 for token in self.tokens)

    @property
    def advantages(self) -> tuple[float, float] | None:
        """Minimum and maximum advantage of the tokens; None if they have none."""
        values = [token.advantage for token in self.tokens if token.advantage is not None]
        return (min(values), max(values)) if values else None


def tokens_of(episode: Episode, decode: Decode, calls: Sequence[CallRow], advantages: Advantages) -> list[Token]:
    """Returns the tokens of an episode's training samples, sample by sample.

    Args:
        episode: Episode with contexts and calls.
        decode: Function from a model key and token ids to text.
        calls: Calls of the episode with their rewards.
        advantages: Advantages by call id (``"<episode id>/<call>"``).
    """
    tokens: list[Token] = []
    for sample in samples_from(episode, rewards=[row.reward for row in calls]):
        context = episode.calls[sample.calls[0].index].context
        kinds: list[SpanKind] = [span.kind for span in episode.tokens(context) for _ in span.ids]
        call_of = {position: call for call in sample.calls for position in range(call.start, call.end)}
        for position, token in enumerate(sample.ids.tolist()):
            call = call_of.get(position)
            advantage = None
            if call is not None and (values := advantages.get(f"{episode.id}/{call.index}")) is not None:
                advantage = float(values[0] if len(values) == 1 else values[position - call.start])
            tokens.append(
                Token(
                    context=context,
                    position=position,
                    id=token,
                    text=decode(sample.model_key, [token]),
                    kind=kinds[position],
                    trained=bool(sample.mask[position]),
                    logp=float(sample.sampler_logp[position]) if sample.mask[position] else None,
                    reward=float(sample.reward[position]),
                    advantage=advantage,
                    call=None if call is None else call.index,
                )
            )
    return tokens


def pieces_of(episode: Episode, tokens: Iterable[Token], decode: Decode) -> list[Piece]:
    """Groups consecutive tokens of an episode by their origin."""
    keys = {call.context: call.model_key for call in episode.calls}
    pieces = []
    for _, group in groupby(tokens, key=lambda token: (token.context, token.call, token.kind)):
        first, *others = group
        text = decode(keys[first.context], [token.id for token in (first, *others)])
        pieces.append(Piece(first.kind, first.context, first.call, text, [first, *others]))
    return pieces


def draw(episode: Episode, pieces: Iterable[Piece], calls: Sequence[CallRow], colour: bool) -> str:
    """Returns a text view of an episode, with ANSI colours or brackets.

    Prompts are dim and observations blue. Trained tokens are green with a positive advantage, red with a negative one,
    and yellow otherwise; without colour they are enclosed in ``⟦ ⟧``. Each call is followed by its log-prob, its reward
    (with its terms, if there are several) and its advantage.
    """
    paint: Callable[[str, str], str] = (lambda code, text: f"{code}{text}{RESET}") if colour else (lambda _, text: text)
    text = [
        f"{paint(BOLD, f'episode {episode.id}')}\nagent {episode.agent}, environment {episode.env}, "
        f"end {episode.stop_reason}, the environment's reward {episode.reward:g}\n"
    ]
    for piece in pieces:
        if not piece.tokens[0].trained:
            text.append(paint(DIM if piece.kind == "prompt" else BLUE, piece.text))
            continue
        assert piece.call is not None
        call, row = episode.calls[piece.call], calls[piece.call]
        sign = piece.tokens[0].advantage or 0.0
        advantage = "n/a"
        if piece.advantages is not None:
            low, high = piece.advantages
            advantage = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        parts = ", ".join(f"{name} {reward:g}" for name, reward in row.parts.items())
        reward = f"{row.reward:g}" + (f" ({parts})" if len(row.parts) > 1 else "")
        summary = (
            f"{row.role} (model {row.model_key}, version {call.policy_version}), turn {row.turn}"
            f"{'' if row.legal else ', not legal'}: {len(piece.tokens)} tokens, log-prob {piece.logp:.2f}, "
            f"reward {reward}, advantage {advantage}"
        )
        body = paint(GREEN if sign > 0 else RED if sign < 0 else YELLOW, piece.text)
        text.append(body if colour else f"⟦{body}⟧")
        text.append(paint(DIM, f"  ← {summary}\n"))
    return "".join(text)

"""Text view of an episode, token by token: origin, loss mask, log-prob, reward and advantage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from searchgym.eval.viewing.saved import Advantages, Terms
from searchgym.records import Episode, SpanKind
from searchgym.train.algorithms.samples import samples_from

Decode = Callable[[str, Iterable[int]], str]
"""Function from a model key and token ids of its tokenizer to text."""

DIM, BLUE, GREEN, RED, YELLOW, BOLD, RESET = (f"\x1b[{code}m" for code in ("2", "34", "32", "31", "33", "1", "0"))


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a context as training sees it."""

    context: int
    position: int
    """0-based index of the token in its context, counted from the context's first token."""
    id: int
    text: str
    kind: SpanKind
    trained: bool
    """Value of the loss mask: True exactly for tokens that a model wrote."""
    logp: float | None
    """Log-prob under the sampler, in nats; None for tokens that no model wrote."""
    reward: float
    """Reward placed on this token."""
    advantage: float | None
    """Advantage of the token; None if training recorded none."""
    call: int | None
    """Index of the token's call in `Episode.calls`; None outside calls."""


def tokens_of(episode: Episode, decode: Decode, terms: Terms, advantages: Advantages) -> list[Token]:
    """Returns every token of an episode's contexts that hold calls, in the order of the contexts.

    Args:
        episode: Episode with contexts and calls.
        decode: Function from a model key and token ids to text.
        terms: Rewards of the calls by credit term.
        advantages: Advantages by call id (``"<episode id>/<call>"``).
    """
    found: list[Token] = []
    for sample in samples_from(episode, rewards=rewards_of(episode, terms)):
        context = episode.calls[sample.calls[0].index].context
        kinds: list[SpanKind] = [span.kind for span in episode.tokens(context) for _ in span.ids]
        call_of = {position: call for call in sample.calls for position in range(call.start, call.end)}
        for position, token in enumerate(sample.ids.tolist()):
            call = call_of.get(position)
            advantage = None
            if call is not None:
                own = advantages.get(f"{episode.id}/{call.index}")
                if own is not None:
                    advantage = float(own[0] if len(own) == 1 else own[position - call.start])
            found.append(
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
    return found


def rewards_of(episode: Episode, terms: Terms) -> list[float]:
    """Returns the reward of each call of an episode: the sum over the terms."""
    return [sum(row[index] for row in terms.values()) for index in range(len(episode.calls))]


def draw(episode: Episode, tokens: Iterable[Token], decode: Decode, terms: Terms, colour: bool) -> str:
    """Returns the text view of an episode, with ANSI colours or brackets.

    Prompts are dim and observations blue; trained tokens are green with a positive advantage, red with a negative one,
    yellow with none. Without colour trained tokens stand in ``⟦ ⟧``. After each call: log-prob, reward (with its terms,
    if there are several) and advantage.
    """
    keys = {call.context: call.model_key for call in episode.calls}
    paint: Callable[[str, str], str] = (lambda code, text: f"{code}{text}{RESET}") if colour else (lambda _, text: text)
    lines = [
        paint(BOLD, f"episode {episode.id}"),
        f"agent {episode.agent}, environment {episode.env}, end {episode.stop_reason}, "
        f"the environment's reward {episode.reward:g}",
        "",
    ]
    text: list[str] = []
    run: list[Token] = []

    def close() -> None:
        if not run:
            return
        first = run[0]
        body = decode(keys[first.context], [token.id for token in run])  # at once: a character may be several tokens
        if first.trained:
            sign = first.advantage or 0.0
            body = paint(GREEN if sign > 0 else RED if sign < 0 else YELLOW, body)
            text.append(body if colour else f"⟦{body}⟧")
            text.append(paint(DIM, f"  ← {_summary(episode, run, terms)}\n"))
        else:
            text.append(paint(DIM if first.kind == "prompt" else BLUE, body))
        run.clear()

    for token in tokens:
        if run and (token.context, token.call, token.kind) != (run[-1].context, run[-1].call, run[-1].kind):
            close()
        run.append(token)
    close()
    return "\n".join(lines) + "".join(text)


def _summary(episode: Episode, run: list[Token], terms: Terms) -> str:
    """Describes one call in a line."""
    assert run[0].call is not None
    call = episode.calls[run[0].call]
    logp = sum(token.logp or 0.0 for token in run)
    values = sorted({token.advantage for token in run if token.advantage is not None})
    shown = f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}" if values else "n/a"
    legal = "" if call.legal else ", not legal"
    parts = ", ".join(f"{name} {row[run[0].call]:g}" for name, row in terms.items())
    reward = f"{rewards_of(episode, terms)[run[0].call]:g}" + (f" ({parts})" if len(terms) > 1 else "")
    return (
        f"{call.role} (model {call.model_key}, version {call.policy_version}), turn {call.turn}{legal}: "
        f"{len(run)} tokens, log-prob {logp:.2f}, reward {reward}, advantage {shown}"
    )

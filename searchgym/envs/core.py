"""The environment core: pure functions on a frozen state, on which every shell stands.

One action is two steps, so that the shell decides how retrieval is batched and awaited::

    state, queries = begin(state, action, rules)     # queries is empty when nothing is to be retrieved
    hits = ...                                       # the shell retrieves
    state, observation = finish(state, hits, rules)  # or fail(state, error) if the retriever failed

Rules of an episode: every action costs a turn, one that could not be read too. An answer ends the episode
(``"answer"``). So does the last turn (``"turns"``); a search in the last turn is not sent, since nothing could be done
with its hits. The score reads the answer action and the question, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from searchgym.cards import EnvCard
from searchgym.errors import EpisodeError, UsageError
from searchgym.protocol import Protocol, get_protocol
from searchgym.records import Action, Answer, Hit, Invalid, Question, Search, Searched, StopReason


@dataclass(frozen=True, slots=True)
class Rules:
    """Budgets and grammar of an environment."""

    protocol: Protocol
    top_k: int
    """Passages per query."""
    max_turns: int
    """Actions per episode."""
    max_queries: int
    """Queries per search action."""
    max_observation_words: int
    """Words of retrieved text per turn."""
    deadline: float
    """Seconds per retrieval, retries included."""

    @classmethod
    def from_card(cls, card: EnvCard) -> Rules:
        """Reads the rules of a card."""
        return cls(
            get_protocol(card.protocol, keep_thoughts=card.thoughts == "keep"),
            card.top_k,
            card.max_turns,
            card.max_queries,
            card.max_observation_words,
            card.retriever_deadline,
        )


@dataclass(frozen=True, slots=True)
class State:
    """Everything an episode has come to; immutable, so a copy is a reference."""

    question: Question
    turn: int = 0
    """Actions taken."""
    invalid: int = 0
    """Actions that could not be read."""
    searches: tuple[Searched, ...] = ()
    """Queries made and their hits, in order."""
    action: Action | None = None
    """The last action."""
    answer: Answer | None = None
    stop_reason: StopReason | None = None
    error: str | None = None
    """What the retriever said, if it failed."""

    @property
    def done(self) -> bool:
        """True once the episode has ended."""
        return self.stop_reason is not None

    @property
    def answer_text(self) -> str:
        """The final answer; empty if there is none."""
        return "" if self.answer is None else self.answer.text


def begin(state: State, action: Action, rules: Rules) -> tuple[State, tuple[str, ...]]:
    """Takes an action as far as it goes without retrieval.

    Returns:
        The new state and the queries to retrieve: empty for an answer, an unread action, or the last turn.

    Raises:
        EpisodeError: The episode has ended.
        UsageError: Not an action, text for example.
    """
    if not isinstance(action, (Search, Answer, Invalid)):
        raise UsageError(
            f"an action is a Search, an Answer or an Invalid, got {type(action).__name__} {action!r:.80}; "
            "text is read by protocol.parse(text)"
        )
    if state.done:
        raise EpisodeError(f"the episode has ended ({state.stop_reason}): reset before the next step")
    if isinstance(action, Search) and len(action.queries) > rules.max_queries:
        action = Invalid(f"{len(action.queries)} queries at once, at most {rules.max_queries}")
    turn, answer = state.turn + 1, action if isinstance(action, Answer) else None
    stop: StopReason | None = "answer" if answer is not None else "turns" if turn >= rules.max_turns else None
    invalid = state.invalid + isinstance(action, Invalid)
    # Written out, not replace(): this runs once per environment and step.
    state = State(state.question, turn, invalid, state.searches, action, answer, stop)
    return state, action.queries if stop is None and isinstance(action, Search) else ()


def finish(state: State, hits: Sequence[Sequence[Hit]], rules: Rules) -> tuple[State, str]:
    """Completes the action that `begin` took.

    Args:
        state: What `begin` returned.
        hits: One sequence of hits per query that `begin` returned.
        rules: The same rules.

    Returns:
        The new state and the observation; empty once the episode has ended.
    """
    if state.done:
        return state, ""
    action = state.action
    if not isinstance(action, Search):
        return state, rules.protocol.notice(action.reason if isinstance(action, Invalid) else "")
    found = [Searched(state.turn, query, tuple(own)) for query, own in zip(action.queries, hits, strict=True)]
    observation = rules.protocol.observation(hits, rules.max_observation_words)
    return State(state.question, state.turn, state.invalid, (*state.searches, *found), action), observation


def fail(state: State, error: str, reason: StopReason = "retriever_error") -> State:
    """Ends an episode that cannot go on: its retrieval failed past the deadline, or a context was full."""
    return replace(state, stop_reason=reason, error=error)

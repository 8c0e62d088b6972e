"""The environment core: pure functions on a frozen state, shared by every environment class and the rollout engine.

One action needs two calls, so that the caller (the shell) decides how retrieval is batched and awaited::

    state, queries = begin(state, action, rules)     # queries is empty if no retrieval is needed
    hits = ...                                       # the shell retrieves
    state, observation = finish(state, hits, rules)  # or fail(state, error) if the retriever failed

Rules of an episode: every action costs a turn, including an invalid one. An answer ends the episode (``"answer"``). So
does the last turn (``"turns"``); a search in the last turn is not sent, since its hits could no longer be used. The
shell may end the episode with `fail`: see `searchgym.records.StopReason`. The score depends only on the answer action
and the question.

If pages can be opened, `finish` reads them from `Rules.pages`, since that needs no retrieval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from searchgym.envs.cards import EnvCard
from searchgym.envs.faults.fault import Fault
from searchgym.envs.pages.cite import cite
from searchgym.envs.pages.look import look
from searchgym.envs.pages.pages import PageIndex, snippet
from searchgym.errors import EpisodeError, UsageError
from searchgym.options import kind_name, loaded
from searchgym.protocol import Protocol, get_protocol
from searchgym.records import (
    Action,
    Answer,
    Cite,
    Cited,
    Find,
    Hit,
    Invalid,
    More,
    Open,
    Opened,
    Question,
    Search,
    Searched,
    StopReason,
)
from searchgym.text import estimate_tokens


@dataclass(frozen=True, slots=True)
class Rules:
    """Budgets and action grammar of an environment."""

    protocol: Protocol
    """Action grammar."""
    top_k: int
    """Passages retrieved per query."""
    max_turns: int
    """Maximum number of actions per episode, the answer included."""
    max_queries: int
    """Maximum number of queries per search action."""
    max_observation_words: int
    """Maximum number of words of retrieved text per turn."""
    deadline: float
    """Time limit of one retrieval in seconds, retries included."""
    pages: PageIndex | None = None
    """Pages that can be opened; None if searches show whole passages and no page can be opened."""
    snippet_words: int = 0
    """Maximum number of words of each hit in search results when pages can be opened."""
    token_budget: int | None = None
    """Number of tokens after which an episode reads no more; None if there is no limit."""
    faults: tuple[Fault, ...] = ()
    """Faults of the search engine."""

    @classmethod
    def from_card(cls, card: EnvCard, pages: PageIndex | None = None, sources: Sequence[str] = ()) -> Rules:
        """Returns the rules that an environment card sets.

        Args:
            card: Card of the environment.
            pages: Pages of the corpus, if they can be opened.
            sources: Names of the additional retrievers.
        """
        return cls(
            get_protocol(
                card.protocol,
                card.thoughts == "keep",
                card.browse,
                sources,
                card.dialect,
                card.several_calls,
                card.find,
                card.cite,
            ),
            card.top_k,
            card.max_turns,
            card.max_queries,
            card.max_observation_words,
            card.retriever_deadline,
            pages,
            card.snippet_words,
            card.token_budget,
            tuple(map(loaded, card.faults)),
        )


@dataclass(frozen=True, slots=True)
class State:
    """State of one episode; immutable, so a reference serves as a copy."""

    question: Question
    turn: int = 0
    """Number of actions so far."""
    invalid: int = 0
    """Number of actions that could not be parsed."""
    searches: tuple[Searched, ...] = ()
    """Queries sent and their hits, in order."""
    opens: tuple[Opened, ...] = ()
    """Records of opened pages and failed attempts to open one, in order."""
    action: Action | None = None
    """Last action; None before the first."""
    answer: Answer | None = None
    """Final answer; None if the episode has none yet."""
    stop_reason: StopReason | None = None
    """Reason why the episode ended; None while it runs."""
    error: str | None = None
    """Error that ended the episode (retriever error, full context, exhausted calls); None otherwise."""
    cites: tuple[Cited, ...] = ()
    """Citations and failed attempts at one, in order."""
    tokens: int = 0
    """Estimated number of tokens of all observations so far; counted only if there is a budget."""

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.stop_reason is not None

    @property
    def source(self) -> str:
        """Name of the additional retriever that the last action searches; empty for the main one."""
        return self.action.source if isinstance(self.action, Search) else ""

    @property
    def answer_text(self) -> str:
        """Text of the final answer; empty if there is none."""
        return "" if self.answer is None else self.answer.text


def begin(state: State, action: Action, rules: Rules) -> tuple[State, tuple[str, ...]]:
    """Executes the first half of an action, up to the point where retrieval is needed.

    Returns:
        The new state, and the queries to retrieve: none for an answer, an invalid action, or the last turn.

    Raises:
        EpisodeError: The episode has ended.
        UsageError: `action` is not an `Action` record (for example a string).
    """
    if not isinstance(action, Action):
        raise UsageError(
            f"an action is a Search, Answer, Open, More, Find, Cite or Invalid, got {type(action).__name__} "
            f"{action!r:.80}; convert text with protocol.parse(text)"
        )
    if state.done:
        raise EpisodeError(f"the episode has ended ({state.stop_reason}): reset before the next step")
    if isinstance(action, Search) and len(action.queries) > rules.max_queries:
        action = Invalid(f"{len(action.queries)} queries at once, at most {rules.max_queries}")
    if isinstance(action, Search) and action.source and action.source not in rules.protocol.sources:
        action = Invalid(f"there is no source {action.source[:40]!r}")
    if isinstance(action, (Open, More)) and rules.pages is None:
        action = Invalid("pages cannot be opened here")
    if (isinstance(action, Find) and not rules.protocol.find) or (isinstance(action, Cite) and not rules.protocol.cite):
        action = Invalid("pages cannot be searched or cited here")
    spent = rules.token_budget is not None and state.tokens >= rules.token_budget
    if spent and isinstance(action, (Search, Open, More, Find)):
        action = Invalid(f"the {rules.token_budget} tokens that may be read are used up: answer")
    turn, answer = state.turn + 1, action if isinstance(action, Answer) else None
    stop: StopReason | None = "answer" if answer is not None else "turns" if turn >= rules.max_turns else None
    invalid = state.invalid + isinstance(action, Invalid)
    # Not dataclasses.replace(), which is slow: this runs once per environment and step.
    state = State(
        state.question,
        turn,
        invalid,
        state.searches,
        state.opens,
        action,
        answer,
        stop,
        None,
        state.cites,
        state.tokens,
    )
    return state, action.queries if stop is None and isinstance(action, Search) else ()


def finish(state: State, hits: Sequence[Sequence[Hit]], rules: Rules) -> tuple[State, str]:
    """Completes the action that `begin` started, given its hits.

    Args:
        state: State that `begin` returned.
        hits: One sequence of hits per query that `begin` returned.
        rules: Rules that `begin` was called with.

    Returns:
        The new state and the observation, which is empty once the episode has ended.
    """
    if state.done:
        return state, ""
    state, observation = _acted(state, hits, rules)
    if rules.token_budget is not None:
        state = replace(state, tokens=state.tokens + estimate_tokens(observation))
    return state, observation


def _acted(state: State, hits: Sequence[Sequence[Hit]], rules: Rules) -> tuple[State, str]:
    """Returns the state and the observation after the action of a running episode; see `finish`."""
    action = state.action
    if rules.pages is not None and isinstance(action, Cite):
        cited, text = cite(action, state.turn, state.opens, rules.pages)
        return replace(state, cites=(*state.cites, cited)), rules.protocol.result(text)
    if rules.pages is not None and isinstance(action, (Open, More, Find)):
        opened, text = look(action, state.turn, state.opens, rules.pages, rules.max_observation_words)
        return replace(state, opens=(*state.opens, opened)), rules.protocol.result(text)
    if isinstance(action, Search):
        return _with_hits(state, action, hits, rules)
    return state, rules.protocol.notice(action.reason if isinstance(action, Invalid) else "")


def _with_hits(state: State, action: Search, hits: Sequence[Sequence[Hit]], rules: Rules) -> tuple[State, str]:
    """Returns the state and the observation after a search, whose hits a fault may spoil."""
    id, turn = state.question.id, state.turn
    fault = next((fault for fault in rules.faults if fault.happens(id, turn)), None) if rules.faults else None
    if fault is not None:
        hits = [fault.spoilt(id, turn, page) for page in hits]
    name = None
    if rules.pages is not None:
        hits = [[snippet(hit, rules.snippet_words) for hit in page] for page in hits]
        name = rules.pages.name
    kind = "" if fault is None else kind_name(fault)
    searched = [
        Searched(turn, query, tuple(page), action.source, kind)
        for query, page in zip(action.queries, hits, strict=True)
    ]
    if fault is not None and fault.notice:
        observation = rules.protocol.result(fault.notice)
    else:
        observation = rules.protocol.observation(hits, rules.max_observation_words, name)
    searches = (*state.searches, *searched)  # as in `begin`, not by the slow replace()
    state = State(
        state.question,
        turn,
        state.invalid,
        searches,
        state.opens,
        action,
        cites=state.cites,
        tokens=state.tokens,
    )
    return state, observation


def fail(state: State, error: str, reason: StopReason = "retriever_error") -> State:
    """Ends an episode that cannot continue, for example after a failed retrieval or because a context is full."""
    return replace(state, stop_reason=reason, error=error)

"""Cards of environments: what is asked, what is searched, and the rules of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt

from searchgym.options import Options
from searchgym.options.cards import ProtocolName, SeveralCalls
from searchgym.questions.question_source import QuestionSource

ScorerName = Literal["hotpotqa", "2wiki", "musique", "flashrag", "search_r1", "kilt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCard(Options):
    """Card of one environment: its id, data, budgets and rules."""

    id: str
    """Environment id ``namespace/Name-vN``; the version is raised when a change would alter results."""
    summary: str
    questions: QuestionSource
    """Source of its questions: ``kind`` and the options of the kind."""
    corpus: str = ""
    """Corpus to search: the name of a corpus card, or a path to a corpus file or an index folder; empty where the user
    gives one, or the questions bring one."""
    scorer: ScorerName = "hotpotqa"
    """Official scorer that evaluation reports."""
    reward: str | dict[str, Any] = "em"
    """Reward of a finished episode: a kind's name, ``kind`` with its options, or ``module:function``."""
    protocol: ProtocolName = "tags"
    """Action grammar that the model writes."""
    dialect: str = "hermes"
    """How tool calls are spelled where the protocol is ``tool_calls``: a dialect's name or YAML file, or ``auto`` for
    that of the model's chat template."""
    several_calls: SeveralCalls = "first"
    """What several tool calls in one response are: the first acts, all are queries of one search, or a refusal."""
    thoughts: Literal["keep", "drop"] = "keep"
    """Whether `SearchEnv.render` shows the model's ``<think>`` blocks; the model's context always keeps them."""
    top_k: Annotated[int, Gt(0)] = 3
    """Passages retrieved per query."""
    max_turns: Annotated[int, Gt(0)] = 5
    """Actions per episode, the answer included: with n turns, at most n - 1 searches."""
    max_queries: Annotated[int, Gt(0)] = 1
    """Maximum number of queries in one search action."""
    max_observation_words: Annotated[int, Gt(0)] = 500
    """Maximum number of words of retrieved text per turn; longer text is cut."""
    browse: bool = False
    """Whether searches show only the beginning of each passage, and pages of the corpus can be opened."""
    snippet_words: Annotated[int, Gt(0)] = 30
    """Maximum number of words of each passage that a search shows where pages can be opened."""
    retriever_deadline: Annotated[float, Gt(0)] = 30.0
    """Seconds that one retrieval may take, retries included."""

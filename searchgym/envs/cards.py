"""Cards of environments: their questions, corpus, and the rules of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt

from searchgym.envs.faults.fault import Fault
from searchgym.options import Options
from searchgym.options.cards import ProtocolName, SeveralCalls
from searchgym.questions.question_source import QuestionSource

ScorerName = Literal["hotpotqa", "2wiki", "musique", "flashrag", "search_r1", "kilt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCard(Options):
    """Card of one environment: its id, data, budgets and rules."""

    id: str
    """Environment id ``namespace/Name-vN``; N is incremented when a change would alter results."""
    summary: str
    questions: QuestionSource
    """Source of the questions: ``kind`` and the options of the kind."""
    corpus: str = ""
    """Corpus to search: the name of a corpus card, or a path to a corpus file or an index folder; empty if the user
    passes one, or the questions come with one."""
    scorer: ScorerName = "hotpotqa"
    """Name of the official scorer that computes the scores of evaluations."""
    reward: str | dict[str, Any] = "em"
    """Reward of a finished episode: the name of a kind, ``kind`` with its options, or ``module:function``."""
    protocol: ProtocolName = "tags"
    """Action grammar that the model writes."""
    dialect: str = "hermes"
    """Syntax of tool calls (protocol ``tool_calls``): a dialect's name or YAML file, or ``auto`` for the syntax of the
    model's chat template."""
    several_calls: SeveralCalls = "first"
    """Handling of several tool calls in one response: only the first counts, all are queries of one search, or the
    response is invalid."""
    thoughts: Literal["keep", "drop"] = "keep"
    """Whether `SearchEnv.render` shows the model's ``<think>`` blocks; the model's context always keeps them."""
    top_k: Annotated[int, Gt(0)] = 3
    """Passages retrieved per query."""
    max_turns: Annotated[int, Gt(0)] = 5
    """Actions per episode, the answer included: with n turns, at most n - 1 searches."""
    max_queries: Annotated[int, Gt(0)] = 1
    """Maximum number of queries in one search action."""
    max_observation_words: Annotated[int, Gt(0)] = 500
    """Maximum number of words of retrieved text per turn; longer text is truncated."""
    browse: bool = False
    """Whether searches show only the beginning of each passage, and pages of the corpus can be opened."""
    snippet_words: Annotated[int, Gt(0)] = 30
    """Maximum number of words of each passage in search results when pages can be opened (`browse`)."""
    find: bool = False
    """Whether plain texts can be found in the page opened last; needs `browse`."""
    cite: bool = False
    """Whether pages can be cited as evidence by a quote of them; needs `browse`."""
    token_budget: Annotated[int, Gt(0)] | None = None
    """Number of tokens after which an episode reads no more: it can then only cite and answer. They are estimated from
    the observations' texts, see `searchgym.text.estimate_tokens`. None: no limit."""
    faults: tuple[Fault, ...] = ()
    """Faults of the search engine; of several in one search, the first counts."""
    retriever_deadline: Annotated[float, Gt(0)] = 30.0
    """Time limit of one retrieval in seconds, retries included."""

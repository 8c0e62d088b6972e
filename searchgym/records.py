"""The nouns of SearchGym as typed records, one place for every field's shape, dtype and unit.

Symbols: T tokens of a context, k hits asked for. All records are plain data: no I/O, no behaviour beyond views of
their own fields. Text stays exactly as the data source gave it; titles are compared through `title_key`.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError

StopReason = Literal["answer", "turns", "retriever_error", "context", "calls"]
"""Why an episode ended: it answered; its turn budget was spent; its retriever failed past the deadline; a model's
context was full; its agent's budget of calls was spent."""

SpanKind = Literal["prompt", "model", "observation"]
"""Who wrote a span of tokens. Only ``"model"`` spans are ever trained on."""


def title_key(title: str) -> str:
    """Returns the form under which two titles are the same page: HTML-unescaped, NFC, whitespace collapsed."""
    return " ".join(unicodedata.normalize("NFC", html.unescape(title)).split())


# -- corpus and retrieval ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """The unit that is indexed and shown to a model."""

    id: str
    """Unique in its corpus."""
    title: str
    """Page title as the source gives it; may be empty."""
    text: str
    """Body without the title."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved passage."""

    passage: Passage
    score: float
    """Retriever's own scale, larger is better; always > 0 for BM25."""


# -- questions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SupportingFact:
    """One gold sentence: the page's title and the 0-based sentence number, None where only the page is known."""

    title: str
    sentence: int | None = None


@dataclass(frozen=True, slots=True)
class Triple:
    """One gold evidence triple."""

    subject: str
    relation: str
    object: str


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a gold decomposition (MuSiQue): ``#1`` in the question stands for the first step's answer."""

    question: str
    answer: str
    paragraph: int | None = None
    """Index of the supporting paragraph in `Question.paragraphs`."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One page of a question's own context (the distractor setting)."""

    title: str
    sentences: tuple[str, ...]
    """Sentences in order, spaces kept: the text is their plain concatenation."""
    supporting: bool = False
    """True if the data marks the paragraph as gold."""

    @property
    def text(self) -> str:
        """The paragraph's text."""
        return "".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answers and what is known of its evidence. Absent knowledge is None, never empty."""

    id: str
    text: str
    answers: tuple[str, ...]
    """Gold answers; the first is the one that single-gold scorers use. At least one."""
    aliases: tuple[str, ...] = ()
    """Further accepted spellings, used by alias-aware scorers only."""
    kind: str | None = None
    """Question type as the data names it: ``"bridge"``, ``"comparison"``, ..."""
    level: str | None = None
    """Difficulty as the data names it."""
    supporting_facts: tuple[SupportingFact, ...] | None = None
    evidences: tuple[Triple, ...] | None = None
    evidence_ids: tuple[Triple, ...] | None = None
    """The same triples as entity ids (2WikiMultihopQA's ids release)."""
    answer_id: str | None = None
    """Entity id of the answer (2WikiMultihopQA's ids release)."""
    hops: tuple[Hop, ...] | None = None
    paragraphs: tuple[Paragraph, ...] | None = None
    """The question's own context, in the data's order."""
    answerable: bool | None = None
    """False for MuSiQue's unanswerable twins; None where the data does not say."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the source row held, unread."""

    def __post_init__(self) -> None:
        """Refuses what would only be noticed when it is scored.

        Raises:
            UsageError: `answers` or `aliases` is not a tuple of strings, or there is no answer.
        """
        for name, texts in (("answers", self.answers), ("aliases", self.aliases)):
            if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
                raise UsageError(f"question {self.id!r}: {name} must be a tuple of strings, got {texts!r:.80}")
        if not self.answers:
            raise UsageError(f"question {self.id!r} has no gold answer")

    @property
    def golds(self) -> tuple[str, ...]:
        """Answers and aliases, first occurrence order, without repeats."""
        return tuple(dict.fromkeys(self.answers + self.aliases))

    @property
    def gold_titles(self) -> tuple[str, ...] | None:
        """Titles of the gold pages in order of first mention, without repeats; None where the data names none."""
        if self.supporting_facts is not None:
            return tuple({title_key(fact.title): fact.title for fact in self.supporting_facts}.values())
        if self.paragraphs is not None and any(p.supporting for p in self.paragraphs):
            return tuple({title_key(p.title): p.title for p in self.paragraphs if p.supporting}.values())
        return None


# -- actions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Search:
    """Ask the retriever; usually one query, several where a protocol allows it.

    Raises:
        UsageError: `queries` is not a tuple of at least one string: ``Search(("query",))``.
    """

    queries: tuple[str, ...]

    def __post_init__(self) -> None:
        queries = self.queries
        if not isinstance(queries, tuple) or not queries or not all(isinstance(query, str) for query in queries):
            raise UsageError(f'a search is Search(("query",)), got {queries!r:.80}')


@dataclass(frozen=True, slots=True)
class Answer:
    """Give the final answer; every other field is None unless the agent really produced it.

    Raises:
        UsageError: `text` is not a string.
    """

    text: str
    supporting_facts: tuple[SupportingFact, ...] | None = None
    evidences: tuple[Triple, ...] | None = None
    paragraphs: tuple[int, ...] | None = None
    """Indices of supporting paragraphs (MuSiQue)."""
    answerable: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise UsageError(f"an answer is text, got {type(self.text).__name__} {self.text!r:.80}")


@dataclass(frozen=True, slots=True)
class Invalid:
    """An action that could not be read; it costs a turn and is answered by a notice."""

    reason: str


Action = Search | Answer | Invalid


# -- episodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Searched:
    """One query of an episode and what came back."""

    turn: int
    """1-based turn in which the query was made."""
    query: str
    hits: tuple[Hit, ...]


@dataclass(slots=True, eq=False)
class Span:
    """A run of tokens with one author."""

    kind: SpanKind
    ids: npt.NDArray[np.int32]
    """(T,) int32 token ids, exactly as sampled or encoded once; never re-tokenised."""
    logp: npt.NDArray[np.float32] | None = None
    """(T,) float32 natural-log probabilities under the sampler, temperature included; model spans only."""

    def __eq__(self, other: object) -> bool:
        """Equal kind, ids and log-probs, bit for bit."""
        if not isinstance(other, Span):
            return NotImplemented
        if (self.logp is None) != (other.logp is None):
            return False
        same_logp = self.logp is None or other.logp is None or self.logp.tobytes() == other.logp.tobytes()
        return self.kind == other.kind and np.array_equal(self.ids, other.ids) and same_logp


@dataclass(slots=True)
class Context:
    """One node of an episode's token tree: what a model saw and wrote, after its parent's first `fork` tokens."""

    parent: int | None
    """Index in `Episode.contexts`; None for a root."""
    fork: int
    """Number of the parent's tokens (its own ancestors' included) that this context begins with; 0 for a root."""
    spans: list[Span] = field(default_factory=list)
    """Own spans, in order, not including what is inherited."""


@dataclass(slots=True)
class Call:
    """One generation: the response is tokens ``start:end`` of a context (counted from its root)."""

    context: int
    start: int
    end: int
    role: str
    model_key: str
    turn: int
    legal: bool = True
    """False if the role's parser refused the output and a fallback was used."""
    text: str = ""
    """The decoded response, for people; training uses the ids."""
    policy_version: int = 0
    """Optimizer steps behind the weights that sampled it."""
    cut: bool = False
    """True if its role's token limit ended it."""
    answer: str | None = None
    """The answer to the question that it proposes, as the workflow read it; None where it proposes none."""
    prefix: bool = False
    """True for an answer that training asked for in the middle of the episode; the episode went on without it."""


@dataclass(slots=True)
class Episode:
    """Everything that happened between one question and its answer."""

    id: str
    """Unique in its run: ``"<question id>#<attempt>"``, in training ``"@<step>"`` behind it."""
    question_id: str
    agent: str
    env: str
    attempt: int = 0
    """0-based number of this attempt at the question."""
    group_uid: str | None = None
    """Key of the episodes it is compared with; None outside training."""
    seed: int | None = None
    contexts: list[Context] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    searches: list[Searched] = field(default_factory=list)
    turns: int = 0
    """Actions taken, invalid ones too."""
    invalid: int = 0
    """Actions that could not be read."""
    observation_words: int = 0
    """Whitespace-separated words of all observations after the question."""
    answer: Answer | None = None
    stop_reason: StopReason | None = None
    """None only while running, or for an episode that its workflow left unfinished."""
    reward: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    """``em`` and ``f1`` in [0, 1] and whatever else the environment scores."""
    error: str | None = None
    """What the retriever said when `stop_reason` is ``"retriever_error"``."""
    notes: dict[str, float] = field(default_factory=dict)
    """What the workflow counted, by name."""

    def tokens(self, context: int) -> list[Span]:
        """Returns the spans a model saw in a context, inherited ones first, cut at the forks."""
        chain: list[Span] = []
        node = self.contexts[context]
        if node.parent is not None:
            room = node.fork
            for span in self.tokens(node.parent):
                take = min(room, len(span.ids))
                if take:
                    logp = None if span.logp is None else span.logp[:take]
                    chain.append(Span(span.kind, span.ids[:take], logp))
                room -= take
            if room:
                raise ValueError(f"context {context} forks {room} tokens past the end of context {node.parent}")
        return chain + node.spans

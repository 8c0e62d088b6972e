"""Typed records of questions, passages, actions and episodes, with the shape, dtype and unit of every field.

Symbols: T tokens of a context. All records are plain data: no I/O, no behaviour beyond views of their fields. Text is
kept exactly as the source has it; titles are compared through `title_key`.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError

StopReason = Literal["answer", "turns", "retriever_error", "context", "calls"]
"""Why an episode ended. ``answer``: the agent answered; ``turns``: the turn budget was spent; ``retriever_error``: the
retriever failed past its deadline; ``context``: a model's context was full; ``calls``: the agent's budget of calls to
models was spent."""

SpanKind = Literal["prompt", "model", "observation"]
"""Author of a span of tokens: the prompt, the model or the environment. Only ``"model"`` spans are trained on."""


def title_key(title: str) -> str:
    """Returns the normal form by which page titles are compared: HTML-unescaped, NFC, whitespace collapsed."""
    return " ".join(unicodedata.normalize("NFC", html.unescape(title)).split())


# -- corpus and retrieval ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """One titled text of a corpus: the unit that is indexed, retrieved and shown to a model."""

    id: str
    """Passage id, unique in its corpus."""
    title: str
    """Page title as the source gives it; may be empty."""
    text: str
    """Body of the passage, without the title."""
    links: tuple[tuple[int, int, str], ...] = field(default=(), compare=False, repr=False)
    """Links to other passages, for graphs: start and end of the linked words in the text, and the other's id.
    Comparison ignores links, and no model sees them."""


SIMULATED: Final = "simulated:"
"""Prefix of the ids of passages that a language model wrote, instead of a search engine finding them."""


def is_simulated(passage: Passage) -> bool:
    """Returns whether a passage was written by a language model instead of found by a search engine."""
    return passage.id.startswith(SIMULATED)


def simulated_share(searches: Sequence[Searched]) -> float:
    """Returns the fraction of hits whose passages a language model wrote; 0 without hits."""
    passages = [hit.passage for searched in searches for hit in searched.hits]
    return sum(map(is_simulated, passages)) / max(len(passages), 1)


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved passage with its score."""

    passage: Passage
    score: float
    """Relevance on the retriever's scale, larger is better; always > 0 for BM25."""


# -- questions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SupportingFact:
    """One supporting sentence: the page's title and the 0-based sentence number (None if only the page is known)."""

    title: str
    sentence: int | None = None


@dataclass(frozen=True, slots=True)
class Triple:
    """One evidence triple (2WikiMultihopQA): subject, relation, object."""

    subject: str
    relation: str
    object: str


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a gold decomposition (MuSiQue); ``#1`` in the question refers to the first step's answer."""

    question: str
    answer: str
    paragraph: int | None = None
    """Index of the supporting paragraph in `Question.paragraphs`."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One page of the context that comes with a question (the distractor setting)."""

    title: str
    sentences: tuple[str, ...]
    """Sentences in order with their spaces: the paragraph's text is their plain concatenation."""
    supporting: bool = False
    """Whether the data marks the paragraph as gold evidence."""

    @property
    def text(self) -> str:
        """Full text of the paragraph."""
        return "".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold answers and, where the data gives it, gold evidence (None, never empty, if not)."""

    id: str
    text: str
    answers: tuple[str, ...]
    """Gold answers, at least one; scorers that compare with a single gold answer use the first."""
    aliases: tuple[str, ...] = ()
    """Further accepted spellings of the answer, used by alias-aware scorers only."""
    kind: str | None = None
    """Question type as the data set calls it: ``"bridge"``, ``"comparison"``, ..."""
    level: str | None = None
    """Difficulty as the data set calls it, such as ``"hard"``."""
    supporting_facts: tuple[SupportingFact, ...] | None = None
    """Gold sentences that support the answer."""
    evidences: tuple[Triple, ...] | None = None
    """Gold evidence triples (2WikiMultihopQA)."""
    evidence_ids: tuple[Triple, ...] | None = None
    """Entity ids of the triples in `evidences` (2WikiMultihopQA's ids release)."""
    answer_id: str | None = None
    """Entity id of the answer (2WikiMultihopQA's ids release)."""
    hops: tuple[Hop, ...] | None = None
    """Gold decomposition into single-hop questions (MuSiQue)."""
    paragraphs: tuple[Paragraph, ...] | None = None
    """Pages that the data set gives with the question, in its order (the distractor setting)."""
    answerable: bool | None = None
    """Whether the question has an answer: False for MuSiQue's unanswerable twins, None where the data does not say."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Remaining columns of the source row, passed through unchanged."""

    def __post_init__(self) -> None:
        """Checks the answers and aliases now, since a wrong one would otherwise fail only at scoring.

        Raises:
            UsageError: `answers` or `aliases` is not a tuple of strings, one of them is blank, or there is no answer.
        """
        for name, texts in (("answers", self.answers), ("aliases", self.aliases)):
            if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
                raise UsageError(f"question {self.id!r}: {name} must be a tuple of strings, got {texts!r:.80}")
            if not all(map(str.strip, texts)):
                raise UsageError(f"question {self.id!r}: a text of {name} is blank: {texts!r:.80}")
        if not self.answers:
            raise UsageError(f"question {self.id!r} has no gold answer")

    @property
    def golds(self) -> tuple[str, ...]:
        """All accepted answers: answers, then aliases, without duplicates."""
        return tuple(dict.fromkeys(self.answers + self.aliases))

    @property
    def gold_titles(self) -> tuple[str, ...] | None:
        """Titles of the gold pages in order of first mention, without duplicates; None if the data names none."""
        if self.supporting_facts is not None:
            return tuple({title_key(fact.title): fact.title for fact in self.supporting_facts}.values())
        if self.paragraphs is not None and any(p.supporting for p in self.paragraphs):
            return tuple({title_key(p.title): p.title for p in self.paragraphs if p.supporting}.values())
        return None


def hops_of(question: Question) -> str | None:
    """Returns the number of hops of a question as text, such as ``"2"``; None if the data set does not give it."""
    hops = question.metadata.get("hops", None if question.hops is None else len(question.hops))
    return str(hops) if isinstance(hops, int) else None


# -- actions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Search:
    """Action that searches: usually one query, several where the environment allows it.

    Raises:
        UsageError: `queries` is not a tuple of at least one string: ``Search(("query",))``.
    """

    queries: tuple[str, ...]
    """Queries for the retriever, at least one."""
    source: str = ""
    """Name of the additional retriever to query; empty for the environment's main retriever."""

    def __post_init__(self) -> None:
        queries = self.queries
        if not isinstance(queries, tuple) or not queries or not all(isinstance(query, str) for query in queries):
            raise UsageError(f'a search is Search(("query",)), got {queries!r:.80}')


@dataclass(frozen=True, slots=True)
class Answer:
    """Action that gives the final answer; fields that the agent did not produce are None.

    Raises:
        UsageError: `text` is not a string.
    """

    text: str
    """Answer to the question."""
    supporting_facts: tuple[SupportingFact, ...] | None = None
    """Predicted supporting sentences (HotpotQA, 2WikiMultihopQA)."""
    evidences: tuple[Triple, ...] | None = None
    """Predicted evidence triples (2WikiMultihopQA)."""
    paragraphs: tuple[int, ...] | None = None
    """Predicted indices of supporting paragraphs (MuSiQue)."""
    answerable: bool | None = None
    """Prediction of whether the question can be answered (MuSiQue)."""
    confidence: float | None = None
    """Probability that the answer is right, in [0, 1], as the agent states it."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise UsageError(f"an answer is text, got {type(self.text).__name__} {self.text!r:.80}")


@dataclass(frozen=True, slots=True)
class Open:
    """Action that opens a page of the corpus, where the environment allows it."""

    target: str
    """Title of the page, or the id of one of its passages."""


@dataclass(frozen=True, slots=True)
class More:
    """Action that shows the next part of the page opened last."""


@dataclass(frozen=True, slots=True)
class Find:
    """Action that finds a plain text in the page opened last, where the environment allows it."""

    text: str
    """Text to find; upper and lower case and white space do not matter."""


@dataclass(frozen=True, slots=True)
class Cite:
    """Action that cites a page as evidence, by a quote of it, where the environment allows it."""

    target: str
    """Title of the page, or the id of one of its passages."""
    quote: str
    """Words of the page, verbatim."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """Text that could not be parsed as an action; it costs a turn, and the environment replies with a notice."""

    reason: str
    """Reason why the text could not be parsed; the notice quotes it."""


Action = Search | Answer | Open | More | Find | Cite | Invalid


# -- episodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Searched:
    """One query of an episode and the hits it returned."""

    turn: int
    """1-based turn in which the query was made."""
    query: str
    hits: tuple[Hit, ...]
    source: str = ""
    """Name of the additional retriever that was queried; empty for the environment's main retriever."""
    fault: str = ""
    """Kind of the fault that changed or replaced the results, see `searchgym.envs.faults`; empty if none did."""


@dataclass(frozen=True, slots=True)
class Opened:
    """One request to read a page: its first part, its next part, or the words around a text in it."""

    turn: int
    """1-based turn of the request."""
    target: str
    """Title or id that the agent gave; empty for the next part of the same page."""
    title: str = ""
    """Title of the page that was shown."""
    place: int | None = None
    """Position in the corpus of the page's first passage; None if no page was shown."""
    part: int = 0
    """1-based number of the part that was shown; 0 if none was."""
    parts: int = 0
    """Number of parts of the page."""
    markers: int = 0
    """Number of action, thought and turn markers within the shown text, where they count as plain text."""
    text: str = ""
    """Text to find in the page; empty for other requests. `part` is then the part in which it occurs first."""
    matches: int = 0
    """Number of times that the text occurs in the page."""


@dataclass(frozen=True, slots=True)
class Cited:
    """One citation of a page, or a failed attempt at one."""

    turn: int
    """1-based turn of the citation."""
    target: str
    """Title or id that the agent gave."""
    quote: str
    """Quote that the agent gave."""
    title: str = ""
    """Title of the cited page; empty if the citation is not valid."""
    fault: str = ""
    """Reason why the citation is not valid; empty if it is."""


@dataclass(slots=True, eq=False)
class Span:
    """Consecutive tokens with one author: prompt, model or observation."""

    kind: SpanKind
    ids: npt.NDArray[np.int32]
    """(T,) int32 token ids, exactly as sampled or encoded once; never re-tokenised."""
    logp: npt.NDArray[np.float32] | None = None
    """(T,) float32 natural-log probabilities of the sampled tokens, temperature included; None outside model spans."""

    def __eq__(self, other: object) -> bool:
        """Compares kind, ids and log-probabilities, bit for bit."""
        if not isinstance(other, Span):
            return NotImplemented
        if (self.logp is None) != (other.logp is None):
            return False
        same_logp = self.logp is None or other.logp is None or self.logp.tobytes() == other.logp.tobytes()
        return self.kind == other.kind and np.array_equal(self.ids, other.ids) and same_logp


@dataclass(slots=True)
class Context:
    """One node of an episode's token tree: the parent's first `fork` tokens, then the spans a model saw and wrote."""

    parent: int | None
    """Index of the parent in `Episode.contexts`; None for a root."""
    fork: int
    """Number of tokens inherited from the parent, including those it inherited itself; 0 for a root."""
    spans: list[Span] = field(default_factory=list)
    """Spans of this context in order, without the inherited ones."""


@dataclass(slots=True)
class Call:
    """One response of a model: tokens ``start:end`` of a context, counted from the root of its tree."""

    context: int
    """Index in `Episode.contexts`."""
    start: int
    """Position of the response's first token."""
    end: int
    """Position after the response's last token."""
    role: str
    """Role of the agent that the model filled."""
    model_key: str
    """Key of the model that sampled the response."""
    turn: int
    """1-based turn of the episode."""
    legal: bool = True
    """Whether the role's parser accepted the output; False if a fallback was used."""
    text: str = ""
    """Decoded response, for people to read; training uses the token ids. It begins with the opening marker of a thought
    that the prompt left open."""
    policy_version: int = 0
    """Version of the weights that sampled the response, counted in optimizer steps; of several versions, the oldest."""
    cut: bool = False
    """True if the role's token limit ended the response."""
    thought_cut: bool = False
    """True if `Role.max_thought_tokens` ended the response in a thought. The closing marker, with which `text` ends, is
    an observation in the context, and the next call continues the same turn."""
    requests: int = 1
    """Number of requests to the sampler that the response took: more than 1 if a stop string occurred inside a thought
    or an incomplete call, or if `Role.max_thought_tokens` was passed outside a thought."""
    answer: str | None = None
    """Answer to the question that the response proposes, as the workflow parsed it; None if it proposes none."""
    prefix: bool = False
    """True if the response is a trial answer that training requested mid-episode; the episode continued without it."""
    ranked: tuple[int, ...] | None = None
    """0-based indices into the previous turn's hits that the response selected, in its order of preference; None if the
    response is not a ranking."""


@dataclass(slots=True)
class Episode:
    """Record of one attempt at a question: tokens, model calls, searches, answer and reward."""

    id: str
    """Episode id, unique in a run: ``"<question id>#<attempt>"``, followed in training by ``"@<step>"``, 0-based."""
    question_id: str
    agent: str
    """Name of the agent."""
    env: str
    """Id of the environment."""
    attempt: int = 0
    """0-based number of this attempt among those at the same question."""
    group_uid: str | None = None
    """Key shared by the episodes whose rewards are compared with each other; None outside training."""
    seed: int | None = None
    """Seed of the engine (of the run; in training one per step); with the question id and the attempt it seeds the
    episode's generator and samples."""
    contexts: list[Context] = field(default_factory=list)
    """Token tree: every context that a model saw."""
    calls: list[Call] = field(default_factory=list)
    searches: list[Searched] = field(default_factory=list)
    opens: list[Opened] = field(default_factory=list)
    cites: list[Cited] = field(default_factory=list)
    turns: int = 0
    """Number of actions taken, including invalid ones."""
    invalid: int = 0
    """Number of actions that could not be parsed."""
    observation_words: int = 0
    """Number of whitespace-separated words in all observations after the question."""
    answer: Answer | None = None
    stop_reason: StopReason | None = None
    """Why the episode ended; None while it runs, or if its workflow left it unfinished."""
    reward: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    """Scores by name: ``em`` and ``f1`` in [0, 1], any others of the environment, and ``simulated``, the share of hits
    that a language model wrote, if it wrote any."""
    error: str | None = None
    """Reason why the episode had to stop early (retriever error, full context, spent calls); None otherwise."""
    notes: dict[str, float] = field(default_factory=dict)
    """Numbers that the workflow recorded, by name."""
    replayed: int = 0
    """Number of first calls that repeat those of another episode, so that nothing was generated for them."""
    replays: str | None = None
    """Id of the episode whose first calls were repeated."""

    def generated_tokens(self) -> int:
        """Returns the number of tokens that models generated for the episode.

        Repeated calls are not among them; calls that a revision dropped are (note ``discarded_tokens``).
        """
        tokens = sum(call.end - call.start for call in self.calls[self.replayed :])
        return tokens + int(self.notes.get("discarded_tokens", 0))

    def append(self, calls: Sequence[Call], contexts: Sequence[Context]) -> None:
        """Appends calls that were made after the last turn, with their contexts."""
        first = len(self.contexts)
        for context in contexts:
            context.parent = None if context.parent is None else context.parent + first
        for call in calls:
            call.context, call.turn = call.context + first, self.turns + 1
        self.contexts += contexts
        self.calls += calls

    def tokens(self, context: int) -> list[Span]:
        """Returns all spans of a context from its root on: inherited ones first, cut at the forks."""
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

"""Generates question sets from a corpus: reads facts, splits pages, draws, words, filters."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import read_json, write_atomic
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.errors import DataError, UnknownNameError, UsageError
from searchgym.questions.cloze import draw_cloze
from searchgym.questions.draw import MOST_CHAINS, Draft, draw
from searchgym.questions.filters import CLOZE, Balance, Searched, Searches, Wording
from searchgym.questions.graphs.facts import Facts, find_facts
from searchgym.questions.graphs.graph import MONTHS
from searchgym.questions.graphs.packs import Pack
from searchgym.questions.in_place import SENTENCE, draw_sentences
from searchgym.questions.source import SPLITS, HeldOut, Source, split_pages
from searchgym.questions.subset import by_hash
from searchgym.records import Passage, Question, SupportingFact, Triple
from searchgym.retrieval.cards import Progress, quiet
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.retriever import Retriever
from searchgym.text import base_title

VERSION: Final = 2
"""Version of the rules; another one gives other questions."""
MIX: Final[Mapping[tuple[str, int], float]] = {
    ("chain", 4): 0.05,
    ("chain", 3): 0.05,
    ("chain", 2): 0.35,
    (SENTENCE, 2): 0.2,
    ("cloze-chain", 2): 0.1,
    ("bridge-comparison", 4): 0.1,
    ("comparison", 2): 0.1,
    ("intersection", 1): 0.05,
    ("cloze", 1): 0.05,
    (SENTENCE, 1): 0.3,
    ("chain", 1): 0.15,
}
"""Shares of the questions by shape and hops. What a shape lacks is made up for by the shapes behind it: a corpus
without facts is asked by cloze, and single facts do not take the place of questions that need several pages."""
SHAPES: Final = tuple(dict.fromkeys(shape for shape, _ in MIX))
USUAL: Final = tuple(shape for shape in SHAPES if shape != SENTENCE)
"""Shapes that are drawn where none is named."""
_BATCH: Final = 256
"""Number of drafts that are searched for at once."""
_PATIENCE: Final = 40
"""Batches in a row without a question after which a stratum is given up."""
RANKS: Final = (3, 5, 20)
"""Numbers of hits for which it is counted whether they hold all gold pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to generate."""

    n: int = 1000
    """Number of questions over all splits; fewer if the corpus has no more."""
    seed: int = 0
    top_k: int = 3
    """Number of hits per search in the environment that will ask the questions."""
    shapes: tuple[str, ...] = USUAL
    """Shapes to draw."""
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of pages and questions for train, validation and test."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UnknownNameError: A shape does not exist.
            UsageError: A number is out of range.
        """
        for shape in self.shapes:
            if shape not in SHAPES:
                raise UnknownNameError("shape of questions", shape, SHAPES)
        if self.n < 1 or self.top_k < 1 or not self.shapes:
            raise UsageError(f"a question set needs n, top_k and shapes of at least 1, got n={self.n}, {self.top_k=}")
        if len(self.shares) != 3 or min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise UsageError(f"shares are three numbers that add up to 1, got {self.shares}")

    @property
    def wanted(self) -> tuple[str, ...]:
        """Splits of which at least one question is wanted."""
        return tuple(split for split, share in zip(SPLITS, self.shares, strict=True) if round(self.n * share))


@dataclass
class Stratum:
    """The questions of one split, shape and number of hops, with the counts of its filters."""

    split: str
    shape: str
    hops: int
    wanted: int
    drawn: int = 0
    """Number of drafts."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Number of drafts by the rule that refused them."""
    searched: int = 0
    """Number of drafts that reached the filters that search."""
    raw: dict[str, int] = field(default_factory=dict)
    """Of these, how many have all gold pages within k hits of their own text, by k."""
    asked: dict[str, int] = field(default_factory=dict)
    """Of these, how many have each gold page within k hits of its name, by k."""
    questions: list[Question] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions generated from a corpus."""

    strata: tuple[Stratum, ...]
    pages: Mapping[str, int]
    """Number of pages of each split."""
    held_out: int
    """Number of pages that were left out."""
    triples: tuple[Triple, ...]
    """All facts of the corpus, in the names that questions use."""
    links: int
    linked: int
    """Number of facts whose object has a page."""
    refused: Mapping[str, Mapping[str, int]]
    """What the rules of links and facts refused."""
    cut: int = 0
    """Number of pairs of linked pages that are in two splits."""
    crossing: int = 0
    """Number of drafts along links that are in no split because they cross from one to another."""

    def split(self, name: str) -> list[Question]:
        """Returns the questions of a split, by hash: stratum by stratum, the first ones would all be of one shape."""
        return by_hash(q for stratum in self.strata if stratum.split == name for q in stratum.questions)


def generate(
    passages: Sequence[Passage],
    pack: Pack,
    plan: Plan,
    held_out: HeldOut | None = None,
    work: Path | None = None,
    progress: Progress = quiet,
    retriever: Retriever | None = None,
) -> QuestionSet:
    """Generates questions from a corpus; the same corpus, pack and plan give the same questions.

    Args:
        passages: The corpus.
        pack: Patterns and wordings.
        plan: What to generate.
        held_out: Pages and names to leave out; they are searched and may refute a question, but are in none.
        work: Folder in which finished strata are kept, so that a run that was stopped goes on; None: nowhere.
        progress: Called with progress reports.
        retriever: Retriever over the corpus. Default: BM25 in memory.

    Raises:
        DataError: The corpus gives no question; the message says what the rules and filters took.
    """
    facts = find_facts(passages, pack, lambda done, whole: progress("reading facts", done, whole))
    out = HeldOut() if held_out is None else held_out
    splits = pages_of_splits(len(passages), facts, plan, out)
    retriever = build_in_memory(passages) if retriever is None else retriever
    whole, strata = Source(passages, facts, pack), []
    sources = {split: whole.within(splits[split], out.names) for split in SPLITS}
    cut = _cut(_edges(facts, plan, out), splits)
    for split, share in zip(SPLITS, plan.shares, strict=True):
        source = sources[split]
        maker = _Maker(source, Searches(source, retriever, plan.top_k), plan, split)
        lacking = 0
        for (shape, hops), part in _mix(plan).items():
            stratum = Stratum(split, shape, hops, round(plan.n * share * part) + lacking)
            strata.append(_resumed(work, stratum) or maker.make(stratum, progress))
            _keep(work, strata[-1])
            lacking = stratum.wanted - len(strata[-1].questions)
    made = QuestionSet(
        tuple(strata),
        {name: len(pages) for name, pages in splits.items()},
        len(out.pages),
        tuple(whole.triple(fact) for fact in facts.found),
        len(facts.links),
        len([fact for fact in facts.found if fact.target is not None]),
        {"links": facts.refused_links, "facts": facts.refused},
        cut,
        _crossing(whole.within(frozenset().union(*splits.values()), out.names), sources.values(), plan) if cut else 0,
    )
    if not any(stratum.questions for stratum in strata):
        more = "give more passages, in which the titles of others occur (in English, or with a pack of their language)"
        raise DataError(f"gives no questions: {why(made, len(passages))}: {more}")
    return made


def pages_of_splits(count: int, facts: Facts, plan: Plan, out: HeldOut) -> dict[str, frozenset[int]]:
    """Returns the pages of each split, without those that are held out.

    Args:
        count: Number of passages.
        facts: Their facts and links.
        plan: Shares of the splits, and the shapes, which say what keeps two pages together.
        out: What is held out.
    """
    splits = split_pages(count, _edges(facts, plan, out), plan.shares)
    return {name: pages - out.pages for name, pages in splits.items()}


def _edges(facts: Facts, plan: Plan, out: HeldOut) -> list[tuple[int, int]]:
    """Returns the pairs of pages that a question may need together."""
    edges = [(fact.subject, fact.target) for fact in facts.found if fact.target is not None]
    if any(shape in CLOZE for shape in plan.shapes):
        edges += [(link.source, link.target) for link in facts.links]
    return [edge for edge in edges if not out.pages & set(edge)]


def _cut(edges: Iterable[tuple[int, int]], splits: Mapping[str, frozenset[int]]) -> int:
    """Returns the number of pairs of pages that are in two splits."""
    of = {page: split for split, pages in splits.items() for page in pages}
    return len({frozenset(edge) for edge in edges if of[edge[0]] != of[edge[1]]})


def _crossing(whole: Source, parts: Iterable[Source], plan: Plan) -> int:
    """Returns how many more drafts along links all pages give together than the pages of each split."""
    along = [key for key in MIX if key[0] in plan.shapes and key[0] in ("chain", SENTENCE, *CLOZE)]

    def count(source: Source) -> int:
        streams = (drafts_of(source, shape, hops, random.Random(0)) for shape, hops in along)
        return sum(1 for stream in streams for _ in itertools.islice(stream, MOST_CHAINS))

    return count(whole) - sum(map(count, parts))


def drafts_of(source: Source, shape: str, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields drafts of a shape and a number of hops."""
    drawn = {SENTENCE: draw_sentences} | dict.fromkeys(CLOZE, draw_cloze)
    return drawn[shape](source, hops, rng) if shape in drawn else draw(source, shape, hops, rng)


def _mix(plan: Plan) -> dict[tuple[str, int], float]:
    """Returns the shares of the shapes that are asked for."""
    chosen = {key: share for key, share in MIX.items() if key[0] in plan.shapes}
    return {key: share / sum(chosen.values()) for key, share in chosen.items()}


def why(made: QuestionSet, passages: int) -> str:
    """Returns what the rules and filters took of a corpus that gives too few questions."""
    filters: Counter[str] = Counter()
    for stratum in made.strata:
        filters.update(stratum.rejected)
    took = [
        f"{name}: " + (", ".join(f"{rule} {count}" for rule, count in Counter(counts).most_common(4)) or "none")
        for name, counts in (("links refused", made.refused["links"]), ("drafts refused", filters))
    ]
    found = f"{passages} passages, {made.links} links and {len(made.triples)} facts"
    return f"{found}; {'; '.join(took)}"


# -- one stratum ---------------------------------------------------------------------------------------------------


class _Maker:
    """Makes the questions of a split."""

    def __init__(self, source: Source, searches: Searches, plan: Plan, split: str) -> None:
        self._source, self._searches, self._plan, self._split = source, searches, plan, split
        self._wording = Wording(source)

    def make(self, stratum: Stratum, progress: Progress) -> Stratum:
        """Fills a stratum with questions and counts."""
        rng = random.Random(f"{VERSION} {self._plan.seed} {self._split} {stratum.shape} {stratum.hops}")
        balance, rejected, idle = Balance(stratum.wanted), Counter[str](), 0
        drafts = self._worded(stratum, rejected, rng)
        while len(stratum.questions) < stratum.wanted and idle < _PATIENCE:
            batch = list(itertools.islice(drafts, _BATCH))
            if not batch:
                break
            before = len(stratum.questions)
            for searched in self._searches.search(batch):
                if len(stratum.questions) >= stratum.wanted:
                    break
                _count(stratum, searched)
                reason = self._searches.refusal(searched) or balance.refusal(searched.draft)
                if reason is None:
                    number = len(stratum.questions)
                    stratum.questions.append(question_of(self._source, searched, self._split, number))
                else:
                    rejected[reason] += 1
            idle = 0 if len(stratum.questions) > before else idle + 1
            progress(f"{stratum.split}: {stratum.shape}, {stratum.hops} hops", len(stratum.questions), stratum.wanted)
        stratum.rejected = dict(rejected.most_common())
        return stratum

    def _worded(self, stratum: Stratum, rejected: Counter[str], rng: random.Random) -> Iterator[Draft]:
        """Yields the drafts that pass the filters of wording, none with a text that another one has."""
        shape, hops, seen = stratum.shape, stratum.hops, set[str]()
        for draft in drafts_of(self._source, shape, hops, rng):
            stratum.drawn += 1
            reason = self._wording.refusal(draft) or ("the same text" if draft.text in seen else None)
            if reason is None:
                seen.add(draft.text)
                yield draft
            else:
                rejected[reason] += 1


def _count(stratum: Stratum, searched: Searched) -> None:
    """Counts what searches find of a draft."""
    stratum.searched += 1
    for k in RANKS:
        stratum.raw[str(k)] = stratum.raw.get(str(k), 0) + searched.all_within(k)
        stratum.asked[str(k)] = stratum.asked.get(str(k), 0) + searched.all_within(k, asked=True)


def question_of(source: Source, searched: Searched, split: str, number: int) -> Question:
    """Returns the question of a draft that all filters let pass."""
    draft = searched.draft
    titles = [source.passages[page].title for page in draft.pages]
    stated = {fact.subject: fact for fact in draft.facts}
    supporting = tuple(
        SupportingFact(title, source.sentence(stated[page]) if page in stated else None)
        for title, page in zip(titles, draft.pages, strict=True)
    )
    metadata: dict[str, Any] = {
        "hops": draft.hops,
        "split": split,
        "relations": list(draft.relations),
        "waypoints": list(draft.waypoints),
        "queries": [source.name(page) for page in draft.pages],
        "ranks": list(searched.raw),
    }
    if draft.form is not None:
        metadata["form"] = draft.form
    return Question(
        f"{split}-{draft.shape}-{draft.hops}-{number:05d}",
        draft.text,
        (draft.answer,),
        _aliases(source, draft),
        draft.shape,
        supporting_facts=supporting,
        evidences=tuple(source.triple(fact) for fact in draft.facts) or None,
        hops=draft.steps or None,
        metadata=metadata,
    )


def _aliases(source: Source, draft: Draft) -> tuple[str, ...]:
    """Returns other spellings of an answer: a page's full title, the text that names it, the other order of a date."""
    names: list[str] = []
    if draft.facts and not draft.named and draft.shape == "chain":
        end = draft.facts[-1]
        names += [end.text] + ([source.passages[end.target].title] if end.target is not None else [])
    elif draft.shape in CLOZE:
        names += draft.names
    elif draft.shape == "intersection" or (draft.named and draft.answer not in ("yes", "no")):
        titles = [source.passages[page].title for page in draft.pages]
        names += [title for title in titles if draft.answer in (title, base_title(title))]
    words = draft.answer.replace(",", "").split()
    if len(words) == 3 and words[0] in MONTHS:
        names.append(f"{words[1]} {words[0]} {words[2]}")
    elif len(words) == 3 and words[1] in MONTHS:
        names.append(f"{words[1]} {words[0]}, {words[2]}")
    return tuple(name for name in dict.fromkeys(names) if name != draft.answer)


# -- going on after a stop -----------------------------------------------------------------------------------------


def _keep(work: Path | None, stratum: Stratum) -> None:
    """Writes a finished stratum to the work folder, its counts last: they tell that it is complete."""
    if work is not None:
        counts = dataclasses.asdict(dataclasses.replace(stratum, questions=[]))
        if stratum.questions:
            write_questions(_file(work, stratum, "jsonl"), stratum.questions)
        with write_atomic(_file(work, stratum, "json")) as file:
            file.write(json.dumps(counts).encode())


def _resumed(work: Path | None, stratum: Stratum) -> Stratum | None:
    """Returns a stratum that an earlier run finished, None if there is none."""
    if work is None or not _file(work, stratum, "json").is_file():
        return None
    kept = Stratum(**read_json(_file(work, stratum, "json")))
    questions = _file(work, stratum, "jsonl")
    return dataclasses.replace(kept, questions=read_questions(questions) if questions.is_file() else [])


def _file(work: Path, stratum: Stratum, ending: str) -> Path:
    return work / f"{stratum.split}-{stratum.shape}-{stratum.hops}.{ending}"

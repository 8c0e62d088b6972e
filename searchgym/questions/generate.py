"""Generates question sets from a corpus: reads facts, splits pages, and draws, words and filters questions."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import read_json, write_atomic
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.errors import DataError
from searchgym.questions.filters import RANKS, Balance, SearchedDraft, Searches, Wording, queries_of
from searchgym.questions.graphs.facts import Facts, find_facts
from searchgym.questions.graphs.graph import MONTHS
from searchgym.questions.graphs.packs import Pack
from searchgym.questions.sentences import draw_cloze, draw_sentences
from searchgym.questions.shapes.chains import MOST_CHAINS
from searchgym.questions.shapes.draft import Draft
from searchgym.questions.shapes.draw import draw
from searchgym.questions.source import FactBase, HeldOut, linked_pages, pages_of_splits
from searchgym.questions.spec import CLOZE, SENTENCE, SPLITS, VEILED, GeneratedSpec
from searchgym.questions.subset import by_hash
from searchgym.records import Passage, Question, SupportingFact, Triple
from searchgym.retrieval.cards import Progress, quiet
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.retriever import Retriever
from searchgym.text import base_title

VERSION: Final = 2
"""Version of the rules, incremented whenever they generate different questions."""
_BATCH: Final = 256
"""Number of drafts searched in one batch."""
_PATIENCE: Final = 40
"""Consecutive batches without an accepted question after which a stratum is abandoned."""


@dataclass
class Stratum:
    """Questions of one split, shape and number of hops, with the counts of the filters."""

    split: str
    shape: str
    hops: int
    wanted: int
    """Target number of questions."""
    drawn: int = 0
    """Number of drafts."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Number of rejected drafts, by rule."""
    searched: int = 0
    """Number of drafts that reached the search-based filters."""
    raw: dict[str, int] = field(default_factory=dict)
    """Number of searched drafts with all gold pages in the first k hits for the question's text, by k."""
    asked: dict[str, int] = field(default_factory=dict)
    """Number of searched drafts with each gold page in the first k hits for the page's name, by k."""
    questions: list[Question] = field(default_factory=list)

    def count(self, searched: SearchedDraft) -> None:
        """Adds the search results of one draft to the counts."""
        self.searched += 1
        for k in RANKS:
            self.raw[str(k)] = self.raw.get(str(k), 0) + searched.all_within(k)
            self.asked[str(k)] = self.asked.get(str(k), 0) + searched.all_within(k, by_name=True)


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions generated from a corpus."""

    strata: tuple[Stratum, ...]
    pages: Mapping[str, int]
    """Number of pages of each split."""
    held_out: int
    """Number of excluded pages."""
    facts: Facts
    """Facts and links of the corpus, with the number that each rule refused."""
    triples: tuple[Triple, ...]
    """All facts of the corpus, with the names that questions use."""
    cut: int = 0
    """Number of pairs of linked pages in different splits."""
    crossing: int = 0
    """Number of drafts along links that are in no split because their pages are in different splits."""

    def split(self, name: str) -> list[Question]:
        """Returns the questions of a split, ordered by hash so that the shapes are mixed."""
        return by_hash(q for stratum in self.strata if stratum.split == name for q in stratum.questions)


def generate(
    passages: Sequence[Passage],
    pack: Pack,
    spec: GeneratedSpec,
    held_out: HeldOut | None = None,
    work: Path | None = None,
    progress: Progress = quiet,
    retriever: Retriever | None = None,
    top_k: int = 3,
) -> QuestionSet:
    """Generates questions from a corpus; the same corpus, pack and parameters give the same questions.

    Args:
        passages: The corpus.
        pack: Patterns and wordings.
        spec: Parameters of the questions; `pack` must be the pack that it names.
        held_out: Pages and names to leave out. They can be searched and can rule out a question, but no question uses
            them.
        work: Folder for finished strata, from which an interrupted run resumes; None: they are not saved.
        progress: Called with progress reports.
        retriever: Retriever over the corpus. Default: BM25 in memory.
        top_k: Number of hits per search in the environment that will ask the questions.

    Raises:
        DataError: The corpus gives no question; the message has the rejections by rule and filter.
    """
    facts = find_facts(passages, pack, lambda done, whole: progress("reading facts", done, whole))
    out = HeldOut() if held_out is None else held_out
    splits = pages_of_splits(len(passages), facts, spec, out)
    retriever = build_in_memory(passages) if retriever is None else retriever
    whole, strata = FactBase(passages, facts, pack), []
    sources = {split: whole.within(splits[split], out.names) for split in SPLITS}
    for split, share in zip(SPLITS, spec.shares, strict=True):
        maker = _Maker(sources[split], Searches(sources[split], retriever, top_k), spec.seed, progress)
        lacking = 0
        for (shape, hops), part in spec.mix.items():
            stratum = Stratum(split, shape, hops, round(spec.n * share * part) + lacking)
            strata.append(_kept(work, stratum, maker.fill))
            lacking = stratum.wanted - len(strata[-1].questions)
    of_page = {page: split for split, pages in splits.items() for page in pages}
    cut = {frozenset(edge) for edge in linked_pages(facts, spec, out) if of_page[edge[0]] != of_page[edge[1]]}
    result = QuestionSet(
        tuple(strata),
        {name: len(pages) for name, pages in splits.items()},
        len(out.pages),
        facts,
        tuple(whole.triple(fact) for fact in facts.facts),
        len(cut),
        _crossing(whole.within(frozenset().union(*splits.values()), out.names), sources.values(), spec) if cut else 0,
    )
    if not any(stratum.questions for stratum in strata):
        more = "give more passages, in which the titles of others occur (in English, or with a pack of their language)"
        raise DataError(f"gives no questions: {why(result, len(passages))}: {more}")
    return result


def _crossing(whole: FactBase, parts: Iterable[FactBase], spec: GeneratedSpec) -> int:
    """Returns the number of drafts along links that are lost because their pages are in different splits."""
    along = [key for key in spec.mix if key[0] in ("chain", VEILED, SENTENCE, *CLOZE)]

    def count(source: FactBase) -> int:
        streams = (drafts_of(source, shape, hops, random.Random(0)) for shape, hops in along)
        return sum(1 for stream in streams for _ in itertools.islice(stream, MOST_CHAINS))

    return count(whole) - sum(map(count, parts))


def drafts_of(source: FactBase, shape: str, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields drafts of questions with the requested shape and number of hops."""
    if shape == SENTENCE:
        return draw_sentences(source, hops, rng)
    return draw_cloze(source, hops, rng) if shape in CLOZE else draw(source, shape, hops, rng)


def why(result: QuestionSet, passages: int) -> str:
    """Returns an explanation of why a corpus gives too few questions: counts of links, facts and rejections."""
    filters: Counter[str] = Counter()
    for stratum in result.strata:
        filters.update(stratum.rejected)
    took = [
        f"{name}: " + (", ".join(f"{rule} {count}" for rule, count in Counter(counts).most_common(4)) or "none")
        for name, counts in (("links refused", result.facts.refused_links), ("drafts refused", filters))
    ]
    corpus = f"{passages} passages, {len(result.facts.links)} links and {len(result.triples)} facts"
    return f"{corpus}; {'; '.join(took)}"


def _kept(work: Path | None, stratum: Stratum, fill: Callable[[Stratum], Stratum]) -> Stratum:
    """Returns a filled stratum, read from the work folder if an earlier run saved it there, else filled and saved."""
    if work is None:
        return fill(stratum)
    name = f"{stratum.split}-{stratum.shape}-{stratum.hops}"
    counts, questions = work / f"{name}.json", work / f"{name}.jsonl"
    if counts.is_file():
        saved = Stratum(**read_json(counts))
        return dataclasses.replace(saved, questions=read_questions(questions) if questions.is_file() else [])
    fill(stratum)
    if stratum.questions:
        write_questions(questions, stratum.questions)
    with write_atomic(counts) as file:  # last: this file marks the stratum as complete
        file.write(json.dumps(dataclasses.asdict(dataclasses.replace(stratum, questions=[]))).encode())
    return stratum


class _Maker:
    """Makes the questions of a split."""

    def __init__(self, source: FactBase, searches: Searches, seed: int, progress: Progress) -> None:
        self._source, self._searches, self._seed, self._progress = source, searches, seed, progress
        self._wording = Wording(source)

    def fill(self, stratum: Stratum) -> Stratum:
        """Fills a stratum with questions and counts, and returns it."""
        rng = random.Random(f"{VERSION} {self._seed} {stratum.split} {stratum.shape} {stratum.hops}")
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
                stratum.count(searched)
                reason = self._searches.refusal(searched) or balance.refusal(searched.draft)
                if reason is None:
                    number = len(stratum.questions)
                    stratum.questions.append(question_of(self._source, searched, stratum.split, number))
                else:
                    rejected[reason] += 1
            idle = 0 if len(stratum.questions) > before else idle + 1
            name = f"{stratum.split}: {stratum.shape}, {stratum.hops} hops"
            self._progress(name, len(stratum.questions), stratum.wanted)
        stratum.rejected = dict(rejected.most_common())
        return stratum

    def _worded(self, stratum: Stratum, rejected: Counter[str], rng: random.Random) -> Iterator[Draft]:
        """Yields the drafts that pass the wording filters, without repeated texts."""
        seen = set[str]()
        for draft in drafts_of(self._source, stratum.shape, stratum.hops, rng):
            stratum.drawn += 1
            reason = self._wording.refusal(draft) or ("the same text" if draft.text in seen else None)
            if reason is None:
                seen.add(draft.text)
                yield draft
            else:
                rejected[reason] += 1


def question_of(source: FactBase, searched: SearchedDraft, split: str, number: int) -> Question:
    """Returns the question of a draft that passed all filters."""
    draft = searched.draft
    stated = {fact.subject: source.sentence(fact) for fact in draft.facts}
    supporting = tuple(SupportingFact(source.passages[page].title, stated.get(page)) for page in draft.pages)
    metadata: dict[str, Any] = {
        "hops": draft.hops,
        "split": split,
        "relations": list(draft.relations),
        "waypoints": list(draft.waypoints),
        "queries": queries_of(source, draft),
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


def _aliases(source: FactBase, draft: Draft) -> tuple[str, ...]:
    """Returns other spellings of an answer: a page's full title, the name used in the text, the other date order."""
    names: list[str] = []
    if draft.facts and not draft.named and draft.shape in ("chain", VEILED):
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

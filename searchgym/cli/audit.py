"""The ``corpus audit`` command: compares the gold pages of questions with a corpus."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from searchgym.cli.data import Overwrite, SkipBad, refuse_existing, report
from searchgym.cli.output import Json, emit, emit_rows, say, say_next, stages
from searchgym.errors import BadLines, DataMissingError, UsageError

if TYPE_CHECKING:
    from searchgym.corpora.files import FilePath
    from searchgym.eval.audit import Audit, AuditedQuestion, Finding, GoldPage
    from searchgym.records import Passage, Question
    from searchgym.retrieval.retriever import Retriever


def corpus_audit(
    questions: Annotated[Path, typer.Option(help="Question file.")],
    corpus: Annotated[str, typer.Option(help="Corpus file, folder of documents, index folder or corpus card.")],
    retriever: Annotated[str | None, typer.Option(help="Retriever card to search with; default: BM25.")] = None,
    search: Annotated[bool, typer.Option(help="Search for the gold pages, too.")] = True,
    top_k: Annotated[int, typer.Option(min=1, help="Hits per search.")] = 20,
    sample: Annotated[int | None, typer.Option(min=1, help="Audit this many questions, drawn by --seed.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for a report, a picture and a row per question.")] = None,
    fill: Annotated[
        Path | None, typer.Option(help="Folder for the corpus with the gold paragraphs that it lacks.")
    ] = None,
    overwrite: Overwrite = False,
    skip_bad: SkipBad = 0,
    json: Json = False,
) -> None:
    """Find the gold pages that a corpus lacks.

    Each gold page is compared by its words: present, cut, retitled, altered or missing. A question is answerable if
    its gold sentences and its answer are there.
    """
    from searchgym.corpora.files import write_jsonl
    from searchgym.eval.audit import Audit, audit_corpus
    from searchgym.eval.audit.answerable import ROWS
    from searchgym.eval.audit.report import markdown, picture, reach_rows
    from searchgym.questions.saved import write_report

    for folder in (out, fill):
        if folder is not None and not (folder.is_dir() and not any(folder.iterdir())):
            refuse_existing(folder, overwrite)
    if not questions.exists():
        raise DataMissingError("no such file: check the path", questions)
    bad = BadLines(skip_bad)
    stream = _asked(questions, sample, seed, bad)
    stream = itertools.chain([next(stream)], stream)  # a bad file is refused before a corpus is indexed
    passages, searched, expected = _opened(corpus, retriever, search)
    counts = Audit()
    holes: list[tuple[str, GoldPage, Finding]] = []

    def counted() -> Iterator[AuditedQuestion]:
        with stages(expected) as progress:
            for question in audit_corpus(stream, passages, searched, top_k, progress):
                counts.add(question)
                holes.extend((question.id, page, state) for page, state in question.holes if fill is not None)
                yield question

    try:
        if out is None:
            collections.deque(counted(), maxlen=0)
        else:
            write_jsonl(out / ROWS, (question.row() for question in counted()))
    except KeyboardInterrupt:
        say("interrupted: nothing was written")
        raise typer.Exit(130) from None
    if out is not None:
        picture(counts, out / "report.png", top_k)
        text = markdown(counts, questions.name, corpus, top_k, sample is not None)
        write_report(out, counts.summary() | {"reach": reach_rows(counts, top_k)}, text)
    report(bad)
    filled = {} if fill is None else _filled(passages(), holes, fill, corpus, questions.name)
    _print(counts, filled, top_k, sample is not None, json)
    if fill is not None and not json:
        say_next("eval", "--questions", questions, "--corpus", fill, "--agent", "evidence-oracle")
    elif counts.kinds.keys() - {"present"} and not json:
        say_next("corpus", "audit", "--questions", questions, "--corpus", corpus, "--fill", "filled-corpus")


def _asked(path: FilePath, sample: int | None, seed: int, bad: BadLines) -> Iterator[Question]:
    """Yields the questions of a file, or a sample of them in their order."""
    from searchgym.corpora.questions import stream_questions

    if sample is None:
        yield from stream_questions(path, bad)
        return
    rng = random.Random(seed)
    reservoir: list[tuple[int, Question]] = []
    for number, question in enumerate(stream_questions(path, bad)):  # reservoir sampling: one pass, n in memory
        if number < sample:
            reservoir.append((number, question))
        elif (at := rng.randrange(number + 1)) < sample:
            reservoir[at] = (number, question)
    yield from (question for _, question in sorted(reservoir, key=lambda pair: pair[0]))


def _opened(
    corpus: str, card: str | None, search: bool
) -> tuple[Callable[[], Iterable[Passage]], Retriever | None, int]:
    """Returns a function that reads a corpus, a retriever over it if there shall be searches, and its expected size."""
    from searchgym.corpora.documents import open_corpus
    from searchgym.envs.data import find_corpus, load_corpus
    from searchgym.retrieval.cards import find_retriever
    from searchgym.retrieval.index.index import MANIFEST
    from searchgym.retrieval.index.size import estimate
    from searchgym.retrieval.retriever import corpus_of

    path = find_corpus(corpus)
    if card is not None and not search:
        raise UsageError("--retriever and --no-search exclude each other")
    indexed = (path / MANIFEST).exists()
    if not search and not indexed:
        size = estimate(path)
        return lambda: open_corpus(path), None, 0 if size is None else size.passages
    loaded = load_corpus(path, None if card is None else find_retriever(card))
    stored = corpus_of(loaded)
    if stored is None:
        raise UsageError(f"{corpus} does not give out its passages: give the corpus file")
    return stored.passages, loaded if search else None, len(stored)


def _filled(
    passages: Iterable[Passage], holes: list[tuple[str, GoldPage, Finding]], fill: Path, corpus: str, questions: str
) -> dict[str, int]:
    """Writes the filled corpus; returns its counts."""
    from searchgym.eval.audit import fill_corpus

    filled = fill_corpus(passages, holes, fill, corpus, questions)
    if filled["without_text"]:
        say(f"{filled['without_text']} gold pages cannot be filled: the questions bring no text for them")
    return {"filled_" + name: count for name, count in filled.items()}


def _print(counts: Audit, filled: dict[str, int], most: int, sampled: bool, json: bool) -> None:
    """Prints the tables, or everything as a JSON object."""
    from searchgym.eval.audit.report import example_rows, kind_rows, reach_rows, share_line

    if json:
        emit(counts.summary() | {"reach": reach_rows(counts, most)} | filled, json)
        return
    emit_rows(kind_rows(counts), json, "pages", "gold pages")
    if counts.reached:
        emit_rows(reach_rows(counts, most), json, "reach", "questions all of whose gold pages are within k hits")
    if examples := example_rows(counts):
        emit_rows(examples, json, "examples", "examples of holes")
    for row in counts.examples.get("faults", ()):
        say(f"note: question {row['question']}: {row['fault']}")
    if filled:
        emit(filled, json, "filled corpus")
    say(share_line(counts, sampled))

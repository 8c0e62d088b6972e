"""Commands for corpora and for scoring retrieval: ``corpus`` and ``retrieval``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from searchgym.cli.output import Json, emit, progress, say, say_next, stages
from searchgym.errors import BadLines, DataMissingError, RunExistsError, ScoringError, UsageError
from searchgym.options.cards import CorpusCard, find_card, load_card
from searchgym.records import Passage

if TYPE_CHECKING:
    from searchgym.eval.retrieval import Qrels, Run

corpus = typer.Typer(help="Download, convert, chunk and inspect corpora.", no_args_is_help=True)

SOURCE_HELP = "Corpus file, BEIR folder, folder of documents, or hf:OWNER/NAME:CONFIG/SPLIT."
Source = Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP)]
Format = Annotated[str | None, typer.Option("--format", help="Format of the corpus; detected by default.")]
SkipBad = Annotated[int, typer.Option(help="Skip and report at most this many bad lines.")]
Out = Annotated[Path, typer.Option(help="Output path.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


def read(source: str, form: str | None, skip_bad: int) -> tuple[Iterable[Passage], BadLines]:
    """Opens a corpus; returns its passages and the record of its bad lines, filled while the passages are read."""
    from searchgym.corpora.documents import open_corpus

    bad = BadLines(skip_bad)
    return open_corpus(source, form, bad), bad


def report(bad: BadLines) -> int:
    """Prints the bad lines that were skipped; returns their number."""
    for error in bad.errors:
        say(f"left out: {error}")
    return len(bad.errors)


def refuse_existing(out: Path, overwrite: bool) -> None:
    """Refuses to overwrite an output path unless asked to.

    Raises:
        RunExistsError: `out` exists and `overwrite` is False.
    """
    if out.exists() and not overwrite:
        raise RunExistsError(f"{out} already exists: choose another --out or pass --overwrite")


@corpus.command("get")
def corpus_get(
    name: Annotated[str, typer.Argument(help="Corpus card, such as wiki-18.")],
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Download and verify the corpus of a card."""
    from searchgym.corpora.download import get_corpus
    from searchgym.corpora.folders import home

    card = load_card(CorpusCard, find_card("corpora", name))
    with progress(f"get {card.name}") as advance:
        emit(get_corpus(card, home() / "data", overwrite=overwrite, progress=advance), json, card.name)
    if not json:
        say_next("index", "build", card.name, "--out", f"{card.name}-index")


@corpus.command("convert")
def corpus_convert(
    source: Source,
    out: Out,
    form: Format = None,
    skip_bad: SkipBad = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Convert a corpus or documents to JSON lines."""
    from searchgym.corpora.passages import write_corpus

    refuse_existing(out, overwrite)
    passages, bad = read(source, form, skip_bad)
    count = write_corpus(out, passages)
    emit({"passages": count, "left_out": report(bad), "out": str(out)}, json, "converted")
    if not json:
        say_next("index", "build", out, "--out", out.with_name(f"{out.stem}-index"))


@corpus.command("chunk")
def corpus_chunk(
    source: Source,
    out: Out,
    words: Annotated[int, typer.Option(help="Maximum words per chunk.")] = 100,
    overlap: Annotated[int, typer.Option(help="Words that a chunk shares with the previous chunk.")] = 0,
    by: Annotated[str, typer.Option(help="Where chunks may end: words, sentence or paragraph.")] = "words",
    form: Format = None,
    skip_bad: SkipBad = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Cut long passages into chunks."""
    from searchgym.corpora.documents import chunk_passages
    from searchgym.corpora.passages import write_corpus

    refuse_existing(out, overwrite)
    passages, bad = read(source, form, skip_bad)
    count = write_corpus(out, chunk_passages(passages, words=words, overlap=overlap, by=by))  # type: ignore[arg-type]
    emit({"passages": count, "left_out": report(bad), "out": str(out)}, json, "chunked")
    if not json:
        say_next("index", "build", out, "--out", out.with_name(f"{out.stem}-index"))


@corpus.command("synthesize")
def corpus_synthesize(
    out: Out,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of passages.")] = 100_000,
    questions: Annotated[int, typer.Option(min=0, help="Also write this many questions, to OUT-questions.jsonl.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed; a smaller corpus is the beginning of a larger one.")] = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a corpus of invented words, of any size.

    Lengths, word frequencies, titles and links are like Wikipedia's; the words have no meaning.
    """
    from searchgym.corpora.passages import write_corpus
    from searchgym.corpora.questions import write_questions
    from searchgym.eval.audit.audit import counted
    from searchgym.questions.worlds.synthetic import SyntheticText

    refuse_existing(out, overwrite)
    text = SyntheticText(seed)
    questions_file = out.with_name(f"{out.name.split('.')[0]}-questions.jsonl")
    if questions:
        refuse_existing(questions_file, overwrite)
        write_questions(questions_file, text.questions(questions, n))
    with stages(n) as advance:
        count = write_corpus(out, counted(text.passages(n), "synthesize", advance))
    emit({"passages": count, "questions": questions, "out": str(out)}, json, "synthetic corpus")
    if questions and not json:
        say_next("corpus", "audit", "--questions", questions_file, "--corpus", out)


@corpus.command("inspect")
def corpus_inspect(source: Source, json: Json = False) -> None:
    """Count passages, their lengths and duplicates."""
    from searchgym.corpora.documents import inspect_corpus

    emit(inspect_corpus(source), json, source)


def retrieval(
    questions: Annotated[Path | None, typer.Option(help="Question file; question texts are the queries.")] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Corpus file, folder of documents, index folder or corpus card to search.")
    ] = None,
    retriever: Annotated[str | None, typer.Option(help="Retriever card to search with.")] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="TREC or BEIR qrels; by default, the questions' gold titles.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="TREC run to score, instead of searching.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Hits per query.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Write the hits as a TREC run.")] = None,
    qrels_out: Annotated[Path | None, typer.Option(help="Write the judgements as TREC qrels.")] = None,
    overwrite: Overwrite = False,
    skip_bad: SkipBad = 0,
    json: Json = False,
) -> None:
    """Score retrieval alone: recall, MRR and nDCG.

    The queries are the questions; or a TREC run is scored against qrels.
    """
    from searchgym.eval import retrieval as measures
    from searchgym.eval.evidence import of_unreachable

    for written in (out, qrels_out):
        if written is not None:
            refuse_existing(written, overwrite)
    lacking: list[str] = []
    if run is not None:
        if qrels is None or questions is not None or corpus is not None:
            raise UsageError("--run needs --qrels, and neither --questions nor --corpus")
        hits, judged = measures.read_run(run), measures.read_qrels(qrels)
    elif questions is None or corpus is None:
        raise UsageError("give --questions and --corpus to search, or --run and --qrels to score a run")
    else:
        hits, judged, lacking = _searched(questions, corpus, retriever, qrels, top_k, skip_bad)
    if out is not None:
        measures.write_run(out, hits)
    if qrels_out is not None:
        measures.write_qrels(qrels_out, judged)
    cutoffs = [cutoff for cutoff in measures.CUTOFFS if cutoff <= top_k]
    counts = {"without_hits": sum(not hits.get(query) for query in judged)}
    if counts["without_hits"]:
        say(f"{counts['without_hits']} of {len(judged)} queries have no hits: they count 0")
    if lacking:
        say(f"warning: {of_unreachable(lacking, len(lacking))}")
        counts["unreachable_golds"] = len(lacking)
    emit(measures.evaluate_run(judged, hits, cutoffs) | counts, json, "retrieval")
    if out is not None and qrels_out is not None and not json:
        say_next("retrieval", "--run", out, "--qrels", qrels_out)


def _searched(
    questions: Path, corpus: str, retriever: str | None, qrels: Path | None, top_k: int, skip_bad: int
) -> tuple[Run, Qrels, list[str]]:
    """Searches the questions; returns the hits, the judgements and, in words, the golds that cannot be found."""
    from searchgym.corpora.questions import read_queries, read_questions
    from searchgym.envs.data import find_corpus, load_corpus
    from searchgym.eval import retrieval as measures
    from searchgym.eval.evidence import titled, unreachable_in
    from searchgym.retrieval.cards import find_retriever

    path, card = find_corpus(corpus), None if retriever is None else find_retriever(retriever)
    if not questions.exists():
        raise DataMissingError("no such file: check the path", questions)
    searched, lacking = load_corpus(path, card), list[str]()
    if qrels is None:
        bad = BadLines(skip_bad)
        records = read_questions(questions, None, bad)
        report(bad)
        pages = titled(records, searched.passages())
        judged, lacking = measures.judgements(records, pages), unreachable_in(records, pages)
    else:
        judged = measures.read_qrels(qrels)
    measures.check_relevant(judged)
    queries = read_queries(questions, BadLines(skip_bad))
    if unasked := sorted(judged.keys() - queries.keys()):
        raise ScoringError(
            f"{len(unasked)} of {len(judged)} judged queries are not in {questions}, such as {unasked[0]!r}"
        )
    return (
        measures.retrieve_run(searched, {i: text for i, text in queries.items() if i in judged}, top_k),
        judged,
        lacking,
    )

"""Writes a corpus with the gold paragraphs that it lacked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import replacing, sha256_file, write_atomic, write_jsonl
from searchgym.corpora.passages import passage_line
from searchgym.errors import DataError
from searchgym.eval.audit.golds import GoldPage
from searchgym.eval.audit.holes import Finding
from searchgym.records import Passage

CORPUS: Final = "corpus.jsonl"
"""File with the passages of the corpus and, after them, those that were added."""
ADDED: Final = "added.jsonl"
"""File with a row for each added passage: its id and title, what was wrong, and the question that brought it."""
PREFIX: Final = "filled:"
"""Beginning of the ids of added passages."""


def fill_corpus(
    passages: Iterable[Passage],
    holes: Iterable[tuple[str, GoldPage, Finding]],
    out: Path,
    source: str,
    questions: str,
) -> dict[str, int]:
    """Writes a corpus, and after it each gold paragraph that it does not have under its title as it should be.

    Nothing is taken out: a text that was cut or altered stays beside the paragraph.

    Args:
        passages: The corpus.
        holes: Question id, gold page and its state, for each gold page that is not as it should be.
        out: Folder, which gets the corpus, `ADDED` and ``card.yaml``.
        source: Name of the corpus, for the card.
        questions: Name of the questions, for the card.

    Returns:
        ``passages`` (all that were written), ``added``, and ``without_text`` (gold pages that the questions bring no
        text for, so that they cannot be added).

    Raises:
        DataError: A passage of the corpus already has the id of an added one: the corpus was filled before.
    """
    added: dict[str, Passage] = {}
    rows: list[Mapping[str, Any]] = []
    without: set[str] = set()
    for question, page, finding in holes:
        if page.text is None:
            without.add(page.title)
            continue
        digest = hashlib.blake2b(f"{page.title}\n{page.text}".encode("utf-8", "surrogatepass"), digest_size=8)
        id = PREFIX + digest.hexdigest()
        if id not in added:
            added[id] = Passage(id, page.title, page.text)
            rows.append({"id": id, "title": page.title, "kind": finding.kind, "question": question})
    count = 0
    with write_atomic(out / CORPUS) as file:
        for passage in passages:
            if passage.id in added:
                raise DataError(f"passage {passage.id!r} was added by an earlier fill: audit the corpus again", source)
            file.write(passage_line(passage))
            count += 1
        for passage in added.values():
            file.write(passage_line(passage))
    write_jsonl(out / ADDED, rows)
    _write_card(out, source, questions, count, rows)
    return {"passages": count + len(added), "added": len(added), "without_text": len(without)}


def _write_card(out: Path, source: str, questions: str, count: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the card of a filled corpus."""
    import yaml

    kinds = sorted({str(row["kind"]) for row in rows})
    by_kind = ", ".join(f"{sum(row['kind'] == kind for row in rows)} {kind}" for kind in kinds)
    card = {
        "name": out.name,
        "summary": f"{source} with {len(rows)} gold paragraphs of {questions} added ({by_kind or 'none'}).",
        "source": f"{count} passages of {source}, then the paragraphs that {questions} brings; {ADDED} lists them.",
        "licence": "That of the corpus for its passages; that of the questions for the added paragraphs.",
        "file": CORPUS,
        "sha256": sha256_file(out / CORPUS),
        "bytes": (out / CORPUS).stat().st_size,
        "passages": count + len(rows),
    }
    with replacing(out / "card.yaml") as file:
        file.write(yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=100).encode())

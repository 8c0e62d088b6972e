"""Caches the masked spans of environments, in folders that appear when they are complete.

questions/SPLIT.jsonl   the tasks, in the format ``searchgym``
card.yaml               all that decides which tasks come out, and what the rules refused
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from searchgym.corpora.files import sha256_file
from searchgym.corpora.folders import lock_folder
from searchgym.corpora.passages import corpus_sha256
from searchgym.corpora.questions import write_questions
from searchgym.options.cards import find_card
from searchgym.questions.masked.generate import VERSION, MaskedSet, Rules, generate
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.source import SPLITS
from searchgym.questions.storage import CARD, ORDER, held_out_by
from searchgym.retrieval.retriever import CorpusRetriever

_WAIT: Final = 3600.0
"""Seconds to wait for another process that generates the same tasks."""


def cached_masks(retriever: CorpusRetriever, spec: MaskedSpec, rules: Rules, home: Path) -> Path:
    """Returns the folder of masked spans in a cache; generates them from a retriever's corpus if the cache lacks them.

    Args:
        retriever: Retriever over the corpus.
        spec: What to generate; its split does not matter, all are written.
        rules: What the environment shows.
        home: Folder of the cache.

    Raises:
        DataError: The corpus gives no task.
        UsageError: A parameter is out of range.
    """
    passages = list(retriever.passages())
    held_out = held_out_by(passages, spec.hold_out)
    key: dict[str, Any] = dataclasses.asdict(dataclasses.replace(spec, split="all", hold_out=[]))
    key |= {"version": VERSION, "order": ORDER, "rules": dataclasses.asdict(rules)}
    key["corpus_sha256"] = retriever.corpus_sha256 or corpus_sha256(passages)
    key["pack_sha256"] = sha256_file(find_card("packs", spec.pack))
    key["triples_sha256"] = None if spec.triples is None else sha256_file(Path(spec.triples))
    key["held_out_sha256"] = _digest(sorted(held_out.names) if held_out else [])
    folder = home / _digest(key)[:24]
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with lock_folder(home, wait=_WAIT):
            if not folder.exists():  # else another process has written it meanwhile
                _write(generate(passages, spec, rules, retriever, held_out), key, folder)
    return folder


def _digest(data: Sequence[str] | dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _write(made: MaskedSet, key: dict[str, Any], folder: Path) -> None:
    """Writes a set to a folder beside its place, then renames it."""
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    (building / "questions").mkdir(parents=True)
    sums = {}
    for split in SPLITS:
        file = building / "questions" / f"{split}.jsonl"
        write_questions(file, made.questions[split])
        sums[f"questions/{split}.jsonl"] = sha256_file(file)
    counts = {split: len(made.questions[split]) for split in SPLITS}
    card = {"format": "searchgym questions"} | key | {"questions": counts, "counts": dict(made.counts.most_common())}
    (building / CARD).write_text(yaml.safe_dump(card | {"sha256": sums}, sort_keys=False), encoding="utf-8")
    building.rename(folder)

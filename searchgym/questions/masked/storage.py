"""Caches the masked spans of environments, in folders that appear only when complete.

questions/SPLIT.jsonl   the tasks, in the format ``searchgym``
card.yaml               all inputs that determine the tasks, and the refusals by rule
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from searchgym.corpora.files import sha256_file
from searchgym.corpora.folders import appearing, cached
from searchgym.corpora.passages import corpus_sha256
from searchgym.options.cards import find_card
from searchgym.questions.masked.generate import VERSION, SearchLimits, generate
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.saved import write_card
from searchgym.questions.source import held_out_by
from searchgym.questions.spec import SPLITS
from searchgym.questions.storage import FORMAT, ORDER, digest_of, write_splits
from searchgym.retrieval.retriever import CorpusRetriever


def cached_masks(retriever: CorpusRetriever, spec: MaskedSpec, limits: SearchLimits, home: Path) -> Path:
    """Returns the folder of masked spans in a cache; generates them from a retriever's corpus if the cache lacks them.

    Args:
        retriever: Retriever over the corpus.
        spec: Parameters of the tasks; its split does not matter, since all splits are written.
        limits: Limits of the environment.
        home: Folder of the cache.

    Raises:
        DataError: The corpus yields no task.
    """
    passages = list(retriever.passages())
    held_out = held_out_by(passages, spec.hold_out)
    key: dict[str, Any] = dataclasses.asdict(dataclasses.replace(spec, split="all", hold_out=[]))
    key |= {"version": VERSION, "order": ORDER, "rules": dataclasses.asdict(limits)}
    key["corpus_sha256"] = retriever.corpus_sha256 or corpus_sha256(passages)
    key["pack_sha256"] = sha256_file(find_card("packs", spec.pack))
    key["triples_sha256"] = None if spec.triples is None else sha256_file(Path(spec.triples))
    key["held_out_sha256"] = digest_of(sorted(held_out.names) if held_out else [])

    def write(folder: Path) -> None:
        """Generates the tasks into a folder."""
        masked_set = generate(passages, spec, limits, retriever, held_out)
        counts = {split: len(masked_set.questions[split]) for split in SPLITS}
        card = {"format": FORMAT} | key | {"questions": counts, "counts": dict(masked_set.counts.most_common())}
        with appearing(folder) as building:
            write_card(building, card, write_splits(building, masked_set.questions))

    return cached(home / digest_of(key)[:24], write)

"""Builds the graph behind an environment's corpus, for proposers to walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from searchgym.corpora.folders import home
from searchgym.envs.data import find_corpus, load_corpus
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.graphs.triples import read_triples
from searchgym.questions.source import FactBase, HeldOut, held_out_by, pages_of_splits
from searchgym.questions.spec import GeneratedSpec
from searchgym.questions.worlds import cached_world
from searchgym.questions.worlds.report import findable_titles
from searchgym.questions.worlds.storage import read_world
from searchgym.retrieval.index.index import build_in_memory
from searchgym.train.selfplay.corpora import CorpusGround
from searchgym.train.selfplay.ground import Ground
from searchgym.train.selfplay.triples import TripleGround
from searchgym.train.selfplay.worlds import WorldGround


def ground_of(
    task: Task, env_options: Mapping[str, Any], hops: Sequence[int], triples: str | None, seed: int
) -> Ground:
    """Returns the graph behind an environment's corpus; see `WalkingProposer` for the parameters.

    The graph of a corpus has the facts of the training pages, without pages and names of evaluation questions.

    Raises:
        UsageError: The environment has no graph, or triples have no corpus.
    """
    card, corpus = task.card, env_options.get("corpus")
    world, spec = card.questions.world_spec(), card.questions.corpus_pages()
    if corpus is not None:
        passages = list(load_corpus(find_corpus(corpus)).passages())
    elif world is not None:
        passages = list(read_world(cached_world(world, home() / "worlds")).passages)
    elif triples is not None:
        raise UsageError("proposer.triples needs env_options.corpus, whose titles are its subjects")
    else:
        raise UsageError(
            f"proposer: {card.id} has no graph to walk: use searchgym/World-v0, or searchgym/Corpus-v0 with "
            "env_options.corpus"
        )
    if triples is None and corpus is None and world is not None:
        simple = world.level == "simple"
        return WorldGround(world, hops, seed, None if simple else findable_titles(passages, build_in_memory(passages)))
    held_out = held_out_by(passages, spec.hold_out) or HeldOut()
    if triples is not None:
        graph, retriever = read_triples(triples), build_in_memory(passages)
        return TripleGround(graph, passages, retriever, card.top_k, hops, seed, held_out)
    pack = load_pack(spec.pack)
    facts = find_facts(passages, pack)
    pages = pages_of_splits(len(passages), facts, GeneratedSpec(shapes=tuple(spec.shapes)), held_out)
    allowed = frozenset().union(*pages.values()) if spec.split == "all" else pages[spec.split]
    source = FactBase(passages, facts, pack).within(allowed, held_out.names)
    return CorpusGround(source, build_in_memory(passages), card.top_k, hops, seed)

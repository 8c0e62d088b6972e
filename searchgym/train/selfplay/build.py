"""From an environment to the graph behind its corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from searchgym.corpora.own import home
from searchgym.envs.data import find_corpus, load_corpus
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.graphs.triples import read_triples
from searchgym.questions.question_source import CorpusPages
from searchgym.questions.source import FactBase, HeldOut, held_out_by, pages_of_splits
from searchgym.questions.spec import GeneratedSpec
from searchgym.questions.worlds import cached_world
from searchgym.questions.worlds.report import findable_titles
from searchgym.questions.worlds.storage import read_world
from searchgym.records import Passage
from searchgym.retrieval.index.index import build_in_memory
from searchgym.train.selfplay.corpora import CorpusGround
from searchgym.train.selfplay.proposal import Ground
from searchgym.train.selfplay.triples import TripleGround
from searchgym.train.selfplay.worlds import WorldGround


def ground_of(
    task: Task, env_options: Mapping[str, Any], hops: Sequence[int], triples: str | None, seed: int
) -> Ground:
    """Returns the graph behind an environment's corpus; see `WalkingProposer` for the parameters."""
    corpus = env_options.get("corpus")
    if triples is not None:
        return _triple_ground(triples, task, corpus, hops, seed)
    world = task.card.questions.world_spec()
    if world is not None and corpus is None:
        findable = None
        if world.level != "simple":
            passages = _passages(task, corpus)
            findable = findable_titles(passages, build_in_memory(passages))
        return WorldGround(world, hops, seed, findable)
    if corpus is None:
        raise UsageError(
            f"proposer: {task.card.id} has no graph to walk: use searchgym/World-v0, or searchgym/Corpus-v0 with "
            "env_options.corpus"
        )
    return corpus_ground(corpus, task.card.questions.corpus_pages(), task.card.top_k, hops, seed)


def _triple_ground(path: str, task: Task, corpus: Any, hops: Sequence[int], seed: int) -> TripleGround:
    """Returns the triples of a file over the environment's corpus."""
    passages = _passages(task, corpus)
    out = held_out_by(passages, task.card.questions.corpus_pages().hold_out) or HeldOut()
    made = read_triples(path), passages, build_in_memory(passages), task.card.top_k
    return TripleGround(*made, hops, seed, out)


def _passages(task: Task, corpus: Any) -> list[Passage]:
    """Returns the passages of the user's corpus, or else those of the environment's world."""
    if corpus is not None:
        return list(load_corpus(find_corpus(corpus)).passages())
    world = task.card.questions.world_spec()
    if world is None:
        raise UsageError("proposer.triples needs env_options.corpus, whose titles are its subjects")
    return list(read_world(cached_world(world, home() / "worlds")).passages)


def corpus_ground(
    corpus: str | PathLike[str], spec: CorpusPages, top_k: int, hops: Sequence[int], seed: int
) -> CorpusGround:
    """Returns the facts of a corpus's training pages, without what belongs to evaluation questions."""
    passages = list(load_corpus(find_corpus(corpus)).passages())
    pack = load_pack(spec.pack)
    facts = find_facts(passages, pack)
    out = held_out_by(passages, spec.hold_out) or HeldOut()
    pages = pages_of_splits(len(passages), facts, GeneratedSpec(shapes=tuple(spec.shapes)), out)
    allowed = frozenset().union(*pages.values()) if spec.split == "all" else pages[spec.split]
    source = FactBase(passages, facts, pack).within(allowed, out.names)
    return CorpusGround(source, build_in_memory(passages), top_k, hops, seed)

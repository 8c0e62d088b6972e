"""From a recipe to its proposer: finds the graph behind the environment's corpus."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from searchgym.corpora.own import home
from searchgym.corpora.retrieval.index.index import build_in_memory
from searchgym.corpora.worlds import cached_world
from searchgym.corpora.worlds.report import findable_titles
from searchgym.corpora.worlds.storage import read_world
from searchgym.envs.data import find_corpus, load_corpus
from searchgym.envs.question_source import CorpusPages
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.graphs.facts import find_facts
from searchgym.graphs.packs import load_pack
from searchgym.graphs.triples import read_triples
from searchgym.questions.generate import USUAL, Plan, pages_of_splits
from searchgym.questions.source import HeldOut, Source
from searchgym.questions.storage import held_out_by
from searchgym.selfplay.corpora import CorpusGround
from searchgym.selfplay.proposal import Ground
from searchgym.selfplay.proposer import PathProposer
from searchgym.selfplay.triples import TripleGround
from searchgym.selfplay.worlds import WorldGround

if TYPE_CHECKING:
    from searchgym.records import Passage
    from searchgym.train.recipe.recipe import Recipe


def proposer_of(recipe: Recipe, task: Task) -> PathProposer | None:
    """Returns the proposer that a recipe asks for, None if it asks for none.

    Args:
        recipe: Names the proposer, the environment and its options.
        task: The environment, loaded.

    Raises:
        UsageError: There is no graph behind the environment's questions, or none with the hops that are asked for.
    """
    if recipe.proposer.kind == "none":
        return None
    return PathProposer(_ground(recipe, task), recipe.proposer, recipe.seed)


def _ground(recipe: Recipe, task: Task) -> Ground:
    """Returns the graph behind an environment's corpus."""
    hops, corpus = recipe.proposer.hops, recipe.env_options.get("corpus")
    if recipe.proposer.triples is not None:
        return _triple_ground(recipe, task, recipe.proposer.triples)
    world = task.card.questions.world_spec()
    if world is not None and corpus is None:
        findable = None
        if world.level != "simple":
            passages = _passages(recipe, task)
            findable = findable_titles(passages, build_in_memory(passages))
        return WorldGround(world, hops, recipe.seed, findable)
    if corpus is None:
        raise UsageError(
            f"proposer: {recipe.env} has no graph to walk: use searchgym/World-v0, or searchgym/Corpus-v0 with "
            "env_options.corpus"
        )
    return corpus_ground(corpus, task.card.questions.corpus_pages(), task.card.top_k, recipe)


def _triple_ground(recipe: Recipe, task: Task, path: str) -> TripleGround:
    """Returns the triples of a file over the environment's corpus."""
    passages = _passages(recipe, task)
    out = held_out_by(passages, task.card.questions.corpus_pages().hold_out) or HeldOut()
    made = read_triples(path), passages, build_in_memory(passages), task.card.top_k
    return TripleGround(*made, recipe.proposer.hops, recipe.seed, out)


def _passages(recipe: Recipe, task: Task) -> list[Passage]:
    """Returns the passages of the user's corpus, or else those of the environment's world."""
    corpus = recipe.env_options.get("corpus")
    if corpus is not None:
        return list(load_corpus(find_corpus(corpus)).passages())
    world = task.card.questions.world_spec()
    if world is None:
        raise UsageError("proposer.triples needs env_options.corpus, whose titles are its subjects")
    return list(read_world(cached_world(world, home() / "worlds")).passages)


def corpus_ground(corpus: str | PathLike[str], spec: CorpusPages, top_k: int, recipe: Recipe) -> CorpusGround:
    """Returns the facts of a corpus's training pages, without what belongs to evaluation questions."""
    passages = list(load_corpus(find_corpus(corpus)).passages())
    pack = load_pack(spec.pack)
    facts = find_facts(passages, pack)
    out = held_out_by(passages, spec.hold_out) or HeldOut()
    pages = pages_of_splits(len(passages), facts, Plan(shapes=tuple(spec.shapes) or USUAL), out)
    allowed = frozenset().union(*pages.values()) if spec.split == "all" else pages[spec.split]
    source = Source(passages, facts, pack).within(allowed, out.names)
    return CorpusGround(source, build_in_memory(passages), top_k, recipe.proposer.hops, recipe.seed)

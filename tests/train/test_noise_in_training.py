"""Noise in training: each step's own, also where steps are drawn ahead, after a resume, and never in validation."""

import dataclasses
from contextlib import closing

import pytest
import test_run

from searchgym.retrieval.kinds.noise import NoiseRetriever
from searchgym.rollout.storage import read_episodes
from searchgym.train.loop.assembly import assemble, trainer_of
from searchgym.train.recipe.load import load_recipe

recipe = test_run.recipe  # a fixture: a recipe on the bundled questions with a small random model


class Noting:
    """Stands around a retriever: notes what it is told of steps, and what it finds."""

    def __init__(self, inner, seen):
        self.inner, self.seen, self.in_process = inner, seen, True

    def at_step(self, step, steps):
        self.seen.append((step, steps))
        self.inner.at_step(step, steps)

    def search(self, queries, k):
        found = self.inner.search(queries, k)
        self.seen.extend((query, [hit.passage.id for hit in hits]) for query, hits in zip(queries, found, strict=True))
        return found


def train(recipe, out, options=(), *, resume=False, steps=None):
    """Runs a recipe with one retriever for training and validation; returns what it was told and found."""
    parts = assemble(load_recipe(str(recipe), ["validation.every=1", *options]), out)
    bm25, seen = parts.task.retriever, []
    noise = NoiseRetriever(bm25, start=0.0, end=1.0, base=1, steps=2)
    for name in ("task", "validation"):
        task = dataclasses.replace(getattr(parts.rollout, name), retriever=Noting(noise, seen))
        setattr(parts.rollout, name, task)
    with closing(parts):
        trainer = trainer_of(parts.recipe, parts, out, resume=resume)
        if steps is not None:
            trainer.recipe = dataclasses.replace(parts.recipe, steps=steps)
        trainer.run()
    return seen, bm25


def by_step(seen, bm25):
    """Returns [(what was told, share of queries that found something else than BM25)]."""
    told, shares = [], []
    for first, second in seen:
        if not isinstance(first, str):
            told.append((first, second))
            shares.append([])
        else:
            shares[-1].append(second != [hit.passage.id for hit in bm25.search([first], len(second) or 1)[0]])
    return [(*one, sum(own) / len(own) if own else None) for one, own in zip(told, shares, strict=True)]


OPTIONS = ["steps=4", "rollout.questions=8"]


def check(rows, first=0):
    """Noise from none at step 0 to all at step 2 and later."""
    noisy = {step: share for step, _, share in rows if step is not None}
    assert list(noisy) == list(range(first, 4))
    assert all(steps == 4 for _, steps, _ in rows)
    assert {0: noisy.get(0, 0.0), 2: noisy[2], 3: noisy[3]} == {0: 0.0, 2: 1.0, 3: 1.0}
    assert 0 < noisy.get(1, 0.5) < 1
    validated = [share for step, _, share in rows if step is None]
    assert len(validated) == 5 - bool(first) * (first + 1)
    assert 0.0 in validated  # some of them searched
    assert not any(validated)


@pytest.mark.slow
def test_each_step_has_its_own_noise_and_validation_none(recipe, tmp_path):
    rows = by_step(*train(recipe, tmp_path / "run", OPTIONS))
    assert [step for step, _, _ in rows] == [None, 0, None, 1, None, 2, None, 3, None]
    check(rows)


@pytest.mark.slow
def test_steps_that_are_drawn_ahead_have_their_own_noise_too(recipe, tmp_path):
    check(by_step(*train(recipe, tmp_path / "run", [*OPTIONS, "rollout.staleness=1", "loss.importance_cap=2.0"])))


@pytest.mark.slow
def test_a_run_that_is_resumed_goes_on_with_the_noise_of_its_steps(recipe, tmp_path):
    train(recipe, tmp_path / "whole", OPTIONS)
    train(recipe, tmp_path / "parts", OPTIONS, steps=2)
    check(by_step(*train(recipe, tmp_path / "parts", OPTIONS, resume=True)), first=2)
    whole, parts = (list(read_episodes(tmp_path / name / "episodes.jsonl")) for name in ("whole", "parts"))
    assert [episode.searches for episode in parts] == [episode.searches for episode in whole]


def test_a_recipe_names_the_retriever_by_its_card(recipe, tmp_path):
    card = "{kind: cache, of: {kind: noise, of: bm25, start: 1.0, end: 1.0}}"
    options = [f"env_options={{max_turns: 2, retriever: {card}}}"]
    parts = assemble(load_recipe(str(recipe), options), tmp_path / "run")
    with closing(parts):
        found = [
            [searched for e in parts.rollout(parts.task.questions[:6], 2, 0, greedy) for searched in e.searches]
            for greedy in (False, True)
        ]
        bm25 = parts.task.retriever.inner[0].inner[0]
    for searches, noisy in zip(found, (True, False), strict=True):
        clean = [bm25.search([searched.query], max(len(searched.hits), 1))[0] for searched in searches]
        same = [list(searched.hits) == hits for searched, hits in zip(searches, clean, strict=True) if hits]
        assert same
        assert not any(same) if noisy else all(same)

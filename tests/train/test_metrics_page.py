"""docs/reference/metrics.md beside what trainings write, in both directions, and the formulas of episodes by hand."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_run
from credit_terms import terms_of
from toy_training import QUESTIONS, BanditRollout, toy_model, toy_recipe, toy_trainer

from searchgym.corpora.files import iter_jsonl
from searchgym.corpora.passages import Passage
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Call, Episode, Hit, Opened, Searched
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext
from searchgym.train.curriculum.kinds.learnability import Learnability
from searchgym.train.curriculum.kinds.steps import Steps
from searchgym.train.curriculum.source import Curriculum
from searchgym.train.curriculum.stages import StageOptions
from searchgym.train.loop.assembly import train
from searchgym.train.loop.rollout import rollout_metrics
from searchgym.train.recipe.load import load_recipe
from searchgym.train.selfplay.kinds.path import LearningProposer
from searchgym.train.selfplay.proposer import PathProposer
from searchgym.train.selfplay.worlds import WorldGround

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
recipe = test_run.recipe  # a fixture: a recipe on the bundled questions with a small random model


def documented():
    """Returns {metric: cells of its row} of the page's tables."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            names, *cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            for name in re.findall(r"`([^`]+)`", names):
                assert name not in found, f"{name} stands twice"
                found[name] = cells
    return found


def written(folder):
    names = {name for _, row in iter_jsonl(folder / "metrics.jsonl") for name in row}
    names = {re.sub(r"^curriculum/(share|weight|pass_rate)/.+", r"curriculum/\1/VALUE", name) for name in names}
    names = {re.sub(r"^validation/(em|searches)/.+", r"validation/\1/KIND", name) for name in names}
    return {re.sub(r"^role/[^/]+/", "role/ROLE/", name) for name in names}


class Proposed:
    """The bandit's questions, with the metrics that a path proposer gives for questions of its own."""

    def __init__(self):
        options = LearningProposer()
        self.name, self.proposes = "proposer", True
        self.proposer = PathProposer(WorldGround(WorldSpec("simple", size=60), [1, 2], 0), options, 0)

    def draw(self, step, count):
        return list(QUESTIONS[:count])

    def learn(self, step, questions, episodes):
        own = self.proposer.draw(step, len(questions))
        by_place = {question.id: made.id for question, made in zip(questions, own, strict=True)}
        return self.proposer.learn(step, own, [replace(e, question_id=by_place[e.question_id]) for e in episodes])

    def state(self):
        return self.proposer.state()


class Opening(BanditRollout):
    """The bandit, each of whose episodes opened a page with a marker that a model wrote, and left a thought open."""

    def __call__(self, *arguments):
        episodes = super().__call__(*arguments)
        marked = {"simulated": 1.0}  # and its pages were written by a model
        opens = [Opened(1, "T", "T", 0, 1, 1, markers=1)]
        calls = [[replace(call, text="<think>", thought_cut=True, requests=2) for call in e.calls] for e in episodes]
        return [
            replace(e, opens=opens, calls=own, scores=e.scores | marked) for e, own in zip(episodes, calls, strict=True)
        ]


STARTS = "rollout.starts={share: 0.5, by: entropy}"


@pytest.fixture
def runs(recipe, tmp_path):
    """Names of metrics by run: GRPO on an environment, and each other method on the bandit."""
    options = ["loss.kl_coef=0.01", "optimizer.minibatches=2", "advantage.drop_zero_variance=false"]
    train(load_recipe(str(recipe), options), tmp_path / "grpo")
    family = [
        "advantage.estimator=stratified", "rollout.resample=1", "loss.dual_clip=3.0", "loss.importance_cap=2.0",
        "loss.llds_coef=0.2", "optimizer.minibatches=2",
    ]  # fmt: skip
    train(load_recipe(str(recipe), family), tmp_path / "family")
    train(load_recipe(str(recipe), ["agent=ircot", "advantage.normalise=role", STARTS]), tmp_path / "team")
    for name in ("tree", "siblings", "gigpo", "deepsearch"):
        toy_trainer(tmp_path / name, toy_recipe(steps=1, advantage={"estimator": name})).run()
    forked = ["rollout.attempts=4", "rollout.tree={roots: 2}", "validation.every=0"]
    train(load_recipe(str(recipe), forked), tmp_path / "forked")
    toy_trainer(tmp_path / "rejection", toy_recipe(method="rejection", steps=2)).run()
    by_critic = {"advantage": {"estimator": "gae"}, "validation": {"every": 0}}
    toy_trainer(tmp_path / "ppo", toy_recipe(steps=1, **by_critic)).run()
    toy_trainer(tmp_path / "classes", toy_recipe(steps=1, **by_critic, critic={"loss": "hl-gauss"})).run()
    rollout = BanditRollout(toy_model())
    episodes = [rollout.episode(q, 0, 0, int(q.answers[0]), 0.0) for q in QUESTIONS]
    demonstrations = [sample for e in episodes for sample in samples_from(e, "demonstration")]
    supervised = toy_recipe(method={"kind": "supervised", "demonstrations": "toy", "batch": 4}, steps=1)
    toy_trainer(tmp_path / "supervised", supervised, demonstrations=demonstrations).run()
    stale = toy_recipe(steps=2, rollout={"questions": 4, "attempts": 8, "staleness": 1}, loss={"importance_cap": 2.0})
    apart = BanditRollout(toy_model())  # a model of its own: it samples in a thread while the other one learns
    probe = lambda samples: {"probe/difference": 0.0, "probe/max_difference": 0.0}  # noqa: E731
    toy_trainer(tmp_path / "stale", stale, rollout=apart, publish=apart.publish, probe=probe).run()
    toy_trainer(tmp_path / "proposed", toy_recipe(steps=1), questions=Proposed()).run()
    stages = Steps(stages=[StageOptions()], by="kind")
    toy_trainer(tmp_path / "staged", toy_recipe(steps=1), questions=Curriculum(QUESTIONS, stages, 0, 4, 1)).run()
    kinds = [replace(question, kind=("even", "odd")[n % 2]) for n, question in enumerate(QUESTIONS)]
    weighed = Curriculum(kinds, Learnability(by="kind"), 0, 2, 1)
    small = toy_recipe(steps=1, rollout={"questions": 2})
    toy_trainer(tmp_path / "learnability", small, questions=weighed, validation=kinds).run()
    toy_trainer(tmp_path / "opened", toy_recipe(steps=1), rollout=Opening(toy_model())).run()
    by_id = {question.id: question for question in QUESTIONS}
    judged = Credit(terms_of("rubric"), CreditContext(question=lambda episode: by_id[episode.question_id]))
    toy_trainer(tmp_path / "judged", toy_recipe(steps=1, credit={"rubric": 1}), credit=judged).run()
    names = (
        "grpo",
        "family",
        "team",
        "tree",
        "siblings",
        "gigpo",
        "deepsearch",
        "forked",
        "ppo",
        "classes",
        "rejection",
        "supervised",
        "stale",
        "proposed",
        "staged",
        "learnability",
        "opened",
        "judged",
    )
    return {name: written(tmp_path / name) for name in names}


@pytest.mark.slow
def test_the_page_has_every_metric_and_no_other(runs):
    pages = documented()
    for name, keys in runs.items():
        assert sorted(keys - pages.keys()) == [], f"written by {name}, not in docs/reference/metrics.md"
    assert sorted(pages.keys() - set().union(*runs.values())) == [], (
        "in docs/reference/metrics.md, written by no method"
    )
    assert len(runs["grpo"]) > 50


def test_every_metric_has_unit_formula_and_range():
    for name, cells in documented().items():
        assert len(cells) == 4, name
        unit, formula, healthy, otherwise = cells
        assert unit and healthy and otherwise, name
        assert len(formula) > 0 and formula != "-", name


def test_what_the_page_mentions_exists():
    """Names in running text and cells: metrics of the page, keys of a recipe, values of a card."""
    text = PAGE.read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:rollout|validation|learner|groups|advantage|critic|time|rejection)/[a-z_0-9]+)`", text)
    )
    assert sorted(named - documented().keys()) == []
    given = load_recipe("tiny-grpo")
    dotted = re.findall(r"`((?:rollout|advantage|loss|optimizer|critic|guard|validation)\.[a-z_]+)`", text)
    assert len(dotted) > 5
    for name in dotted:
        part, key = name.split(".")
        assert hasattr(getattr(given, part), key), name


def test_the_formulas_of_episodes():
    hit = Searched(1, "x", (Hit(Passage("p", "T", "t"), 1.0),))
    common = {"agent": "a", "env": "e"}
    episodes = [
        Episode(
            id="a", question_id="a", **common, calls=[Call(0, 1, 4, "s", "p", 1), Call(0, 5, 7, "s", "p", 2)],
            searches=[hit, hit], turns=3, invalid=1, observation_words=30, stop_reason="answer", reward=1.0,
            scores={"em": 1.0, "f1": 1.0},
        ),
        Episode(
            id="b", question_id="b", **common, calls=[Call(0, 1, 11, "s", "p", 1, legal=False)],
            turns=1, observation_words=2, stop_reason="context", reward=0.25, scores={"em": 0.0, "f1": 0.5},
        ),
        Episode(id="c", question_id="c", **common, stop_reason="retriever_error", scores={"em": 0.0, "f1": 0.0}),
        Episode(
            id="d", question_id="d", **common, calls=[Call(0, 1, 2, "s", "p", 1)], searches=[hit], turns=4, invalid=1,
            stop_reason="answer", reward=0.75, scores={"em": 0.0, "f1": 0.1},
        ),
    ]  # fmt: skip
    assert rollout_metrics(episodes) == pytest.approx(
        {
            "reward": (1 + 0.25 + 0 + 0.75) / 4,
            "reward_std": np.sqrt((0.5**2 + 0.25**2 + 0.5**2 + 0.25**2) / 4),
            "em": 1 / 4,
            "f1": 1.6 / 4,
            "searches": 3 / 4,
            "turns": 8 / 4,
            "observation_words": 32 / 4,
            "answered": 2 / 4,
            "context_full": 1 / 4,
            "overlong": 1 / 4,
            "retriever_error": 1 / 4,
            "invalid": 2 / 8,
            "illegal": 1 / 4,
            "generated_tokens": (3 + 2 + 10 + 0 + 1) / 4,
            "max_generated_tokens": 10,
            "longest_prompt": 5,
        }
    )

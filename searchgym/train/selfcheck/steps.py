"""A few steps of a recipe by the training loop itself, each stage recomputed from what went into it.

Since each stage is compared with formulas on its actual input, a fault is reported by the stage that it is in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from searchgym.corpora.retrieval.retriever import Retriever
from searchgym.envs.core import State
from searchgym.envs.rewards import checked_reward, reward_name
from searchgym.records import Answer, Episode
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.trained_model import Metrics
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.assembly import Assembly, assemble, trainer_of
from searchgym.train.run.draw import Drawer, StepData, TrainingData
from searchgym.train.run.trainer import Trainer
from searchgym.train.selfcheck.findings import Broken, Findings
from searchgym.train.selfcheck.small import STEPS, small_recipe
from searchgym.train.selfcheck.stages import ADVANTAGES, Drawn, check_advantages, check_drawn
from searchgym.train.selfcheck.updates import AGREE, LOSS, PREPARED, UPDATE, KeyCheck
from searchgym.train.selfcheck.watched import Exchange, WatchedLearner, WatchedRollout, WatchedSampler, by_episode

SCORES: Final = "gold answers score above wrong ones"
HITS: Final = "hits are the retriever's"
FRESH: Final = "random numbers are fresh"
QUESTIONS: Final = "questions are drawn by epochs"
LOOP: Final = "steps run to their end"


def check_steps(recipe: Recipe, out: Path, findings: Findings) -> None:
    """Runs a few small steps of a recipe and checks every stage of them.

    Args:
        recipe: Recipe to check; its models are loaded.
        out: Folder for files of the run; must be empty or absent.
        findings: Takes the results.

    Raises:
        SearchGymError: The recipe's parts cannot be loaded.
    """
    small = small_recipe(recipe)
    parts = assemble(small, out, WatchedSampler)
    try:
        with findings.stage(LOOP):
            _Steps(small, parts, findings).trainer(out / "steps").run()
        findings.add(LOOP, True, f"{STEPS} steps of {small.rollout.questions} x {small.rollout.attempts} episodes")
    except Broken:
        pass
    finally:
        parts.close()


class _Steps:
    """The checks of one run, called by the parts of its loop.

    Args:
        recipe: The small recipe.
        parts: What it was loaded into.
        findings: Takes the results.
    """

    def __init__(self, recipe: Recipe, parts: Assembly, findings: Findings) -> None:
        self._recipe, self._parts, self._findings = recipe, parts, findings
        self._penalties = {name: role.penalty for name, role in parts.rollout.agent.roles.items()}
        self._rollout = WatchedRollout(parts.rollout, recipe, lambda name: parts.task.find(name).answers[0])
        self._learner = WatchedLearner(parts.learner, self._learnt)
        self._seeds: Counter[int] = Counter()
        self._asked: list[set[str]] = []
        self._keys = {key.name: KeyCheck(key, recipe, parts.learner, findings) for key in parts.keys if not key.frozen}

    def trainer(self, out: Path) -> Trainer:
        """Returns the run's trainer, whose parts are watched."""
        watched = replace(self._parts, rollout=self._rollout, learner=self._learner)  # type: ignore[arg-type]
        trainer = trainer_of(self._recipe, watched, out)
        data = TrainingData(self._parts.task.questions, trained=self._parts.trained, credit=self._parts.credit)
        trainer.drawer = _WatchedDrawer(self, self._recipe, self._learner, self._rollout, data)
        return trainer

    def score(self, episode: Episode, text: str) -> float:
        """Returns the environment's reward for an answer."""
        state = State(self._parts.task.find(episode.question_id), answer=Answer(text), stop_reason="answer")
        return checked_reward(self._parts.task.reward, state)

    def of_key(self, samples: Sequence[Sample], key: str) -> list[Sample]:
        """Returns the samples of a model key."""
        return [sample for sample in samples if sample.model_key == key]

    def drawn(self, data: StepData) -> None:
        """Checks the samples that were made of the step's episodes."""
        exchanges = []
        for model in self._parts.models.values():
            assert isinstance(model.sampler, WatchedSampler)
            exchanges += model.sampler.exchanges
            model.sampler.exchanges = []
        keys = {role: key.name for key in self._parts.keys for role in key.roles}
        drawn = Drawn(by_episode(exchanges), self._rollout.episodes, data.samples, keys)
        check_drawn(self._findings, drawn, self._recipe, self._penalties, self.score)
        self._fresh(exchanges)
        self.environment()
        self._learner.prepared = None
        with self._findings.stage(AGREE):
            for name, check in self._keys.items():
                if own := self.of_key(data.samples, name):
                    check.drawn(own)

    def environment(self) -> None:
        """Checks that the environment scores gold answers above wrong ones, and hands on the retriever's hits."""
        task = self._parts.task
        with self._findings.stage(SCORES):
            asked = [task.find(episode.question_id) for episode in self._rollout.sampled]
            wrong = 0
            own = reward_name(task.reward) not in ("reward_em", "reward_f1")  # whose values are up to its author
            for question in [] if own else asked:
                texts = (question.answers[0], "no answer at all", question.answers[0])
                states = [State(question, answer=Answer(text), stop_reason="answer") for text in texts]
                gold, other, again = (task.score(state)[0] for state in states)
                wrong += gold <= other or gold != again
            said = "not checked: the reward is not the package's own" if own else f"{len(asked)} gold answers"
            self._findings.add(SCORES, not wrong, f"{said}, {wrong} not above a wrong one")
        searched = [search for episode in self._rollout.sampled for search in episode.searches][:16]
        if not isinstance(task.retriever, Retriever) or not searched:
            return
        with self._findings.stage(HITS):
            queries = [search.query for search in searched]
            once, twice = (task.retriever.search(queries, task.rules.top_k) for _ in range(2))
            pairs = zip(searched, once, strict=True)
            differ = sum([hit.passage.id for hit in s.hits] != [hit.passage.id for hit in own] for s, own in pairs)
            said = f"{len(searched)} searches, {differ} with other hits than the retriever's"
            steady = once == twice
            self._findings.add(HITS, not (differ and steady), said if steady else f"{said}, which vary")

    def _fresh(self, exchanges: Sequence[Exchange]) -> None:
        """Checks that every response has random numbers of its own, and that an epoch repeats no question."""
        self._seeds.update(request.seed for request, _ in exchanges)
        twice = sum(count > 1 for count in self._seeds.values())
        said = f"{self._seeds.total()} responses, {twice} seeds were used twice"
        self._findings.add(FRESH, not twice, said)
        self._asked.append({episode.question_id for episode in self._rollout.episodes})
        known, here = len(self._parts.task.questions), self._recipe.rollout.questions
        epoch = self._asked[: known // here]
        repeated = sum(map(len, epoch)) - len(set().union(*epoch))
        short = sum(len(asked) != here for asked in self._asked)
        said = f"{len(self._asked)} steps of {known} questions, {repeated} repeated within an epoch"
        self._findings.add(QUESTIONS, not repeated and not short, said)

    def prepared(self, data: StepData, made: StepData) -> None:
        """Checks what was added to the samples, and their advantages."""
        if self._recipe.method != "policy":
            return
        given = data.samples if self._learner.prepared is None else self._learner.prepared
        frozen = [sample for sample in data.samples if sample.model_key not in self._keys]
        with self._findings.stage(PREPARED):
            for name, check in self._keys.items():
                check.prepared(self.of_key(given, name))
        with self._findings.stage(ADVANTAGES):
            check_advantages(self._findings, given, made.samples, self._recipe, frozen)

    def _learnt(self, samples: Sequence[Sample], step: int, update: Callable[[], Metrics]) -> Metrics:
        """Lets the learner make its updates, and checks them."""
        own = {name: mine for name in self._keys if (mine := self.of_key(samples, name))}
        for name, mine in own.items():
            self._keys[name].before_update(mine)
        with self._findings.stage(LOSS):
            metrics = update()
        with self._findings.stage(UPDATE):
            for name, mine in own.items():
                self._keys[name].after_update(mine, step, metrics)
        return metrics

    @property
    def findings(self) -> Findings:
        """Results so far."""
        return self._findings


class _WatchedDrawer(Drawer):
    """A drawer whose results are checked as they are made."""

    def __init__(
        self, steps: _Steps, recipe: Recipe, learner: WatchedLearner, rollout: WatchedRollout, data: TrainingData
    ) -> None:
        super().__init__(recipe, learner, rollout, data)
        self._steps = steps

    def draw(self, step: int) -> StepData:
        """Returns the data of a step, checked; see `Drawer.draw`."""
        with self._steps.findings.stage("episodes become samples"):
            data = super().draw(step)
        self._steps.drawn(data)
        return data

    def prepared(self, data: StepData) -> StepData:
        """Returns the data of the step with advantages, checked; see `Drawer.prepared`."""
        with self._steps.findings.stage(ADVANTAGES):
            made = super().prepared(data)
        self._steps.prepared(data, made)
        return made

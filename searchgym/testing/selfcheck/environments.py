"""Checks of the environments: scores and hits in training and validation, and the environment of validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from searchgym.envs.core import State
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.reward import score_episode, score_rewards
from searchgym.envs.task import Task, load_task
from searchgym.records import Answer, Episode, Question
from searchgym.retrieval.retriever import Retriever, at_step
from searchgym.testing.selfcheck.bookkeeping import CHOICE, check_choice
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.updates import KeyCheck
from searchgym.testing.selfcheck.watched import Exchange
from searchgym.train.loop.publish import allowed_difference
from searchgym.train.loop.trainer import TrainResult
from searchgym.train.recipe.recipe import Recipe

SCORES: Final = "gold answers score above wrong ones"
HITS: Final = "hits are the retriever's"
GREEDY: Final = "validation takes the likeliest tokens"
VALIDATION: Final = "validation has its own questions and scores"
CORPUS: Final = "validation searches its own corpus"
REPORTED: Final = "validation reports its episodes' scores"
PRESENT: Final = "validation has the weights of its step"
REASONS: Final = dict.fromkeys((GREEDY, PRESENT), "no token of a trained model") | dict.fromkeys(
    (VALIDATION, REPORTED, CHOICE), ""
)
"""Reasons why checks of a validation may have no result."""
COMPARED: Final = 16
"""Maximum number of a step's searches that are repeated."""


def check_scores(findings: Findings, task: Task, questions: Sequence[Question]) -> None:
    """Checks that an environment scores gold answers above wrong ones."""
    with findings.stage(SCORES):
        if task.reward not in score_rewards().values():  # the values of a custom reward are up to its author
            findings.skip(SCORES, "the reward is not one of the package's")
            return
        wrong = 0
        for question in questions:
            texts = (question.answers[0], "no answer at all", question.answers[0])
            states = [State(question, answer=Answer(text), stop_reason="answer") for text in texts]
            gold, other, again = (score_episode(task.reward, state)[0] for state in states)
            wrong += gold <= other or gold != again
        findings.add(SCORES, not wrong, f"{len(questions)} gold answers, {wrong} not above a wrong one")


def check_hits(findings: Findings, name: str, task: Task, episodes: Sequence[Episode]) -> None:
    """Checks that searches in episodes have the hits of the environment's retrievers."""
    searched = [search for episode in episodes for search in episode.searches]
    searched = [search for search in searched if isinstance(task.source(search.source), Retriever)][:COMPARED]
    if not searched:
        return
    with findings.stage(name):
        differ, steady = 0, True
        for search in searched:
            retriever = task.source(search.source)
            assert isinstance(retriever, Retriever)
            once, twice = (retriever.search([search.query], task.rules.top_k)[0] for _ in range(2))
            differ += [hit.passage.id for hit in search.hits] != [hit.passage.id for hit in once]
            steady = steady and once == twice
        message = f"{len(searched)} searches, {differ} with other hits than the retriever's"
        if differ and not steady:
            findings.skip(name, f"{message}, which vary")
        else:
            findings.add(name, not differ, message)


class ValidationCheck:
    """Checks of a run's validations, with a second copy of the validation environment.

    Args:
        recipe: Recipe under test.
        keys: Checks of the trained model keys.
        findings: Receives the results.
    """

    def __init__(self, recipe: Recipe, keys: Mapping[str, KeyCheck], findings: Findings) -> None:
        self._recipe, self._keys, self._findings = recipe, keys, findings
        self._task: Task | None = None
        self._ids: list[str] = []
        self._scores: list[dict[str, float]] = []

    def validated(
        self, questions: Sequence[Question], episodes: Sequence[Episode], exchanges: Mapping[str, Sequence[Exchange]]
    ) -> None:
        """Checks one validation.

        Args:
            questions: Questions of the validation.
            episodes: Episodes of the validation.
            exchanges: Requests and replies of the sampler of each model key.
        """
        with self._findings.stage(GREEDY):
            self._greedy(exchanges)
        with self._findings.stage(VALIDATION):
            if self._task is None:
                recipe = self._recipe
                options = env_options(recipe.env, recipe.env_options, recipe.validation.env_options)
                self._task = load_task(find_env(recipe.env), **options)
                at_step(self._task.retriever, None, self._recipe.steps)
            self._check_environment(self._task, questions, episodes)
        check_hits(self._findings, CORPUS, self._task, episodes)
        names = {name for episode in episodes for name in episode.scores}
        means = {name: float(np.mean([e.scores[name] for e in episodes if name in e.scores])) for name in names}
        self._scores.append(means | {"reward": float(np.mean([episode.reward for episode in episodes]))})

    def _greedy(self, exchanges: Mapping[str, Sequence[Exchange]]) -> None:
        """Checks that tokens are the likeliest ones under the learner's weights, if the sampler has these weights."""
        rows = [row for name, check in self._keys.items() for row in check.likeliest(exchanges.get(name, ()))]
        if not rows:
            return
        off, *apart = np.mean(rows, 0)
        allowed, least = allowed_difference(self._recipe), float(min(apart))
        self._findings.within(PRESENT, least, allowed, f"log-probs {least:.2g} nats from the learner's on average")
        if least <= allowed:  # the likeliest tokens of other weights are other tokens
            message = f"{len(rows)} tokens, {off:.2g} nats below the likeliest on average"
            self._findings.within(GREEDY, float(off), allowed, message)

    def _check_environment(self, task: Task, questions: Sequence[Question], episodes: Sequence[Episode]) -> None:
        """Checks that questions, rewards and turns are those of the recipe's validation environment."""
        check_choice(self._findings, questions, task.questions)
        ids = [question.id for question in questions]
        strange = sum(task.by_id.get(question.id) != question for question in questions)
        expected = min(self._recipe.validation.questions, len(task.questions))
        same = len(set(ids)) == expected == len(episodes) and ids == (self._ids or ids)
        self._ids = ids
        differ = long = 0
        for episode in episodes:
            if episode.question_id in task.by_id:
                state = State(
                    task.find(episode.question_id), episode.turns, episode.invalid, tuple(episode.searches),
                    tuple(episode.opens), answer=episode.answer, stop_reason=episode.stop_reason,
                )  # fmt: skip
                once, again = (score_episode(task.reward, state) for _ in range(2))
                differ += once == again != (episode.reward, episode.scores)  # a judge's scores may vary
                long += episode.turns > task.rules.max_turns
        message = f"{len(ids)} of {len(task.questions)} questions, {strange} of another environment, {differ} scored"
        message += f" differently from its reward, {long} over its turn budget"
        message += "" if same else "; their number differs from the recipe's, or they differ between validations"
        self._findings.add(VALIDATION, same and not (strange or differ or long), message)

    def reported(self, result: TrainResult) -> None:
        """Checks the validation scores in a run's metrics, and which validation counts as the best."""
        if not (every := self._recipe.validation.every):
            return
        rows = [row for row in result.rows if any(name.startswith("validation/") for name in row)]
        metric, steps = self._recipe.validation.metric, [row["step"] for row in result.rows]
        due = [step for step in steps if step % every == 0 or step == self._recipe.steps]
        wrong = abs(len(rows) - len(self._scores)) + ([row["step"] for row in rows] != due)
        for row, means in zip(rows, self._scores, strict=False):
            wrong += sum(abs(row.get(f"validation/{name}", np.inf) - mean) > 1e-6 for name, mean in means.items())
        message = (
            f"{len(rows)} validations where {len(due)} are due, {wrong} scores differ from the mean of their episodes"
        )
        if self._scores and metric in self._scores[0]:
            best = max(range(len(self._scores)), key=lambda i: (self._scores[i][metric], -i))
            right = rows[best]["step"] if best < len(rows) else None
            message += f"; best by {metric}: step {result.progress.best_step}, {right:g} is right"
            wrong += result.progress.best_step != right
        self._findings.add(REPORTED, not wrong, message)

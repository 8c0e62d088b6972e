"""Checks of the environments: scores and hits in training, and whether validation has its own of everything."""

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
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.updates import KeyCheck
from searchgym.testing.selfcheck.watched import Exchange
from searchgym.train.loop.publish import allowed_difference
from searchgym.train.loop.trainer import TrainResult
from searchgym.train.recipe.recipe import Recipe

SCORES: Final = "gold answers score above wrong ones"
HITS: Final = "hits are the retriever's"
GREEDY: Final = "validation takes the likeliest tokens"
OWN: Final = "validation has its own questions and scores"
FOUND: Final = "validation searches its own corpus"
REPORTED: Final = "validation reports its episodes' scores"
REASONS: Final = {GREEDY: "no token of a trained model", OWN: "", REPORTED: ""}
"""Why checks of a validation may have no result."""
COMPARED: Final = 16
"""Most searches of a step that are made again."""


def check_scores(findings: Findings, task: Task, asked: Sequence[Question]) -> None:
    """Checks that an environment scores gold answers above wrong ones."""
    with findings.stage(SCORES):
        if task.reward not in score_rewards().values():  # whose values are up to its author
            findings.skip(SCORES, "the reward is not the package's own")
            return
        wrong = 0
        for question in asked:
            texts = (question.answers[0], "no answer at all", question.answers[0])
            states = [State(question, answer=Answer(text), stop_reason="answer") for text in texts]
            gold, other, again = (score_episode(task.reward, state)[0] for state in states)
            wrong += gold <= other or gold != again
        findings.add(SCORES, not wrong, f"{len(asked)} gold answers, {wrong} not above a wrong one")


def check_hits(findings: Findings, name: str, task: Task, episodes: Sequence[Episode]) -> None:
    """Checks that searches were handed what the environment's retrievers find."""
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
        said = f"{len(searched)} searches, {differ} with other hits than the retriever's"
        if differ and not steady:
            findings.skip(name, f"{said}, which vary")
        else:
            findings.add(name, not differ, said)


class ValidationCheck:
    """The checks of a run's validations, against an environment that is loaded for it.

    Args:
        recipe: The checked recipe.
        keys: Checks of the trained model keys.
        findings: Takes the results.
    """

    def __init__(self, recipe: Recipe, keys: Mapping[str, KeyCheck], findings: Findings) -> None:
        self._recipe, self._keys, self._findings = recipe, keys, findings
        self._task: Task | None = None
        self._asked: list[str] = []
        self._scores: list[dict[str, float]] = []

    def validated(
        self, questions: Sequence[Question], episodes: Sequence[Episode], exchanges: Mapping[str, Sequence[Exchange]]
    ) -> None:
        """Checks one validation.

        Args:
            questions: Its questions.
            episodes: Its episodes.
            exchanges: What the sampler of each model key was asked and replied.
        """
        with self._findings.stage(GREEDY):
            self._greedy(exchanges)
        with self._findings.stage(OWN):
            if self._task is None:
                recipe = self._recipe
                options = env_options(recipe.env, recipe.env_options, recipe.validation.env_options)
                self._task = load_task(find_env(recipe.env), **options)
                at_step(self._task.retriever, None, self._recipe.steps)
            self._own(self._task, questions, episodes)
        check_hits(self._findings, FOUND, self._task, episodes)
        names = {name for episode in episodes for name in episode.scores}
        means = {name: float(np.mean([e.scores[name] for e in episodes if name in e.scores])) for name in names}
        self._scores.append(means | {"reward": float(np.mean([episode.reward for episode in episodes]))})

    def _greedy(self, exchanges: Mapping[str, Sequence[Exchange]]) -> None:
        """Checks that every token is the likeliest one under the learner's weights, if the sampler has these."""
        rows = [row for name, check in self._keys.items() for row in check.likeliest(exchanges.get(name, ()))]
        off, *apart = np.mean(rows, 0) if rows else (0.0, np.inf)
        if min(apart) <= (allowed := allowed_difference(self._recipe)):  # else other checks say so
            said = f"{len(rows)} tokens, {off:.2g} nats below the likeliest on average"
            self._findings.within(GREEDY, float(off), allowed, said)

    def _own(self, task: Task, questions: Sequence[Question], episodes: Sequence[Episode]) -> None:
        """Checks that questions, rewards and turns are those of the recipe's validation environment."""
        asked = [question.id for question in questions]
        strange = sum(task.by_id.get(question.id) != question for question in questions)
        wanted = min(self._recipe.validation.questions, len(task.questions))
        same = len(set(asked)) == wanted == len(episodes) and asked == (self._asked or asked)
        self._asked = asked
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
        said = f"{len(asked)} of {len(task.questions)} questions, {strange} of another environment, {differ} scored"
        said += f" otherwise than by its own reward, {long} with more turns than it has"
        said += "" if same else "; not as many as the recipe asks for, or not the same each time"
        self._findings.add(OWN, same and not (strange or differ or long), said)

    def reported(self, result: TrainResult) -> None:
        """Checks the scores in a run's metrics, and which of its validations counts as the best."""
        rows = [row for row in result.rows if any(name.startswith("validation/") for name in row)]
        if not self._scores:
            return
        metric = self._recipe.validation.metric
        wrong = abs(len(rows) - len(self._scores))
        for row, means in zip(rows, self._scores, strict=False):
            wrong += sum(abs(row.get(f"validation/{name}", np.inf) - mean) > 1e-6 for name, mean in means.items())
        said = f"{len(rows)} validations, {wrong} scores not the mean of their episodes"
        if metric in self._scores[0]:
            best = max(range(len(self._scores)), key=lambda i: (self._scores[i][metric], -i))
            right = rows[best]["step"] if best < len(rows) else None
            said += f"; best by {metric}: step {result.progress.best_step}, {right:g} is right"
            wrong += result.progress.best_step != right
        self._findings.add(REPORTED, not wrong, said)

"""From a recipe to its curriculum, and to the environment whose searches follow it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from searchgym.corpora.retrieval.retriever import Retriever
from searchgym.curriculum.retriever import StagedRetriever
from searchgym.curriculum.source import Curriculum
from searchgym.envs.task import Task
from searchgym.errors import UsageError

if TYPE_CHECKING:
    from searchgym.train.recipe.recipe import Recipe


def curriculum_of(recipe: Recipe, task: Task) -> Curriculum | None:
    """Returns the curriculum that a recipe asks for, None if it asks for none.

    Raises:
        UsageError: A stage asks for questions or passages that the environment does not have.
    """
    options = recipe.curriculum
    if not options.stages:
        return None
    most = max(stage.distractors for stage in options.stages)
    if most >= task.rules.top_k:
        hits = task.rules.top_k
        raise UsageError(f"curriculum: {most} distractors among {hits} hits: ask for fewer, or for more hits (top_k)")
    return Curriculum(task.questions, options, recipe.seed, recipe.rollout.questions, recipe.steps)


def staged(task: Task, curriculum: Curriculum, recipe: Recipe) -> Task:
    """Returns the task with a retriever that follows the curriculum, if a stage has noise or distractors.

    Raises:
        UsageError: They are drawn from the corpus, and the retriever has none on this machine.
    """
    stages = recipe.curriculum.stages
    if not any(stage.noise or stage.distractors for stage in stages):
        return task
    if not isinstance(task.retriever, Retriever):
        raise UsageError(
            "curriculum: noise and distractors need a corpus for all questions: leave distractors=True out"
        )
    retriever = StagedRetriever(task.retriever, lambda step: stages[curriculum.stage_at(step)], recipe.seed)
    return dataclasses.replace(task, retriever=retriever)

"""From a curriculum's options to its questions, and to the environment whose searches follow it."""

from __future__ import annotations

import dataclasses

from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.retrieval.retriever import Retriever
from searchgym.train.curriculum.retriever import StagedRetriever
from searchgym.train.curriculum.source import Curriculum
from searchgym.train.curriculum.stages import Schedule


def curriculum_of(options: Schedule, task: Task, seed: int, batch: int, steps: int) -> Curriculum:
    """Returns the questions of a task by a curriculum; see `Curriculum` for the parameters.

    Raises:
        UsageError: A stage asks for questions or passages that the environment does not have.
    """
    most = max(stage.distractors for stage in options.stages)
    if most >= task.rules.top_k:
        hits = task.rules.top_k
        raise UsageError(f"curriculum: {most} distractors among {hits} hits: ask for fewer, or for more hits (top_k)")
    return Curriculum(task.questions, options, seed, batch, steps)


def staged(task: Task, curriculum: Curriculum, options: Schedule, seed: int) -> Task:
    """Returns the task with a retriever that follows the curriculum, if a stage has noise or distractors.

    Raises:
        UsageError: They are drawn from the corpus, and the retriever has none on this machine.
    """
    stages = options.stages
    if not any(stage.harder for stage in stages):
        return task
    if not isinstance(task.retriever, Retriever):
        raise UsageError(
            "curriculum: noise and distractors need a corpus for all questions: leave distractors=True out"
        )
    retriever = StagedRetriever(task.retriever, lambda step: stages[curriculum.stage_at(step)], seed)
    return dataclasses.replace(task, retriever=retriever)

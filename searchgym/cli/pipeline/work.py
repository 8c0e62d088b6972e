"""A pipeline at work in its folder: what its stages share, and what each of them did."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

import yaml

from searchgym.agents.base import LoadedAgent, load_agent, with_max_tokens
from searchgym.cli.pipeline.folder import DONE, PIPELINE, check_out
from searchgym.cli.pipeline.pipeline import Pipeline
from searchgym.cli.pipeline.selection import SELECTED
from searchgym.corpora.files import read_json, write_atomic
from searchgym.corpora.folders import lock_folder
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import UsageError
from searchgym.eval.runner import recorded_date
from searchgym.options import plain
from searchgym.options.yaml import read_yaml
from searchgym.retrieval.cards import Progress
from searchgym.rollout.foreign.template_options import DATE
from searchgym.rollout.models import Loading, Model, opened_models
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.recipe import Recipe

ENV: Final = "searchgym/Corpus-v0"
Steps = Callable[[Recipe], AbstractContextManager[Callable[[Mapping[str, float]], None]]]
"""Function that opens a display of a training's steps."""


class StageOutcome(TypedDict, total=False):
    """What a stage did, as ``stages.json`` has it; each stage has some of the fields."""

    seconds: float
    """Of its last session."""
    left_out: str
    """Why it was left out."""
    passages: int
    held_out_pages: int
    train: int
    """Number of training questions: generated, or chosen."""
    validation: int | list[float]
    """Number of questions; of a training, its validation scores."""
    test: int
    cut_links: int
    crossing: int
    episodes: int
    """Number of demonstrations."""
    steps: int
    checkpoint: str
    best: str
    """Checkpoint with the best validation score."""
    best_step: int | None
    pass_rate_again: float
    scores: dict[str, dict[str, Any]]
    """Scores on the test questions by row of the report's table."""
    adapter: str


@dataclass(slots=True)
class Work:
    """A pipeline at work in its folder."""

    pipeline: Pipeline
    out: Path
    progress: Progress
    """Called with (stage, done, whole)."""
    steps: Steps
    """Shows the steps of trainings."""
    say: Callable[[str], None]
    """Shows the user a line of text."""
    done: dict[str, StageOutcome] = dataclasses.field(default_factory=dict)
    """What each finished stage did."""

    def questions(self, split: str) -> Path:
        """Returns the file of a split of the generated questions."""
        return self.out / "questions" / "questions" / f"{split}.jsonl"

    def options(self, questions: Path) -> dict[str, Any]:
        """Returns the environment options that ask the questions of a file."""
        corpus = str(self.out / "corpus.jsonl")
        return {"reward": "em", **self.pipeline.env_options, "questions": str(questions), "corpus": corpus}

    def task(self, questions: Path) -> Task:
        """Loads the environment that asks the questions of a file."""
        return load_task(find_env(ENV), **self.options(questions))

    def test_task(self) -> Task:
        """Loads the environment that asks the test questions; the user's own search all pages, held out ones too."""
        user_file = self.pipeline.own_test
        if user_file is None:
            return self.task(self.out / "test" / SELECTED)
        options: dict[str, Any] = {**self.options(Path(user_file)), "corpus": self.pipeline.corpus}
        return load_task(find_env(ENV), **options)

    @property
    def practised(self) -> str:
        """Model after the demonstrations, as far as there were any."""
        trained = (self.done.get(name, {}).get("checkpoint") for name in ("searcher", "reader", "filler"))
        return next(filter(None, trained), self.pipeline.model)

    @property
    def best(self) -> str:
        """Model after reinforcement learning, or the practised one if that was left out."""
        return self.done["reinforced"].get("best", self.practised)

    @property
    def recipe(self) -> Recipe:
        """Recipe of the reinforcement learning, before it is fitted to the questions."""
        return dataclasses.replace(self.pipeline.recipe, model=self.practised, seed=self.pipeline.seed)

    @property
    def template(self) -> dict[str, Any]:
        """Arguments of the model's chat template, with the date that it showed in measurements so far."""
        day = recorded_date(self.out / "selected") or recorded_date(self.out / "scores")
        return ({} if day is None else {DATE: day}) | self.recipe.template

    @contextlib.contextmanager
    def model(self, name: str, task: Task, agent: str | None = None) -> Iterator[tuple[LoadedAgent, dict[str, Model]]]:
        """Loads a model for the roles of an agent, the recipe's by default, and closes it when the block ends."""
        recipe = self.recipe
        chosen = with_max_tokens(
            load_agent(agent or recipe.agent), recipe.rollout.max_tokens, recipe.rollout.max_thought_tokens
        )
        how = Loading(dtype=self.pipeline.dtype, template=self.template)
        with opened_models(dict.fromkeys(chosen.roles, name), task.rules.protocol, how) as models:
            yield chosen, models

    def trained(self, recipe: Recipe, folder: Path) -> StageOutcome:
        """Trains by a recipe, or goes on with a run; returns what it came to."""
        with self.steps(recipe) as report:
            result = train(recipe, folder, resume=(folder / "recipe.yaml").exists(), report=report)
        return {
            "steps": result.progress.step,
            "checkpoint": str(result.checkpoint),
            "best": str(result.best or result.checkpoint),
            "best_step": result.progress.best_step,
            "validation": [round(row["validation/em"], 4) for row in result.rows if "validation/em" in row],
        }


@contextlib.contextmanager
def opened(work: Work, resume: bool) -> Iterator[None]:
    """Creates a pipeline's folder, or loads the results of its finished stages, and locks it until the block ends.

    Raises:
        RunExistsError: The folder is in use, holds other files, or holds a pipeline although `resume` is false.
        UsageError: `resume` is true, but the folder holds a different pipeline or none.
    """
    record, mine = work.out / PIPELINE, plain(work.pipeline)
    check_out(work.out, resume)
    with lock_folder(work.out):
        check_out(work.out, resume)  # again: another process may have begun meanwhile
        before = read_yaml(record) if record.exists() else {}
        differing = [key for key, value in mine.items() if before.get(key) != value]
        if before and differing and resume:
            raise UsageError(
                f"{work.out} holds a pipeline with another {', '.join(differing)}: resume with the same values, or "
                "choose another --out"
            )
        if differing:
            shutil.rmtree(work.out / "questions", ignore_errors=True)  # of a pipeline that finished no stage
            with write_atomic(record) as file:
                file.write(yaml.safe_dump(mine, sort_keys=False, allow_unicode=True).encode())
        if (work.out / DONE).exists():
            work.done.update(read_json(work.out / DONE))
        yield

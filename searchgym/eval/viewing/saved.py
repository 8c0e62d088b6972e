"""Reader of saved runs for viewers: episodes with their questions, rewards and tokens.

A run folder may come from a stranger: code that its recipe names is imported only with the user's consent. If
questions, a tokenizer or a readable recipe are missing, the data that need them are skipped and noted; only unreadable
episodes are an error.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import read_agent
from searchgym.corpora.folders import EPISODES
from searchgym.corpora.questions import read_questions
from searchgym.errors import DataMissingError, SearchGymError, UnknownNameError, UsageError
from searchgym.eval.report.questions import recorded
from searchgym.eval.rows import CallRow, Terms, call_rows
from searchgym.eval.run_folder import QuestionRows, RunReader, open_folder
from searchgym.eval.runner import questions_sha256
from searchgym.eval.viewing.rewards import credit_of, searchless_task, terms_by_episode, terms_of
from searchgym.named import code_refused
from searchgym.questions.subset import draw_subset
from searchgym.records import Episode, Question, hops_of
from searchgym.rollout.folders import RECIPE, model_folder
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.credit.credit import Credit
from searchgym.train.loop.folder import Advantages
from searchgym.train.recipe.keys import POLICY, keys_of
from searchgym.train.recipe.load import read_recipe
from searchgym.train.recipe.recipe import Recipe

STEP: Final = re.compile(r"@(\d+)$")
"""Pattern of the step at the end of a training episode's id."""


@dataclass(frozen=True, slots=True)
class Viewed:
    """One episode with the further data that a viewer shows."""

    episode: Episode
    question: Question | None
    """Question of the episode; None if its text was not found."""
    hops: str | None
    """Number of hops; None if the data set does not contain it."""
    kind: str | None
    """Question type in the words of the data set; None if the data set has no types."""
    step: int | None
    """0-based training step; None outside training."""
    calls: list[CallRow]
    """Calls with their rewards and advantages; `parts` are empty if the rewards are unknown."""


@dataclass
class SavedRun:
    """Episodes of a training or of an evaluation, with the rewards and advantages of their calls."""

    files: RunReader
    """Reader of the run folder."""
    recipe: Recipe | None
    """Recipe of the training; None for an evaluation, or if it cannot be read."""
    advantages: Advantages
    """Advantages by call id; empty for an evaluation."""
    run_code: bool = False
    """Whether code that the recipe names may be imported."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Configuration of an evaluation, from ``run.json``; empty for a training."""
    rows: QuestionRows = field(default_factory=dict)
    """Scores of each question by id, from a finished evaluation; otherwise empty."""
    questions: Mapping[str, Question] = field(default_factory=dict)
    """Questions by id, if their texts are available."""
    trained: list[str] | None = None
    """Trained model keys; None if unknown: then every recorded advantage is shown."""
    rewards_known: bool = True
    """Whether the rewards of a training's calls can be computed; if false, they are skipped."""

    @classmethod
    def read(cls, path: Path, run_code: bool = False) -> SavedRun:
        """Reads a run folder, or its ``episodes.jsonl``.

        Args:
            path: The folder or file, which may come from a stranger.
            run_code: Whether code that the run's recipe names may be imported.

        Raises:
            DataMissingError: There are no episodes.
            CardError: The recipe of a training cannot be read.
        """
        files = open_folder(path)
        if not files.path.is_file():
            reason = "no episodes: a run writes them at the steps that log.episodes_every selects"
            raise DataMissingError(reason, files.path)
        recipe = read_recipe(files.folder / RECIPE) if files.is_training else None
        return cls(files, recipe, files.advantages(), run_code)

    @property
    def notes(self) -> list[str]:
        """Sentences about skipped data, with the reasons."""
        return self.files.notes

    @functools.cached_property
    def episodes(self) -> dict[str, Episode]:
        """All episodes by id."""
        return {episode.id: episode for episode in self.files.episodes()}

    @functools.cached_property
    def credit(self) -> Credit:
        """Credit of the training's recipe; see `credit_of`."""
        assert self.recipe is not None
        return credit_of(self.recipe, self.files.proposed(), self.run_code)

    def trained_keys(self) -> list[str]:
        """Returns the model keys that a training updates; empty for an evaluation."""
        if self.recipe is None:
            return []
        agent, roles = read_agent(self.recipe.agent)
        return [key.name for key in keys_of(self.recipe, roles, agent.name) if not key.frozen]

    def find(self, episode_id: str) -> Episode:
        """Returns the episode with the given id.

        Raises:
            UnknownNameError: The run has no such episode.
        """
        if episode_id not in self.episodes:
            raise UnknownNameError("episode", episode_id, self.episodes)
        return self.episodes[episode_id]

    def terms(self, episode: Episode) -> Terms:
        """Returns the rewards of an episode's calls: those of the training, or for an evaluation the outcome reward.

        Raises:
            UsageError: The recipe names code, and `run_code` is False.
        """
        if self.recipe is None:
            return {"outcome": outcome_rewards(episode)}
        return terms_of(episode, list(self.episodes.values()), self.credit)

    def __iter__(self) -> Iterator[Viewed]:
        """Yields the episodes in the order of the file; memory holds one training step at a time."""

        def step_of(episode: Episode) -> int | None:
            match = STEP.search(episode.id) if self.files.is_training else None
            return None if match is None else int(match[1])

        for step, group in itertools.groupby(self.files.episodes(), key=step_of):
            if step is None:
                for episode in group:
                    evaluated = not self.files.is_training
                    yield self._viewed(episode, step, {"outcome": outcome_rewards(episode)} if evaluated else {})
                continue
            episodes = list(group)
            terms: list[Terms] = [{} for _ in episodes]
            if self.rewards_known:
                try:
                    terms = [*terms_by_episode(episodes, self.credit)]
                except SearchGymError as error:
                    self.leave_out_rewards(error)
            for episode, rewards in zip(episodes, terms, strict=True):
                yield self._viewed(episode, step, rewards)

    def leave_out_rewards(self, error: SearchGymError) -> None:
        """Records why the rewards of a training's calls are unknown, and skips them from now on."""
        self.rewards_known = False
        self.notes.append(f"rewards of calls are left out: {error}")

    def _viewed(self, episode: Episode, step: int | None, terms: Terms) -> Viewed:
        question, row = self.questions.get(episode.question_id), self.rows.get(episode.question_id, {})
        return Viewed(
            episode,
            question,
            hops=row.get("hops") if question is None else hops_of(question),
            kind=row.get("type") if question is None else question.kind,
            step=step,
            calls=call_rows(episode, terms, self.advantages, self.trained),
        )

    def decoder(self, key: str, model: str | Path | None = None) -> Callable[[list[int]], str]:
        """Returns a function that decodes token ids of a model key.

        Args:
            key: Model key.
            model: Name or folder of the model whose tokenizer made the tokens. Default: the model that the run names.

        Raises:
            UsageError: The run does not name the key's model, or the model no longer exists.
        """
        name: str | Path = key
        if self.recipe is not None:
            names = {model_key: options.model or self.recipe.model for model_key, options in self.recipe.models.items()}
            name = (names or {POLICY: self.recipe.model}).get(key, key)
        try:
            folder = model or model_folder(name, ["*.json", "*.jinja", "*.model", "*.txt"])
        except DataMissingError as error:
            reason = f"the run does not tell where its model {key} is ({error}): give it with --model"
            raise UsageError(reason) from error
        from searchgym.rollout.loading import load_tokenizer  # loads torch
        from searchgym.rollout.tokens import decoder

        return decoder(load_tokenizer(folder))


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Returns the folders that hold episodes: a path itself if it does, else every such folder below it (a suite).

    Raises:
        DataMissingError: A path does not exist, or has no episodes in or below it.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        folder = path.parent if path.name == EPISODES else path
        if not folder.is_dir():
            raise DataMissingError("no such run: give the folder of an evaluation or a training", path)
        files = [folder / EPISODES] if (folder / EPISODES).is_file() else sorted(folder.rglob(EPISODES))
        runs = [file.parent for file in files if file.stat().st_size]
        if not runs:
            raise DataMissingError(
                f"no episodes: a run writes {EPISODES}; a training only at steps that log.episodes_every selects", path
            )
        folders |= dict.fromkeys(runs)
    return list(folders)


def open_run(folder: Path, questions: Path | None = None, run_code: bool = False) -> SavedRun:
    """Opens a run to view its episodes.

    Args:
        folder: Folder with ``episodes.jsonl``.
        questions: Question file with the texts of the questions. Default: they come from the run or its environment.
        run_code: Whether code that the run's recipe names (credit terms, the reward) may be imported.

    Raises:
        DataError: A required file of the run cannot be read.
    """
    files = RunReader(folder)
    record = files.record() if files.is_evaluation else {}
    run = SavedRun(files, None, files.advantages(), run_code, record, files.question_rows())
    if files.is_training:
        try:
            run.recipe = read_recipe(folder / RECIPE)
            run.trained = run.trained_keys()
        except SearchGymError as error:
            run.leave_out_rewards(error)
    try:
        if questions is not None:
            loaded = list(read_questions(questions))
        else:
            texts = recorded(run.rows)
            whole = run.rows and len(texts) == len(run.rows)
            loaded = [Question(id, text, tuple(golds) or ("",)) for id, (text, golds) in texts.items()] if whole else []
            loaded = loaded or questions_of_run(run)
        run.questions = {question.id: question for question in [*loaded, *files.proposed()]}
    except SearchGymError as error:
        if questions is not None:
            raise
        run.notes.append(f"texts of the questions are left out: {error}; --questions FILE gives them")
    return run


def questions_of_run(run: SavedRun) -> list[Question]:
    """Returns the questions of a run's environment, without loading its retriever or its reward.

    Raises:
        SearchGymError: The environment or its questions are missing, or differ from those of the run.
    """
    env = run.recipe.env if run.recipe is not None else run.record.get("env")
    if not isinstance(env, str):
        raise UsageError("the run does not name its environment")
    options = {} if run.recipe is None else run.recipe.env_options
    with code_refused():
        questions = list(searchless_task(env, {**options, "reward": "em"}).questions)
    digest, sample = run.record.get("questions_sha256"), run.record.get("drawn")
    some = questions
    if isinstance(sample, dict) and all(isinstance(sample.get(name), int) for name in ("n", "seed")):
        some = draw_subset(questions, sample["n"], sample["seed"])
    if digest is not None and questions_sha256(some) != digest:
        raise UsageError(f"the questions of {env} here are not those that were asked")
    return questions

"""Saved runs to look at: a stream of their episodes, with what is known of their questions, rewards and tokens.

A run folder may be somebody else's: what its recipe names as code is imported only if the user says so. What is missing
(questions, a tokenizer, a recipe that can be read) leaves something out and is said; only unreadable episodes are an
error.
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
from searchgym.eval.viewing.rewards import asked_task, credit_of, terms_by_episode, terms_of
from searchgym.named import code_refused
from searchgym.questions.subset import draw_subset
from searchgym.records import Episode, Question, hops_of
from searchgym.rollout.folders import model_folder
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.credit.credit import Credit
from searchgym.train.loop.folder import RECIPE, Advantages
from searchgym.train.recipe.keys import POLICY, keys_of
from searchgym.train.recipe.load import read_recipe
from searchgym.train.recipe.recipe import Recipe

STEP: Final = re.compile(r"@(\d+)$")
"""End of the id of a training episode: its step."""


@dataclass(frozen=True, slots=True)
class Viewed:
    """One episode with what a viewer shows beside it."""

    episode: Episode
    question: Question | None
    """The question that was asked; None if its text was not found."""
    hops: str | None
    """Number of hops, if the data set gives it."""
    kind: str | None
    """Question type as the data set calls it."""
    step: int | None
    """0-based training step; None outside training."""
    calls: list[CallRow]
    """The calls with their rewards and advantages; `parts` are empty where the rewards are not known."""


@dataclass
class SavedRun:
    """Episodes of a training or of an evaluation, with the rewards and advantages of their calls."""

    files: RunReader
    recipe: Recipe | None
    """Recipe of the training; None for an evaluation, or if it cannot be read."""
    advantages: Advantages
    """Advantages by call id; empty for an evaluation."""
    run_code: bool = False
    """Whether what the recipe names as code is imported."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What an evaluation says of itself; empty for a training."""
    rows: QuestionRows = field(default_factory=dict)
    """Scores of each question by id, as a finished evaluation wrote them."""
    questions: Mapping[str, Question] = field(default_factory=dict)
    """Questions by id, as far as they were found."""
    trained: list[str] | None = None
    """Model keys that are trained; None if not known, then every recorded advantage is shown."""
    rewards_known: bool = True
    """Whether rewards of a training's calls are looked for, rather than left out."""

    @classmethod
    def read(cls, path: Path, run_code: bool = False) -> SavedRun:
        """Reads a run folder, or its ``episodes.jsonl``.

        Args:
            path: The folder or file, which may be somebody else's.
            run_code: Whether what the run's recipe names as code may be imported.

        Raises:
            DataMissingError: There are no episodes.
            CardError: The recipe of a training cannot be read.
        """
        files = open_folder(path)
        if not files.path.is_file():
            reason = "no episodes: a run writes them in the steps that log.episodes_every says"
            raise DataMissingError(reason, files.path)
        recipe = read_recipe(files.folder / RECIPE) if files.is_training else None
        return cls(files, recipe, files.advantages(), run_code)

    @property
    def notes(self) -> list[str]:
        """What was left out, and why."""
        return self.files.notes

    @functools.cached_property
    def episodes(self) -> dict[str, Episode]:
        """Every episode by its id."""
        return {episode.id: episode for episode in self.files.episodes()}

    @functools.cached_property
    def credit(self) -> Credit:
        """Credit of a training; see `credit_of`."""
        assert self.recipe is not None
        return credit_of(self.recipe, self.files.proposed(), self.run_code)

    def trained_keys(self) -> list[str]:
        """Returns the model keys that a training trains; none of an evaluation."""
        if self.recipe is None:
            return []
        agent, roles = read_agent(self.recipe.agent)
        return [key.name for key in keys_of(self.recipe, roles, agent.name) if not key.frozen]

    def find(self, episode_id: str) -> Episode:
        """Returns the episode with an id.

        Raises:
            UnknownNameError: The run has no such episode.
        """
        if episode_id not in self.episodes:
            raise UnknownNameError("episode", episode_id, self.episodes)
        return self.episodes[episode_id]

    def terms(self, episode: Episode) -> Terms:
        """Returns the rewards that training gave an episode's calls; those of an evaluation by the outcome alone.

        Raises:
            UsageError: The recipe names code, and `run_code` is False.
        """
        if self.recipe is None:
            return {"outcome": outcome_rewards(episode)}
        return terms_of(episode, list(self.episodes.values()), self.credit)

    def __iter__(self) -> Iterator[Viewed]:
        """Yields the episodes in the order in which they were written; holds one training step in memory."""

        def step_of(episode: Episode) -> int | None:
            found = STEP.search(episode.id) if self.files.is_training else None
            return None if found is None else int(found[1])

        for step, group in itertools.groupby(self.files.episodes(), key=step_of):
            if step is None:
                for episode in group:
                    known = not self.files.is_training
                    yield self._viewed(episode, step, {"outcome": outcome_rewards(episode)} if known else {})
                continue
            episodes = list(group)
            terms: list[Terms] = [{} for _ in episodes]
            if self.rewards_known:
                try:
                    terms = [*terms_by_episode(episodes, self.credit)]
                except SearchGymError as error:
                    self.leave_out_rewards(error)
            for episode, own in zip(episodes, terms, strict=True):
                yield self._viewed(episode, step, own)

    def leave_out_rewards(self, error: SearchGymError) -> None:
        """Notes why the rewards of a training's calls are not known, and looks for them no more."""
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
        """Returns a function from token ids of a model key to text.

        Args:
            key: The model key.
            model: Name or folder of the model whose tokenizer wrote the tokens; by default the run's own.

        Raises:
            UsageError: The run does not name the key's model, or it is no longer there.
        """
        name: str | Path = key
        if self.recipe is not None:
            names = {own: options.model or self.recipe.model for own, options in self.recipe.models.items()}
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
    """Returns the folders with episodes: each path itself, or those below it (a suite, the parts of a demonstration).

    Raises:
        DataMissingError: A path does not exist, or no episodes are in or below it.
    """
    found: dict[Path, None] = {}
    for path in paths:
        folder = path.parent if path.name == EPISODES else path
        if not folder.is_dir():
            raise DataMissingError("no such run: give the folder of an evaluation or a training", path)
        files = [folder / EPISODES] if (folder / EPISODES).is_file() else sorted(folder.rglob(EPISODES))
        runs = [file.parent for file in files if file.stat().st_size]
        if not runs:
            raise DataMissingError(
                f"no episodes: a run writes {EPISODES}; a training only in the steps that log.episodes_every says", path
            )
        found |= dict.fromkeys(runs)
    return list(found)


def open_run(folder: Path, questions: Path | None = None, run_code: bool = False) -> SavedRun:
    """Opens a run to look at all of its episodes.

    Args:
        folder: Folder with ``episodes.jsonl``.
        questions: Question file with the texts of the questions; by default they come from the run, or from its
            environment.
        run_code: Import what the run's recipe names as code: its credit terms and its reward.

    Raises:
        DataError: A file of the run that must be read cannot be.
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
            asked = list(read_questions(questions))
        else:
            texts = recorded(run.rows)
            whole = run.rows and len(texts) == len(run.rows)
            asked = [Question(id, text, tuple(golds) or ("",)) for id, (text, golds) in texts.items()] if whole else []
            asked = asked or load_asked(run)
        run.questions = {question.id: question for question in [*asked, *files.proposed()]}
    except SearchGymError as error:
        if questions is not None:
            raise
        run.notes.append(f"texts of the questions are left out: {error}; --questions FILE gives them")
    return run


def load_asked(run: SavedRun) -> list[Question]:
    """Returns the questions of a run's environment, without loading its retriever or its reward.

    Raises:
        SearchGymError: The environment or its questions are not here, or are not those that were asked.
    """
    env = run.recipe.env if run.recipe is not None else run.record.get("env")
    if not isinstance(env, str):
        raise UsageError("the run does not name its environment")
    given = {} if run.recipe is None else run.recipe.env_options
    with code_refused():
        asked = list(asked_task(env, {**given, "reward": "em"}).questions)
    digest, drawn = run.record.get("questions_sha256"), run.record.get("drawn")
    some = asked
    if isinstance(drawn, dict) and all(isinstance(drawn.get(name), int) for name in ("n", "seed")):
        some = draw_subset(asked, drawn["n"], drawn["seed"])
    if digest is not None and questions_sha256(some) != digest:
        raise UsageError(f"the questions of {env} here are not those that were asked")
    return asked

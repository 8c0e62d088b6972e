"""A run's episodes as a stream to look at, with what is known of their questions, rewards and tokens.

A run folder may be somebody else's: what its recipe names as code is imported only if the user says so. What is missing
(questions, a tokenizer, a recipe that can be read) leaves something out and is said; only unreadable episodes are an
error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import read_agent
from searchgym.corpora.files import iter_jsonl, read_json
from searchgym.corpora.questions import read_questions
from searchgym.errors import BadLines, DataError, DataMissingError, SearchGymError, UsageError
from searchgym.eval.report.questions import recorded
from searchgym.eval.runner import QUESTIONS, questions_sha256
from searchgym.eval.viewing.explain import ExplainedCall, explained_calls
from searchgym.eval.viewing.saved import Advantages, Terms, asked_task, credit_of, terms_by_episode
from searchgym.named import code_refused
from searchgym.questions.subset import draw_subset
from searchgym.records import Episode, Question, hops_of
from searchgym.rollout.folders import model_folder
from searchgym.rollout.storage import read_episodes
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.credit.credit import Credit
from searchgym.train.loop.folder import ADVANTAGES, EPISODES, PROPOSED, RECIPE, read_advantages
from searchgym.train.recipe.keys import POLICY, keys_of
from searchgym.train.recipe.load import read_recipe
from searchgym.train.recipe.recipe import Recipe

STEP: Final = re.compile(r"@(\d+)$")
"""End of the id of a training episode: its step."""
RECORD: Final = "run.json"

Say = Callable[[str], None]


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
    calls: list[ExplainedCall]
    """The calls with their rewards and advantages; `parts` are empty where the rewards are not known."""


@dataclass(slots=True)
class Run:
    """A run that was found in a folder, open to be read as a stream."""

    folder: Path
    record: dict[str, Any]
    """Content of ``run.json``; empty for a training."""
    recipe: Recipe | None
    """Recipe of the training; None for an evaluation, or if it cannot be read."""
    questions: Mapping[str, Question]
    """Questions by id, as far as they were found."""
    rows: Mapping[str, dict[str, Any]]
    """Scores of each question by id, as a finished evaluation wrote them."""
    credit: Credit | None
    """Credit of a training; None if it is not known, then calls of a training have no rewards."""
    trained: list[str] | None
    """Model keys that are trained; None if not known, then every recorded advantage is shown."""
    advantages: Advantages
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""

    @property
    def path(self) -> Path:
        """File of the episodes."""
        return self.folder / EPISODES

    @property
    def is_training(self) -> bool:
        """Whether a training wrote the run."""
        return (self.folder / RECIPE).is_file()

    def __iter__(self) -> Iterator[Viewed]:
        """Yields the episodes in the order in which they were written; holds one training step in memory."""
        for step, group in itertools.groupby(self._episodes(), key=self._step):
            if step is None:
                yield from (self._viewed(episode, step, self._outcome(episode)) for episode in group)
                continue
            episodes = list(group)
            for episode, terms in zip(episodes, self._terms(episodes), strict=True):
                yield self._viewed(episode, step, terms)

    def _episodes(self) -> Iterator[Episode]:
        """Yields the episodes up to a last line that is only half there, as in a run that is going on."""
        with self.path.open("rb") as file:
            whole = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        try:
            yield from read_episodes(self.path)
        except DataError as error:
            if error.line is None or error.line <= whole:
                raise
            self.notes.append(
                f"line {error.line} of {self.path} is incomplete and left out: the run is going on, or was killed"
            )

    def _step(self, episode: Episode) -> int | None:
        found = STEP.search(episode.id) if self.is_training else None
        return None if found is None else int(found[1])

    def _outcome(self, episode: Episode) -> Terms:
        """Returns the rewards of an evaluation's calls: the outcome alone, as `searchgym show` has them."""
        return {"outcome": outcome_rewards(episode)} if not self.is_training else {}

    def _terms(self, episodes: list[Episode]) -> list[Terms]:
        """Returns the rewards of a training step's calls; empty where they are not known."""
        if self.credit is not None:
            try:
                return terms_by_episode(episodes, self.credit)
            except SearchGymError as error:
                self.credit = None
                self.notes.append(f"rewards of calls are left out: {error}")
        return [{} for _ in episodes]

    def _viewed(self, episode: Episode, step: int | None, terms: Terms) -> Viewed:
        question, row = self.questions.get(episode.question_id), self.rows.get(episode.question_id, {})
        trained = {call.model_key for call in episode.calls} if self.trained is None else self.trained
        return Viewed(
            episode,
            question,
            hops=row.get("hops") if question is None else hops_of(question),
            kind=row.get("type") if question is None else question.kind,
            step=step,
            calls=explained_calls(episode, terms, self.advantages, list(trained)),
        )


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
        own = [folder] if (folder / EPISODES).is_file() else sorted(f.parent for f in folder.rglob(EPISODES))
        own = [run for run in own if (run / EPISODES).stat().st_size]
        if not own:
            raise DataMissingError(
                f"no episodes: a run writes {EPISODES}; a training only in the steps that log.episodes_every says", path
            )
        found |= dict.fromkeys(own)
    return list(found)


def open_run(folder: Path, questions: Path | None = None, run_code: bool = False) -> Run:
    """Opens a run to look at.

    Args:
        folder: Folder with ``episodes.jsonl``.
        questions: Question file with the texts of the questions; by default they come from the run, or from its
            environment.
        run_code: Import what the run's recipe names as code: its credit terms and its reward.

    Raises:
        DataError: A file of the run that must be read cannot be.
    """
    run = Run(folder, _record(folder), None, {}, _rows(folder), None, None, {})
    if (folder / ADVANTAGES).is_file():
        bad = BadLines(1)  # the last line of a run that is going on
        try:
            run.advantages = read_advantages(folder / ADVANTAGES, bad)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not advantages of calls: {type(error).__name__}: {error}", folder / ADVANTAGES) from error
        run.notes += [f"an advantage is left out: {error}" for error in bad.errors]
    if run.is_training:
        _add_training(run, run_code)
    try:
        asked = (recorded_questions(run) or load_asked(run)) if questions is None else read_questions(questions)
        run.questions = {question.id: question for question in [*asked, *_proposed(folder)]}
    except SearchGymError as error:
        if questions is not None:
            raise
        run.notes.append(f"texts of the questions are left out: {error}; --questions FILE gives them")
    return run


def _record(folder: Path) -> dict[str, Any]:
    """Returns what an evaluation says of itself; empty if the folder has no such file."""
    if not (folder / RECORD).is_file():
        return {}
    record = read_json(folder / RECORD)
    if not isinstance(record, dict):
        raise DataError("damaged: expected what was run", folder / RECORD)
    return record


def _rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of each question of a finished evaluation."""
    path = folder / QUESTIONS
    return {str(row["id"]): row for _, row in iter_jsonl(path) if "id" in row} if path.is_file() else {}


def _proposed(folder: Path) -> list[Question]:
    """Returns the questions that were proposed for a training."""
    path = folder / PROPOSED
    return list(read_questions(path)) if path.is_file() and path.stat().st_size else []


def _add_training(run: Run, run_code: bool) -> None:
    """Adds the recipe, the credit and the trained keys of a training, as far as they can be had."""
    try:
        run.recipe = read_recipe(run.folder / RECIPE)
        agent, roles = read_agent(run.recipe.agent)
        run.trained = [key.name for key in keys_of(run.recipe, roles, agent.name) if not key.frozen]
        run.credit = credit_of(run.recipe, run.folder / PROPOSED, run_code)
    except SearchGymError as error:
        run.notes.append(f"rewards of calls are left out: {error}")


def recorded_questions(run: Run) -> list[Question]:
    """Returns the questions of an evaluation with the texts that it recorded; none if it did not record all of them."""
    found = recorded(run.rows)
    if not run.rows or len(found) < len(run.rows):
        return []
    return [Question(id, text, tuple(golds) or ("",)) for id, (text, golds) in found.items()]


def load_asked(run: Run) -> list[Question]:
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


def decoder_of(run: Run, model: str | Path | None = None) -> Callable[[str, Iterable[int]], str | None]:
    """Returns a function from a model key and token ids to text, None where its tokenizer is not here, noted once.

    Args:
        run: The run.
        model: Name or folder of the model whose tokenizer wrote the tokens; by default the run's own.
    """
    names = {}
    if run.recipe is not None:
        names = {name: own.model or run.recipe.model for name, own in run.recipe.models.items()}
        names = names or {POLICY: run.recipe.model}
    loaded: dict[str, Callable[[list[int]], str] | None] = {}

    def load(key: str) -> Callable[[list[int]], str] | None:
        try:
            folder = model or model_folder(names.get(key) or key, ["*.json", "*.jinja", "*.model", "*.txt"])
            from searchgym.rollout.loading import load_tokenizer  # loads torch
            from searchgym.rollout.tokens import decoder

            return decoder(load_tokenizer(folder))
        except (SearchGymError, ImportError) as error:
            run.notes.append(f"prompts are left out: the tokenizer of {key} is not here ({error}); --model gives it")
            return None

    def decode(key: str, ids: Iterable[int]) -> str | None:
        if key not in loaded:
            loaded[key] = load(key)
        text_of = loaded[key]
        return None if text_of is None else text_of(list(ids))

    return decode

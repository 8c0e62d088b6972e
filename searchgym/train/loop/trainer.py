"""The training loop: each step samples episodes, prepares samples, learns, publishes the weights and logs.

A step is a function of the recipe, the weights and the step's number: every random generator is seeded by (seed,
purpose, step), so the step counter is its only state. With the optimizer's moments restored, a resumed run therefore
equals an uninterrupted one bit for bit, if the rollout is deterministic too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.errors import ModelError, SearchGymError, TrainingError, UsageError
from searchgym.questions.subset import draw_subset, mixture_lines
from searchgym.threads import interrupt_held_back
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.ahead import Ahead
from searchgym.train.loop.checkpoint import (
    Progress,
    checkpoint_name,
    keep_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from searchgym.train.loop.collect import STATE, Collector, StepData, TrainingData
from searchgym.train.loop.folder import Row, RunFolder
from searchgym.train.loop.guards import Phases, Watchdog, bound_warning, check_guards, pace, signal_warning
from searchgym.train.loop.rollout import SamplerHooks, generated_tokens, validation_metrics
from searchgym.train.recipe.load import imported
from searchgym.train.recipe.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The outcome of a run: its counters, metrics and checkpoints."""

    progress: Progress
    """Counters at the end of the run."""
    rows: list[Row]
    """Metrics of every step, as in ``metrics.jsonl``."""
    checkpoint: Path
    """Folder of the last checkpoint."""
    best: Path | None
    """Folder of the checkpoint with the best validation score; None if nothing was validated."""


class Trainer:
    """A training run: loop, validation, checkpoints and logs.

    Args:
        recipe: Settings of the run.
        out: The run folder.
        learner: Learner with the weights; closed at the end of the run.
        tokenizer: Tokenizer to save with each checkpoint; None if the learner saves its own.
        data: Questions, demonstrations and credit.
        hooks: Functions of the sampler. Default: no sampler.
        report: Called with each row of metrics.
        resume: If True, continue the run in the folder.

    Raises:
        RunExistsError: See `RunFolder`.
        UsageError: There are too few questions, or the method needs demonstrations or a rollout that is missing.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        *,
        learner: Learner,
        tokenizer: PreTrainedTokenizerBase | None,
        data: TrainingData,
        hooks: SamplerHooks | None = None,
        report: Callable[[Row], None] | None = None,
        resume: bool = False,
    ) -> None:
        self.recipe, self.learner, self.tokenizer = imported(recipe), learner, tokenizer
        self._hooks, self._report = hooks or SamplerHooks(), report
        self.collector = Collector(self.recipe, learner, self._hooks.rollout, data)
        self.validation = draw_subset(data.validation, recipe.validation.questions) if recipe.validation.every else []
        self._data = data
        curriculum = self.recipe.curriculum
        self._properties = ("kind", "hops") if curriculum is None else (curriculum.by,)
        if self.validation and self._hooks.rollout is None:
            raise UsageError("validating on questions needs a rollout")
        self._ahead: Ahead | None = None
        self.progress = Progress()
        self._state: dict[str, Any] = {"source": {}}
        self._clean = True
        self.folder = RunFolder(out, recipe, resume=resume)
        self._watchdog = Watchdog(out, self._rescue)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Trains to the end of the recipe.

        Returns:
            The outcome of the run.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; a checkpoint of the last complete step was written first. During an
                update the step is finished first; a second Ctrl-C stops at once, without a new checkpoint.
            TrainingError: A number is not finite, a rank hangs, or a metric is out of bounds. The message names the
                last good checkpoint.
        """
        with self.folder, closing(self.learner):
            self._restore()
            questions = self._data.questions
            listed = questions if isinstance(questions, Sequence) and not self.recipe.method.demonstrated else ()
            sys.stderr.write("".join(f"{line}\n" for line in mixture_lines(listed, self.validation)))
            try:
                if not self.folder.rows:
                    self._finish_step({})
                if bound := self.recipe.rollout.staleness:
                    first, end = self.progress.step, self.recipe.steps
                    self._ahead = Ahead(self.collector.draw, first, end, bound, self._hooks.give_up)
                while not self._finished():
                    self._step()
                self._save()
            except KeyboardInterrupt:
                if self._clean:
                    self._rescue()
                raise
            except ModelError as error:  # the sampler has failed, but the learner works
                saved = self._rescue()
                raise type(error)(f"{error}; checkpoint: {saved or 'none'}") from error
            except TrainingError as error:
                good = self.folder.newest_checkpoint()
                raise type(error)(f"{error}; last good checkpoint: {good or 'none'}") from error
            finally:
                if self._ahead is not None:
                    self._ahead.close()
            last = self.folder.checkpoints / checkpoint_name(self.progress.step)
            best = self.progress.best_step
            best_path = None if best is None else self.folder.checkpoints / checkpoint_name(best)
            return TrainResult(self.progress, list(self.folder.rows), last, best_path)

    def _step(self) -> None:
        """Runs one step: samples, prepares, learns, publishes and logs."""
        step, hooks = self.progress.step, self._hooks
        phases = Phases(self._watchdog, self.recipe.deadline, step + 1)
        with phases("rollout"):
            data = self.collector.draw(step) if self._ahead is None else self._ahead.take(step)
        with phases("preparing"):  # the learner may compute values and log-probs
            if hooks.rest is not None:
                hooks.rest()
            data = self.collector.prepared(data)
        self._clean = False
        with interrupt_held_back():  # this block runs to its end: Ctrl-C waits
            with phases.clock("writing"):
                self.folder.write_questions(data.questions)
                self.folder.write_episodes(step + 1, data.episodes, data.samples)
            with phases("learning"):
                metrics = self.learner.learn(data.samples, step) if data.samples else {"updates": 0.0}
                learnt = {name if "/" in name else f"learner/{name}": value for name, value in metrics.items()}
            if data.samples or hooks.rest is not None:
                with phases("publishing"):
                    hooks.publish(self.learner.version)
                    if hooks.probe is not None and data.samples:
                        learnt |= hooks.probe(data.samples)
            self._log(data, learnt, phases)
            self._clean = True
        check_guards(self.folder.rows, self.recipe.guard)
        warnings = (
            self.recipe.advantage.estimator.warning(rows := self.folder.rows),
            bound_warning(rows, self.recipe.guard),
            signal_warning(rows),
            None if self.recipe.curriculum is None else self.recipe.curriculum.warning(rows),
        )
        for warning in filter(None, warnings):
            sys.stderr.write(f"warning: {warning}\n")

    def _log(self, data: StepData, learnt: Row, phases: Phases) -> None:
        """Counts the step as done, writes its metrics, and allows a later step to be sampled."""
        row = data.row | learnt | {"memory/draw": phases.peak("rollout", "preparing")}
        row |= pace("draw", data.seconds + phases.seconds("preparing"), data.tokens)
        if self._ahead is not None:
            row["time/waited"] = phases.seconds("rollout")
        seconds = phases.seconds("writing", "learning", "publishing")
        row |= pace("learn", seconds, learnt.get("learner/tokens_read", 0.0))
        self.progress.step += 1
        self.progress.generated_tokens += data.tokens
        self.progress.read_tokens += round(learnt.get("learner/tokens_read", 0.0))
        self._state = {name: getattr(data, name) for name in STATE}
        self._finish_step(row)
        if self._ahead is not None:
            self._ahead.learnt(self.progress.step)

    def _finish_step(self, row: Row) -> None:
        """Validates if that is due, writes the step's metrics, and saves a checkpoint if one is due."""
        recipe, step = self.recipe, self.progress.step
        better = False
        if self.validation and (step % recipe.validation.every == 0 or self._finished()):
            validated, better = self._validate()
            row |= validated
        row["generated_tokens"] = float(self.progress.generated_tokens)
        row["read_tokens"] = float(self.progress.read_tokens)
        self.folder.log(step, row)
        if better or (recipe.checkpoint.every and step and step % recipe.checkpoint.every == 0):
            self._save()
        if self._report is not None:
            self._report(self.folder.rows[-1])

    def _validate(self) -> tuple[Row, bool]:
        """Answers the validation questions greedily.

        Returns:
            The metrics, and True if the score is the best so far.
        """
        assert self._hooks.rollout is not None
        step, metric = self.progress.step, self.recipe.validation.metric
        phases = Phases(self._watchdog, self.recipe.deadline, step)
        with ExitStack() as alone:
            if self._ahead is not None:  # the sampler serves one caller at a time
                with phases("rollout"):
                    alone.enter_context(self._ahead.paused())
            with phases("validation"):
                episodes = self._hooks.rollout(self.validation, 1, step, True)
                scores = validation_metrics(episodes, self.validation, self._properties)
        if metric not in scores:
            raise UsageError(f"validation.metric is {metric!r}, the episodes have {', '.join(sorted(scores))}")
        row = {f"validation/{name}": value for name, value in scores.items()}
        row |= pace("validation", phases.seconds("validation"), generated_tokens(episodes))
        row["memory/validation"] = phases.peak("validation")
        better = self.progress.best_score is None or scores[metric] > self.progress.best_score
        if better:
            self.progress.best_step, self.progress.best_score = step, scores[metric]
        return row, better

    def _finished(self) -> bool:
        """Returns True once the recipe's steps are done or its tokens are spent."""
        recipe, progress = self.recipe, self.progress
        if recipe.max_generated_tokens is not None and progress.generated_tokens >= recipe.max_generated_tokens:
            return True
        if recipe.max_read_tokens is not None and progress.read_tokens >= recipe.max_read_tokens:
            return True
        return progress.step >= recipe.steps

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save(self) -> Path:
        """Saves a checkpoint of the current step unless it exists, and deletes old checkpoints."""
        with interrupt_held_back():
            folder, progress = self.folder.checkpoints, self.progress
            path = folder / checkpoint_name(progress.step)
            if not path.exists():
                state: dict[str, Any] = {"progress": asdict(progress), "files": self.folder.sizes()}
                state |= self._state | {"validation": [question.id for question in self.validation]}
                save_checkpoint(path, self.learner, self.tokenizer, state)
                if self.recipe.log.curve:
                    self.folder.plot_curve(self.recipe.validation.metric)
                if self._hooks.journal is not None:
                    self._hooks.journal.saved(progress.step)
            keep_checkpoints(folder, progress.step, progress.best_step, self.recipe.checkpoint.keep_last)
            return path

    def _rescue(self) -> Path | None:
        """Saves a checkpoint if no step is half done and the learner responds; returns the newest checkpoint."""
        if self._clean:
            try:
                return self._save()
            except SearchGymError as error:  # the disk is full, or ranks have died
                sys.stderr.write(f"error: no checkpoint of step {self.progress.step}: {error}\n")
        return self.folder.newest_checkpoint()

    def _restore(self) -> None:
        """Restores the newest checkpoint if one exists, opens the folder's files, and publishes the weights."""
        newest = self.folder.newest_checkpoint()
        sizes: dict[str, int] = {}
        if newest is not None:
            state = load_checkpoint(newest, self.learner)
            self.progress = Progress(**state["progress"])
            sizes = state["files"]
            self._state = {name: state[name] for name in STATE if name in state}
            by_id = {question.id: question for question in self._data.validation}
            if by_id.keys() >= set(state["validation"]):
                self.validation = [by_id[id] for id in state["validation"]]
        self.folder.start(sizes, self.progress.step)
        if self._hooks.journal is not None:
            self._hooks.journal.start(self.progress.step)
        self._hooks.publish(self.learner.version)
        self.collector.restore(self._state, self.folder.episodes)

"""The training loop: rollout, rewards, advantages, update, validation, checkpoint.

One step is a function of the recipe, the weights and the step's number: every generator is seeded by (seed, purpose,
step), so its state is the step counter. Together with the optimizer's moments that makes a resumed run equal to an
uninterrupted one, bit for bit, as long as the rollout keeps the same promise.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from searchgym.errors import ModelError, SearchGymError, TrainingError, UsageError
from searchgym.records import Question
from searchgym.train.algorithms.credit import Credit
from searchgym.train.algorithms.samples import Sample
from searchgym.train.interrupts import interrupt_held_back
from searchgym.train.learner.learner import Learner
from searchgym.train.memory import peak_gib, reset_peak
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.ahead import Ahead
from searchgym.train.run.checkpoint import (
    checkpoint_name,
    link_checkpoint,
    list_checkpoints,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from searchgym.train.run.draw import Drawer, Rollout
from searchgym.train.run.folder import Row, RunFolder
from searchgym.train.run.guards import Watchdog, check_guards
from searchgym.train.run.metrics import generated_tokens, validation_metrics

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LATER = 30.0
"""Seconds after the learner's own deadline until the watchdog's."""


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    step: int = 0
    """Steps done."""
    generated_tokens: int = 0
    """Sampled for training so far, not counting validation."""
    best_step: int | None = None
    best_score: float | None = None


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run came to."""

    progress: Progress
    rows: list[Row]
    """The metrics of every step, as in ``metrics.jsonl``."""
    checkpoint: Path
    """The last checkpoint."""
    best: Path
    """The checkpoint with the best validation score; the last one if nothing was validated."""


class Trainer:
    """One training run.

    Args:
        recipe: What to do.
        out: The run folder.
        learner: Has the weights; it is closed at the end of the run.
        tokenizer: Saved with each checkpoint; None where the learner saves its own.
        rollout: Makes episodes; not needed for ``method: supervised`` without validation.
        questions: To train on.
        validation: To validate on; the recipe says how many are used, from the start.
        demonstrations: To learn from, with ``method: supervised``.
        trained: Model keys that are trained; what others sampled is left out. All if not given.
        credit: Rewards calls; the outcome alone if not given.
        publish: Called with the version of the weights before the first rollout and after each update: gives them to
            a sampler that does not share the learner's memory.
        probe: Called with a step's samples after new weights were given to the sampler: looks whether it has them.
        rest: Called before the model is updated: a sampler on the learner's GPU gives memory back, until `publish`.
        give_up: Called when a rollout that another thread makes is not needed any more (``rollout.staleness``).
        report: Called with each row of metrics.
        resume: Go on with the run in the folder.

    Raises:
        RunExistsError: See `RunFolder`.
        UsageError: Too few questions, or something the method needs is missing.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        *,
        learner: Learner,
        tokenizer: PreTrainedTokenizerBase | None,
        rollout: Rollout | None = None,
        questions: Sequence[Question] = (),
        validation: Sequence[Question] = (),
        demonstrations: Sequence[Sample] = (),
        trained: Sequence[str] | None = None,
        credit: Credit | None = None,
        publish: Callable[[int], None] | None = None,
        probe: Callable[[Sequence[Sample]], Row] | None = None,
        rest: Callable[[], None] | None = None,
        give_up: Callable[[], None] = lambda: None,
        report: Callable[[Row], None] | None = None,
        resume: bool = False,
    ) -> None:
        self.recipe, self.learner, self.tokenizer = recipe, learner, tokenizer
        self.drawer = Drawer(recipe, learner, rollout, questions, demonstrations, trained, credit)
        self.validation = validation[: recipe.validation.questions] if recipe.validation.every else ()
        if self.validation and rollout is None:
            raise UsageError("validating on questions needs a rollout")
        self._rollout, self._publish, self._probe, self._report = rollout, publish, probe, report
        self._rest, self._give_up = rest, give_up
        self._ahead: Ahead | None = None
        self.progress = Progress()
        self._clean = True
        self.folder = RunFolder(out, recipe, resume=resume)
        self._watchdog = Watchdog(out, self._rescue)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Trains to the end of the recipe.

        Raises:
            KeyboardInterrupt: Ctrl-C, after a checkpoint of the last whole step was written. While the weights are
                being updated it waits for the step to end; a second one does not, and leaves the last checkpoint.
            TrainingError: Something is not finite, hangs, or left the range of a guard; names the last good checkpoint.
        """
        with self.folder, closing(self.learner):
            self._restore()
            try:
                if not self.folder.rows:
                    self._finish_step({})
                self._draw_ahead()
                while not self._finished():
                    self._step()
                self._save()
            except KeyboardInterrupt:
                if self._clean:
                    self._rescue()
                raise
            except ModelError as error:  # the sampler is gone, the learner is not
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
            best_path = last if best is None else self.folder.checkpoints / checkpoint_name(best)
            return TrainResult(self.progress, self.folder.rows, last, best_path)

    def _draw_ahead(self) -> None:
        """Has a thread draw the steps that are left, if the recipe lets samples be stale."""
        if bound := self.recipe.rollout.staleness:
            step = self.progress.step
            self._ahead = Ahead(self.drawer.draw, step, self.recipe.steps, bound, self._give_up)

    def _step(self) -> None:
        """Makes one step: samples, one update or more, validation, metrics, checkpoint."""
        started, limits = time.perf_counter(), self.recipe.deadline
        reset_peak()
        with self._watchdog.phase("rollout", self.progress.step + 1, limits.rollout):
            take = self.drawer.draw if self._ahead is None else self._ahead.take
            draw = take(self.progress.step)
        waited, ready = time.perf_counter() - started, time.perf_counter()
        # later than a learner of several ranks, which knows which of them hangs
        with self._watchdog.phase("preparing", self.progress.step + 1, limits.learn + LATER):
            if self._rest is not None:
                self._rest()
            draw = self.drawer.prepared(draw)
        drawn, memory = time.perf_counter(), peak_gib()
        with self._whole_step():
            self.folder.write_episodes(self.progress.step + 1, draw.episodes, draw.samples)
            with self._watchdog.phase("learning", self.progress.step + 1, limits.learn + LATER):
                learnt = self._learn(draw.samples)
            if draw.samples or self._rest is not None:
                with self._watchdog.phase("publishing", self.progress.step + 1, limits.learn + LATER):
                    learnt |= self._pass_on(draw.samples)
            row = draw.row | learnt | {"memory/draw": memory}
            row |= _pace("draw", draw.seconds + drawn - ready, draw.tokens)
            if self._ahead is not None:
                row["time/waited"] = waited
            row |= _pace("learn", time.perf_counter() - drawn, learnt.get("learner/tokens_read", 0.0))
            self.progress.step += 1
            self.progress.generated_tokens += draw.tokens
            self._finish_step(row)
            if self._ahead is not None:
                self._ahead.learnt(self.progress.step)
        check_guards(self.folder.rows, self.recipe.guard)

    def _learn(self, samples: Sequence[Sample]) -> Row:
        """Updates the model; without a sample to learn from it stays as it is."""
        if not samples:
            return {"learner/updates": 0.0}
        metrics = self.learner.learn(samples, self.progress.step)
        return {name if "/" in name else f"learner/{name}": value for name, value in metrics.items()}

    def _pass_on(self, samples: Sequence[Sample]) -> Row:
        """Gives the sampler the weights, and looks whether it has them."""
        if self._publish is not None:
            self._publish(self.learner.version)
        return {} if self._probe is None or not samples else self._probe(samples)

    def _finish_step(self, row: Row) -> None:
        """Validates where it is due, writes the step's metrics, and a checkpoint where one is due."""
        recipe, step = self.recipe, self.progress.step
        better = False
        if self.validation and (step % recipe.validation.every == 0 or self._finished()):
            validated, better = self._validate()
            row |= validated
        row["generated_tokens"] = float(self.progress.generated_tokens)
        self.folder.log(step, row)
        if better or (recipe.checkpoint.every and step and step % recipe.checkpoint.every == 0):
            self._save()
        if self._report is not None:
            self._report(self.folder.rows[-1])

    def _validate(self) -> tuple[Row, bool]:
        """Asks the validation questions greedily; returns the scores, and whether they are the best so far."""
        assert self._rollout is not None
        with ExitStack() as alone:
            if self._ahead is not None:  # the sampler is asked by one of them at a time
                with self._watchdog.phase("rollout", self.progress.step, self.recipe.deadline.rollout):
                    alone.enter_context(self._ahead.paused())
            started = time.perf_counter()
            reset_peak()
            with self._watchdog.phase("validation", self.progress.step, self.recipe.deadline.validation):
                episodes = self._rollout(self.validation, 1, self.progress.step, True)
        scores = validation_metrics(episodes, self.validation)
        metric = self.recipe.validation.metric
        if metric not in scores:
            raise UsageError(f"validation.metric is {metric!r}, the episodes have {', '.join(sorted(scores))}")
        row = {f"validation/{name}": value for name, value in scores.items()}
        row |= _pace("validation", time.perf_counter() - started, generated_tokens(episodes))
        row["memory/validation"] = peak_gib()
        better = self.progress.best_score is None or scores[metric] > self.progress.best_score
        if better:
            self.progress.best_step, self.progress.best_score = self.progress.step, scores[metric]
        return row, better

    def _finished(self) -> bool:
        """True once the recipe's steps are made or its tokens spent."""
        limit = self.recipe.max_generated_tokens
        spent = limit is not None and self.progress.generated_tokens >= limit
        return spent or self.progress.step >= self.recipe.steps

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save(self) -> Path:
        """Writes a checkpoint of the present step, unless there is one, and deletes those that are not kept."""
        with interrupt_held_back():
            return self._save_now()

    def _save_now(self) -> Path:
        folder, progress = self.folder.checkpoints, self.progress
        path = folder / checkpoint_name(progress.step)
        if not path.exists():
            state = {"progress": asdict(progress), "files": self.folder.sizes()}
            save_checkpoint(path, self.learner, self.tokenizer, state)
            if self.recipe.log.curve:
                self.folder.plot_curve(self.recipe.validation.metric)
        link_checkpoint(folder / "last", progress.step)
        newest = list(list_checkpoints(folder))[-self.recipe.checkpoint.keep_last :]
        if progress.best_step is not None:
            link_checkpoint(folder / "best", progress.best_step)
            newest.append(progress.best_step)
        remove_checkpoints(folder, newest)
        return path

    def _rescue(self) -> Path | None:
        """Writes a checkpoint if a whole step has just been made and the learner answers; returns the newest one."""
        if self._clean:
            try:
                return self._save()
            except SearchGymError as error:  # disk full, or ranks that are gone
                sys.stderr.write(f"error: no checkpoint of step {self.progress.step}: {error}\n")
        return self.folder.newest_checkpoint()

    def _restore(self) -> None:
        """Takes up the newest checkpoint, or begins."""
        newest = self.folder.newest_checkpoint()
        sizes: dict[str, int] = {}
        if newest is not None:
            state = load_checkpoint(newest, self.learner)
            self.progress = Progress(**state["progress"])
            sizes = state["files"]
        self.folder.start(sizes, self.progress.step)
        if self._publish is not None:
            self._publish(self.learner.version)

    @contextmanager
    def _whole_step(self) -> Iterator[None]:
        """Marks the part of a step that must be done wholly or not at all; see `run`."""
        self._clean = False
        with interrupt_held_back():
            yield
            self._clean = True


def _pace(phase: str, seconds: float, tokens: float) -> Row:
    """Returns a phase's seconds, and its tokens per second if it had any."""
    row = {f"time/{phase}": seconds}
    return row | {f"time/{phase}_tokens_per_second": tokens / seconds} if tokens else row

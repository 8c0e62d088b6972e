"""Training of the tiny models from scratch: tokenizer, weights, reading, search strategy.

    python models/make/tiny.py --out runs/tiny
    python models/make/tiny.py --teams --out runs/tiny-teams

The model first learns to read (exercises: pages and every fact on them), then to act (demonstrations), and last a poor
strategy (demonstrations, most of which stop early on multi-hop questions). With ``--masked``, masked spans come between
reading and acting. Every world is used once, so that facts cannot be memorised. With ``--teams`` training starts from
the shipped model and has demonstrations of every role of every team. On CPU the same settings give the same weights for
the same number of threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from muon import Float32Muon
from tiny_card import write_card
from tiny_exam import Examiner, model_copy
from tiny_lessons import (
    demonstration_samples,
    exercise_samples,
    opening_samples,
    with_one_page,
    worlds,
)
from tiny_masked import masked_samples
from tiny_model import (
    Stage,
    TinySettings,
    make_model,
    masked_first,
    sharpened,
    team_settings,
    train_tokenizer,
)
from tiny_slips import with_slips
from tiny_teams import team_samples
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from searchgym.errors import TrainingError, UsageError
from searchgym.protocol import get_protocol
from searchgym.questions.worlds import World
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.precision import emulates_bfloat16
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import collate, trained_logits

STATE: Final = "unfinished.pt"
"""Name of the file in the model folder that holds the state of an unfinished training, for resuming."""

# -- data ----------------------------------------------------------------------------------------------------------


def lessons(stage: Stage, stream: Iterable[World], form: TokenFormat, seed: int, tokens: int) -> Iterator[list[Sample]]:
    """Yields the samples of each update, world by world.

    Args:
        stage: Stage of the curriculum.
        stream: Stream of worlds; the samples of each world are used once.
        form: Token format of the model.
        seed: Seed of the order of updates.
        tokens: Minimum tokens per update; a world's remainder joins its last update.

    Yields:
        Samples of similar lengths, so that little is padding; updates of a world come in random order.
    """
    for world in stream:
        if stage.lesson == "exercise":
            samples = exercise_samples(world, stage.pages, form, stage.strange_names)
        elif stage.lesson == "masked":
            samples = masked_samples(world, stage.masks, form)
        elif stage.lesson == "teams":
            shown = team_samples(world, stage.early_stops, form)
            samples = with_slips(shown, stage.slips, form, random.Random(f"slips {world.spec.seed}"))
        else:
            chosen = with_one_page(world) if stage.lesson == "single" else world
            samples = demonstration_samples(chosen, stage.early_stops, form)
        if stage.review:
            samples += exercise_samples(world, stage.pages, form, stage.strange_names)
            samples += opening_samples(world, form, stage.strange_names)
        updates = batches(sorted(samples, key=lambda sample: len(sample.ids)), tokens)
        yield from (updates[i] for i in np.random.default_rng([seed, world.spec.seed]).permutation(len(updates)))


def batches(samples: Iterable[Sample], tokens: int) -> list[list[Sample]]:
    """Splits samples into lists of at least `tokens` tokens each (fewer only if there is one list)."""
    made: list[list[Sample]] = [[]]
    count = 0
    for sample in samples:
        if count >= tokens:
            made.append([])
            count = 0
        made[-1].append(sample)
        count += len(sample.ids)
    if count < tokens and len(made) > 1:
        made[-2:] = [made[-2] + made[-1]]
    return made


def stage_at(stages: Sequence[Stage], progress: float) -> int:
    """Returns the index of the stage that is active at a given share of the run's tokens."""
    ends = np.cumsum([stage.share for stage in stages]) / sum(stage.share for stage in stages)
    return min(int(np.searchsorted(ends, progress, side="right")), len(stages) - 1)


# -- training ------------------------------------------------------------------------------------------------------


class Trainer:
    """Maximum-likelihood trainer, with Muon for the matrices of the layers and AdamW for the rest.

    Args:
        model: Trained in place.
        settings: Rates and sizes.
    """

    def __init__(self, model: PreTrainedModel, settings: TinySettings) -> None:
        self.model, self.settings = model, settings
        embedding = model.get_input_embeddings().weight
        matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
        rest = [p for p in model.parameters() if p.ndim < 2]
        decay = settings.weight_decay
        muon = Float32Muon if emulates_bfloat16() else torch.optim.Muon
        adam = [{"params": [embedding], "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (muon(matrices, lr=settings.matrix_lr, weight_decay=decay), settings.matrix_lr),
            (torch.optim.AdamW(adam, lr=settings.other_lr, betas=(0.9, 0.95)), settings.other_lr),
        ]

    def state(self) -> list[dict[str, Any]]:
        """Returns the state of the optimizers."""
        return [optimizer.state_dict() for optimizer, _ in self._optimizers]

    def load_state(self, state: Sequence[dict[str, Any]]) -> None:
        """Restores the optimizers from a state that `state` returned."""
        for (optimizer, _), own in zip(self._optimizers, state, strict=True):
            optimizer.load_state_dict(own)

    def step(self, samples: Sequence[Sample], progress: float) -> tuple[float, int]:
        """Performs one optimizer update.

        Args:
            samples: Samples with trained tokens, the targets.
            progress: Share of the run's tokens read so far, for the rates.

        Returns:
            (mean loss per target in nats, number of targets).

        Raises:
            TrainingError: The loss is not finite.
        """
        batch = collate(samples, {}, range(len(samples)), self.model.device)
        with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.settings.autocast):
            logits = trained_logits(self.model, batch)
        mean = torch.nn.functional.cross_entropy(logits.float(), batch.targets)
        mean.backward()  # type: ignore[no-untyped-call]
        loss = float(mean.detach())
        if not np.isfinite(loss):
            raise TrainingError(f"the loss is {loss}: lower the learning rates")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        for optimizer, rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_scale(progress, self.settings)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss, len(batch.targets)


def rate_scale(progress: float, settings: TinySettings) -> float:
    """Returns the factor of the learning rates: linear warm-up, plateau, linear decay."""
    rise = min(1.0, progress / settings.warmup + 0.1) if settings.warmup else 1.0
    fall = min(1.0, (1 - progress) / settings.decay) if settings.decay else 1.0
    return min(rise, max(fall, 0.0))


@dataclass(slots=True)
class Run:
    """A training run of a tiny model, with its progress and history."""

    settings: TinySettings
    tokenizer: PreTrainedTokenizerBase
    form: TokenFormat
    model: PreTrainedModel
    tokens: int = 0
    """Tokens read so far."""
    seconds: float = 0.0
    """Seconds of training, without evaluations."""
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, settings: TinySettings) -> Run:
        """Makes a tokenizer and a model with random weights."""
        tokenizer = train_tokenizer(settings)
        form = TokenFormat(tokenizer, get_protocol("tags"), chat=True)
        return cls(settings, tokenizer, form, make_model(settings, tokenizer))

    def batches(self) -> Iterator[tuple[int, list[Sample]]]:
        """Yields (number of the stage, samples of an update) until the tokens are spent; counts them."""
        settings = self.settings
        streams = [
            lessons(stage, worlds(settings.seed * 10 + i, settings.world_size), self.form, settings.seed,
                    settings.batch_tokens)
            for i, stage in enumerate(settings.stages)
        ]  # fmt: skip
        while self.tokens < settings.tokens:
            number = stage_at(settings.stages, self.tokens / settings.tokens)
            samples = next(streams[number])
            self.tokens += sum(len(sample.ids) for sample in samples)
            yield number, samples

    def train(self, examiner: Examiner | None = None, out: Path | None = None, resume: bool = False) -> None:
        """Trains to the end; evaluates and saves on the way.

        Args:
            examiner: Evaluates the model at even intervals and at the end; None: never.
            out: Folder in which the model is saved at these intervals, replacing the last save; None: not saved.
            resume: Resume from the last save in `out`; the final weights are as without the interruption.

        Raises:
            TrainingError: The loss is not finite.
            UsageError: Nothing to resume, or a run with other settings.
        """
        settings, trainer = self.settings, Trainer(self.model, self.settings)
        done = self._restore(out, trainer) if resume and out else 0
        every = settings.tokens / settings.evaluations
        due, losses, targets, began = every * (done // every + 1), 0.0, 0, time.monotonic()
        for number, samples in self.batches():
            if self.tokens <= done:  # read before the stop: the stream is made again up to here
                began = time.monotonic()
                continue
            loss, count = trainer.step(samples, self.tokens / settings.tokens)
            losses, targets = losses + loss * count, targets + count
            if (examiner is None and out is None) or self.tokens < min(due, settings.tokens):
                continue
            due += every
            self.seconds += time.monotonic() - began
            row = {"tokens": self.tokens, "stage": number, "loss": losses / targets}
            row["tokens_per_second"] = self.tokens / self.seconds
            search = settings.stages[number].lesson in ("episode", "teams")
            self.history.append(row | (examiner.examine(self.model, search=search) if examiner is not None else {}))
            _say(json.dumps(self.history[-1]))
            if out is not None:
                self.save(out, trainer)
            losses, targets, began = 0.0, 0, time.monotonic()

    def save(self, out: Path, trainer: Trainer) -> None:
        """Writes model (bfloat16), tokenizer and ``summary.json`` to a folder, in place of an earlier save.

        Before the end there is also what resuming needs.
        """
        building = out.with_name(f".{out.name}.building")
        shutil.rmtree(building, ignore_errors=True)
        sharpened(model_copy(self.model), self.settings.sharpness).to(torch.bfloat16).save_pretrained(building)
        self.tokenizer.save_pretrained(building)
        (building / "summary.json").write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
        if self.tokens < self.settings.tokens:
            state = {"tokens": self.tokens, "model": self.model.state_dict(), "optimizers": trainer.state()}
            torch.save(state, building / STATE)
        if out.exists():
            shutil.rmtree(out)
        building.rename(out)

    def _restore(self, out: Path, trainer: Trainer) -> int:
        """Restores a saved run; returns the number of tokens that it had read."""
        if not (out / STATE).is_file():
            raise UsageError(f"{out} holds no unfinished training ({STATE}): start one without --resume")
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        if summary["settings"] != json.loads(json.dumps(dataclasses.asdict(self.settings))):
            raise UsageError(f"{out} was trained with other settings than asked for: resume with the same options")
        state = torch.load(out / STATE, weights_only=True)
        self.model.load_state_dict(state["model"])
        trainer.load_state(state["optimizers"])
        self.history, self.seconds = summary["history"], summary["seconds"]
        return int(state["tokens"])

    def summary(self) -> dict[str, Any]:
        """Returns the run's settings, model size, progress and history of scores as plain data."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "vocabulary": len(self.tokenizer),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "threads": torch.get_num_threads(),
            "history": self.history,
        }


# -- command -------------------------------------------------------------------------------------------------------


def tokens_in(minutes: float, settings: TinySettings) -> int:
    """Estimates how many tokens this machine can train on in a given time, from a few updates of a discarded model."""
    run = Run.start(settings)
    trainer, stream = Trainer(run.model, settings), run.batches()
    trainer.step(next(stream)[1], 0.0)
    began, start = time.monotonic(), run.tokens
    for _ in range(4):
        trainer.step(next(stream)[1], 0.0)
    return int(minutes * 60 * (run.tokens - start) / (time.monotonic() - began))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python models/make/tiny.py", description="Trains the tiny model from scratch."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the model; replaced if it holds one")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--tokens", type=int, help=f"tokens to train on (default {TinySettings().tokens:,})")
    length.add_argument("--minutes", type=float, help="as many tokens as fit, measured first; summary.json names them")
    parser.add_argument("--teams", action="store_true", help="the model that teams begin with, from the tiny one")
    parser.add_argument(
        "--masked",
        type=float,
        metavar="SHARE",
        help="fill in masked spans before all other demonstrations, with this share of their tokens (0 to 1)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--float32", action="store_true", help="matrix products in float32, not bfloat16")
    parser.add_argument("--threads", type=int, help="threads of torch; results on CPU depend on it")
    parser.add_argument("--resume", action="store_true", help="continue a stopped run from its last save")
    parser.add_argument("--json", action="store_true", help="print the summary to standard output")
    given = parser.parse_args(argv)
    if min(given.tokens or 1, given.minutes or 1, given.threads or 1) <= 0 or given.seed < 0:
        parser.error("--tokens, --minutes and --threads must be positive, --seed not negative")
    if given.teams and given.masked is not None:
        parser.error("--masked is for the model that searches alone, not for --teams")
    return given


def main(argv: Sequence[str] | None = None) -> None:
    """Command line for training the tiny model."""
    given = _arguments(argv)
    if given.out.exists() and not (given.out / "summary.json").is_file():
        raise SystemExit(f"{given.out} exists and is not a model made by this command: name another folder")
    if given.threads:
        torch.set_num_threads(given.threads)
    settings = team_settings() if given.teams else TinySettings()
    if given.masked is not None:
        shown = sum(stage.share for stage in settings.stages if stage.lesson != "exercise")
        settings = dataclasses.replace(settings, stages=masked_first(settings.stages, given.masked * shown))
    settings = dataclasses.replace(settings, seed=given.seed, device=given.device, autocast=not given.float32)
    tokens = given.tokens or (tokens_in(given.minutes, settings) if given.minutes else settings.tokens)
    settings = dataclasses.replace(settings, tokens=tokens)
    _say(f"training on {tokens:,} tokens")
    run = Run.start(settings)
    size = settings.evaluation_questions
    specs = {split: WorldSpec("simple", size=size, seed=1, split=split) for split in ("validation", "test")}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    run.train(Examiner(specs, run.tokenizer, run.form), given.out, given.resume)
    write_card(given.out, " ".join(["python models/make/tiny.py", *(sys.argv[1:] if argv is None else argv)]))
    if given.json:
        sys.stdout.write(json.dumps(run.summary(), indent=2) + "\n")


if __name__ == "__main__":
    main()

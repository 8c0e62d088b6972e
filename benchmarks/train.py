"""Tokens per second of one GRPO update, compared with TRL's GRPOTrainer: same model, same episodes, same loss.

    python benchmarks/train.py [--model tiny] [--groups 16] [--attempts 8] [--runs 5] [--trl-batch 8 16 32] [--json]

There are two batches: episodes of the monolithic agent on World-v0, sampled once at temperature 1; and rows of equal
length, the mean length of these episodes. One update is forward and backward of every sample, gradient clipping, AdamW.
Sampling, rewards, advantages and TRL's padding of the batch come before and are not timed. Tokens are those of
sequences, prompts and observations included, without padding. TRL runs with each of ``--trl-batch`` samples per
micro-batch, and the fastest is the baseline; this library runs with the optimizer settings of tiny-grpo. Runs take
turns; medians are reported.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from searchgym.cli.output import emit_rows
from searchgym.records import Episode
from searchgym.rollout import load_model
from searchgym.train import load_recipe
from searchgym.train.algorithms.advantages import assign_advantages
from searchgym.train.algorithms.estimator import AdvantageOptions
from searchgym.train.algorithms.estimators.grpo import Grpo
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.samples import Sample, samples_from
from searchgym.train.learner.batching import Metrics, MicroBatch
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater
from searchgym.train.loop.assembly import assemble

LOSS = LossOptions(clip_low=0.2, clip_high=0.28)
RATE = 1e-6


def main() -> None:
    """Measures both libraries on both batches and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="model folder or name")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--attempts", type=int, default=8, help="number of episodes per group")
    parser.add_argument("--trl-batch", type=int, nargs="+", default=[8, 16, 32], help="TRL's samples per micro-batch")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each kind, after one warm-up run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    model, tokenizer = load_model(args.model)
    if torch.cuda.is_available():
        model.to("cuda")  # type: ignore[arg-type]
    print("sampling the episodes ...", file=sys.stderr)
    real = recorded(args.model, args.groups, args.attempts)
    rows = [
        compare(name, samples, model, tokenizer, args)
        for name, samples in (("episodes", real), ("equal lengths", of_equal_lengths(real)))
    ]
    emit_rows(rows, args.json, "results", f"one update, {torch.get_num_threads()} threads, {model.device}")


def recorded(model: str, groups: int, attempts: int) -> list[Sample]:
    """Samples episodes and returns them as samples with a random reward of 0 or 1."""
    recipe = load_recipe("tiny-grpo", [f"model={model}"])
    with tempfile.TemporaryDirectory() as folder:
        parts = assemble(recipe, Path(folder))
        episodes: list[Episode] = parts.rollout(parts.task.questions[:groups], attempts, 0, False)
    samples = [sample for episode in episodes for sample in samples_from(episode)]
    return rewarded(samples)


def of_equal_lengths(samples: Sequence[Sample]) -> list[Sample]:
    """Returns as many rows of random ids as samples, all of the samples' mean length, with half of the ids trained."""
    rng = np.random.default_rng(0)
    length = round(statistics.mean(len(sample.ids) for sample in samples))
    zeros = np.zeros(length, np.float32)
    return rewarded(
        [
            dataclasses.replace(
                sample,
                ids=rng.integers(0, 1000, length).astype(np.int32),
                mask=np.arange(length) >= length // 2,
                advantage=zeros,
                sampler_logp=zeros,
                calls=(),
            )
            for sample in samples
        ]
    )


def rewarded(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples with advantages, from rewards by position, so that no group lacks signal."""
    made = []
    for number, sample in enumerate(samples):
        reward = np.zeros(len(sample.ids), np.float32)
        reward[-1] = number % 2
        made.append(dataclasses.replace(sample, reward=reward))
    return assign_advantages(made, AdvantageOptions(estimator=Grpo(eps=1e-4)))[0]


def compare(
    name: str, samples: list[Sample], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: Any
) -> dict[str, Any]:
    """Returns tokens per second of both libraries, and their ratio."""
    own = Own(model)
    others = {size: Trl(model, tokenizer, samples, size, args.attempts) for size in args.trl_batch}
    seconds: dict[object, list[float]] = {"own": [], **{size: [] for size in others}}
    outside = []
    for number in range(args.runs + 1):
        print(f"{name}, run {number} of {args.runs} ...", file=sys.stderr)
        for key in seconds:
            took = own.step(samples) if key == "own" else others[int(str(key))].step()
            if number:
                seconds[key].append(took)
                outside += [own.outside / took] if key == "own" else []
    tokens = sum(len(sample.ids) for sample in samples)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    best = min(others, key=lambda size: medians[size])
    ratios = [theirs / ours for theirs, ours in zip(seconds[best], seconds["own"], strict=True)]
    lengths = [len(sample.ids) for sample in samples]
    return {
        "batch": name,
        "rows": len(samples),
        "lengths": [min(lengths), int(statistics.median(lengths)), max(lengths)],
        "tokens/s": tokens / medians["own"],
        "TRL tokens/s": tokens / medians[best],
        "TRL's micro-batch": best,
        "ratio": statistics.median(ratios),
        "smallest and largest": [min(ratios), max(ratios)],
        "outside forward and backward": statistics.median(outside),
    }


class Own:
    """Timed updates by this library, on a copy of a model.

    Args:
        model: Model to train a copy of.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        options = dataclasses.replace(load_recipe("tiny-grpo").optimizer, lr=RATE)
        self.policy = Policy(Updater(copy.deepcopy(model), options, steps=10**6), LOSS, options)
        self.outside = 0.0
        """Seconds of the last step spent on neither forward nor backward."""

    def step(self, samples: list[Sample]) -> float:
        """Makes one update; returns its seconds."""
        inside = 0.0
        loss, backward = self.policy.policy_loss, self.policy.updater.backward

        def timed_loss(batch: MicroBatch) -> tuple[Tensor, Metrics]:
            nonlocal inside
            began = now()
            found = loss(batch)
            inside += now() - began
            return found

        def timed_backward(value: Tensor) -> None:
            nonlocal inside
            began = now()
            backward(value)
            inside += now() - began

        vars(self.policy)["policy_loss"], vars(self.policy.updater)["backward"] = timed_loss, timed_backward
        try:
            began = now()
            self.policy.policy_step(samples, 0)
            took = now() - began
        finally:
            del vars(self.policy)["policy_loss"], vars(self.policy.updater)["backward"]
        self.outside = took - inside
        return took


class Trl:
    """Timed updates by TRL on the same samples, on a copy of a model.

    Args:
        model: Model to train a copy of.
        tokenizer: The model's tokenizer.
        samples: Samples with prompt, responses and observations; groups one after the other.
        size: Number of samples per micro-batch.
        attempts: Number of samples per group.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        samples: list[Sample],
        size: int,
        attempts: int,
    ) -> None:
        self.model, self.tokenizer, self.samples = copy.deepcopy(model), tokenizer, samples
        self.size, self.attempts = size, attempts

    def step(self) -> float:
        """Makes one update; returns its seconds, counted after TRL has prepared the batch."""
        with contextlib.redirect_stdout(sys.stderr):  # TRL prints, and so do its imports
            return self._step()

    def _step(self) -> float:
        from datasets import Dataset
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        micro = len(self.samples) // self.size
        clock = _Clock()

        class Timed(GRPOTrainer):
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                made = super()._generate_and_score_completions(inputs)
                clock.began = now()
                return made

        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=self.size,
                gradient_accumulation_steps=micro,
                steps_per_generation=micro,
                num_generations=self.attempts,
                max_steps=1,
                max_completion_length=1 << 20,
                loss_type="dapo",
                epsilon=LOSS.clip_low,
                epsilon_high=LOSS.clip_high,
                beta=0.0,
                temperature=1.0,
                learning_rate=RATE,
                lr_scheduler_type="constant",
                max_grad_norm=1.0,
                gradient_checkpointing=False,
                shuffle_dataset=False,
                use_cpu=self.model.device.type == "cpu",
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                remove_unused_columns=False,
            )
            names = [str(number) for number in range(len(self.samples) // self.attempts)]
            trainer = Timed(
                model=self.model,
                reward_funcs=lambda completions, score, **rest: score,
                args=config,
                train_dataset=Dataset.from_list([{"prompt": name} for name in names]),
                processing_class=self.tokenizer,
                rollout_func=self._replay,
                callbacks=[clock],
            )
            trainer.train()
        return clock.ended - clock.began

    def _replay(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Returns the samples in TRL's form; ``env_mask`` separates the model's tokens from observations."""
        turn = dict.fromkeys(prompts, 0)
        found: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "score": [], "logprobs": None}
        for prompt in prompts:
            sample = self.samples[self.attempts * int(prompt) + turn[prompt]]
            turn[prompt] += 1
            begin = int(np.argmax(sample.mask))
            found["prompt_ids"].append(sample.ids[:begin].tolist())
            found["completion_ids"].append(sample.ids[begin:].tolist())
            found["env_mask"].append(sample.mask[begin:].astype(int).tolist())
            found["score"].append(float(sample.reward.sum()))
        return found


class _Clock(TrainerCallback):
    """Callback that records when TRL's update is done."""

    began = ended = 0.0

    def on_step_end(self, *given: Any, **named: Any) -> None:
        """Records the time at the end of a step."""
        self.ended = now()


def now() -> float:
    """Waits for the GPU to finish its work and returns the time in seconds."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()

"""Seconds and memory of whole GRPO steps, compared with TRL's GRPOTrainer on the same questions and model.

    python benchmarks/end_to_end.py --model smollm2-searcher --questions train.jsonl --corpus corpus.json [--json]

Both train a LoRA adapter of rank 16 on the same base under bfloat16 autocast, with as many questions and attempts, the
same environment, prompt, limits and rate. TRL samples by a `rollout_func` of batched ``model.generate`` calls, one a
turn for all open episodes, with the action's end as stop string: its own loop of tool calls needs a model whose
template has tools. Each side is a process of its own. The limit is what the products with the weights would take at the
speed of bfloat16 products measured in the same run: 2 x parameters for each token of the episodes (sampling), 6 x for
each token learnt from. Steps before the first counted one are left out: they visit shapes for the first time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from searchgym.agents import load_agent
from searchgym.cli.output import emit, emit_rows
from searchgym.corpora.files import iter_jsonl, read_json
from searchgym.envs import SearchEnv, find_env, load_task
from searchgym.protocol import get_protocol
from searchgym.rollout.folders import ADAPTER, adapter_base, is_adapter, model_folder
from searchgym.rollout.loading import load_model, load_tokenizer
from searchgym.rollout.sampler import Finish
from searchgym.rollout.tokens import TokenFormat

RULES: dict[str, Any] = {"top_k": 3, "max_turns": 5, "max_observation_words": 150, "reward": "f1"}
ENV = "searchgym/HotpotQA-v0"
"""Its scorer judges the answers; questions and corpus are the ones given."""
RATE, RANK = 1e-5, 16
STOPS = ["</search>", "</answer>"]


def matrix_speed(rows: int = 2048, inner: int = 576, columns: int = 1536) -> float:
    """Returns the floating-point operations per second of a bfloat16 product, the median of 30."""
    left, right = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()
    seconds = []
    for _ in range(30):
        began = time.perf_counter()
        torch.nn.functional.linear(left, right)
        seconds.append(time.perf_counter() - began)
    return 2 * rows * inner * columns / statistics.median(seconds)


def frozen_layers(model: str) -> int:
    """Returns the number of lowest layers without an adapter; 0 if the whole model is trained."""
    folder = model_folder(model)
    layers = read_json(folder / ADAPTER).get("layers_to_transform") if is_adapter(folder) else None
    return min(layers) if layers else 0


def own(given: argparse.Namespace) -> dict[str, Any]:
    """Trains with this library; returns the figures of the table."""
    from searchgym.train import load_recipe, train

    recipe = {
        "name": "end-to-end", "summary": "a comparison", "method": "policy", "model": given.model, "env": ENV,
        "env_options": {"questions": given.questions, "corpus": given.corpus, **RULES},
        "agent": "search-r1", "steps": given.steps,
        "rollout": {"questions": given.questions_per_step, "attempts": given.attempts},
        "advantage": {"drop_zero_variance": False}, "loss": {"importance_cap": 2.0},
        "optimizer": {"lr": RATE, "autocast": "bfloat16", "micro_batch_tokens": 2048},
        "learner": {"frozen_layers": frozen_layers(given.model)},
        "lora": {"rank": RANK, "alpha": 32}, "validation": {"every": 0}, "checkpoint": {"every": 0},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        with contextlib.redirect_stdout(sys.stderr):
            train(load_recipe(str(path)), Path(scratch) / "run")
        rows = [row for _, row in iter_jsonl(Path(scratch) / "run" / "metrics.jsonl") if "time/draw" in row]
    return {
        "sampling": [row["time/draw"] for row in rows],
        "learning": [row["time/learn"] for row in rows],
        "read": [row["learner/tokens_read"] for row in rows],
        "written": [row["rollout/tokens"] for row in rows],
        "reward": [row["rollout/reward"] for row in rows],
        "sampler_difference": [row["learner/sampler_difference"] for row in rows],
    }


def trl(given: argparse.Namespace) -> dict[str, Any]:
    """Trains with TRL; returns the figures of the table."""
    from datasets import Dataset
    from peft import LoraConfig, PeftModel, get_peft_model
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    folder = model_folder(given.model)
    base: Any = load_model(adapter_base(folder) if is_adapter(folder) else folder)[0]
    if is_adapter(folder):
        model: Any = PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    else:
        model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear"))
    tokenizer = load_tokenizer(given.model)
    task = load_task(find_env(ENV), questions=given.questions, corpus=given.corpus, **RULES)
    form = TokenFormat(tokenizer, get_protocol("tags"), chat=True)
    role = load_agent("search-r1").roles["searcher"]
    clock: dict[str, Any] = {
        "sampling": list[float](),
        "read": list[int](),
        "written": list[int](),
        "reward": list[float](),
        "step": list[float](),
    }

    def roll(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        began = time.perf_counter()
        episodes = [Played(SearchEnv(task), question, form, role) for question in prompts]
        while left := [episode for episode in episodes if not episode.done]:
            generate(trainer.accelerator.unwrap_model(trainer.model), tokenizer, left, role.max_tokens)
        clock["sampling"].append(time.perf_counter() - began)
        clock["read"].append(sum(len(e.prompt) + len(e.ids) for e in episodes))
        clock["written"].append(sum(sum(e.mask) for e in episodes))
        clock["reward"].append(statistics.mean(e.reward for e in episodes))
        print(f"step {len(clock['sampling'])}: sampled in {clock['sampling'][-1]:.0f} s ...", file=sys.stderr)
        return {
            "prompt_ids": [e.prompt for e in episodes], "completion_ids": [e.ids for e in episodes],
            "env_mask": [e.mask for e in episodes], "score": [e.reward for e in episodes], "logprobs": None,
        }  # fmt: skip

    class Timed(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            clock["step"].append(time.perf_counter())
            return super()._generate_and_score_completions(inputs)

    rng = np.random.default_rng(0)
    chosen = rng.choice(len(task.questions), given.steps * given.questions_per_step, replace=False)
    micro = given.questions_per_step
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = GRPOConfig(
            output_dir=scratch, per_device_train_batch_size=given.attempts, gradient_accumulation_steps=micro,
            steps_per_generation=micro, num_generations=given.attempts, max_steps=given.steps,
            max_completion_length=1 << 20, loss_type="dapo", beta=0.0, temperature=1.0, learning_rate=RATE,
            lr_scheduler_type="constant", gradient_checkpointing=False, shuffle_dataset=False, use_cpu=True, bf16=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        )  # fmt: skip
        trainer = Timed(
            model=model,
            reward_funcs=lambda completions, score, **rest: score,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": task.questions[int(i)].id} for i in chosen]),
            processing_class=tokenizer,
            rollout_func=roll,
        )
        with contextlib.redirect_stdout(sys.stderr):
            trainer.train()
        clock["step"].append(time.perf_counter())
    whole = np.diff(clock["step"]).tolist()
    learning = [step - sampling for step, sampling in zip(whole, clock["sampling"], strict=True)]
    return {name: clock[name] for name in ("sampling", "read", "written", "reward")} | {"learning": learning}


class Played:
    """An episode that TRL's model plays: its ids, which of them the model wrote, and its reward."""

    def __init__(self, env: SearchEnv, question: str, form: TokenFormat, role: Any) -> None:
        self.env, self.form = env, form
        text, info = env.reset(options={"question_id": question})
        fields = {"question": text, "instructions": info["instructions"]}
        self.prompt = form.prompt_ids(role.parts(fields, info["instructions"])).tolist()
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.reward, self.done = 0.0, False

    def take(self, ids: list[int], finish: Finish) -> None:
        """Appends a turn of the model and the reply of the environment."""
        text, self.reward, terminated, truncated, _ = self.env.step(self.form.response_text(ids))
        self.ids, self.mask = self.ids + ids, self.mask + [1] * len(ids)
        self.done = terminated or truncated
        if not self.done:
            seen = self.form.observation_ids(text, finish).tolist()
            self.ids, self.mask = self.ids + seen, self.mask + [0] * len(seen)


def generate(model: Any, tokenizer: Any, episodes: Sequence[Played], most: int) -> None:
    """Samples the next turn of each episode in one batch."""
    rows = [[*e.prompt, *e.ids] for e in episodes]
    width = max(map(len, rows))
    pad = tokenizer.pad_token_id
    prompts = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made = model.generate(
            input_ids=prompts, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=most, stop_strings=STOPS, tokenizer=tokenizer, pad_token_id=pad,
        )  # fmt: skip
    for episode, row in zip(episodes, made[:, width:].tolist(), strict=True):
        # Rows that have ended are filled with the padding token, which is SmolLM2's end of a turn too.
        ids = list(itertools.takewhile(lambda id: id not in (pad, tokenizer.eos_token_id), row))
        if any(stop in tokenizer.decode(ids) for stop in STOPS):
            episode.take(ids, "stop")
        elif len(ids) < len(row):
            episode.take([*ids, tokenizer.eos_token_id], "eos")
        else:
            episode.take(ids, "length")


def row_of(name: str, found: dict[str, Any], speed: float, parameters: int, skip: int) -> list[dict[str, Any]]:
    """Returns the rows of one side: sampling, learning, whole step."""
    rows = []
    for phase, factor in (("sampling", 2), ("learning", 6), ("step", 8)):
        seconds = [
            a + b if phase == "step" else (a if phase == "sampling" else b)
            for a, b in zip(found["sampling"], found["learning"], strict=True)
        ][skip:]
        limits = [factor * parameters * tokens / speed for tokens in found["read"][skip:]]
        rows.append(
            {
                "who": name,
                "phase": phase,
                "seconds": round(statistics.median(seconds), 1),
                "tokens": round(statistics.median(found["read"][skip:])),
                "written": round(statistics.median(found["written"][skip:])),
                "tokens/s": round(sum(found["read"][skip:]) / sum(seconds)),
                "share of limit": round(sum(limits) / sum(seconds), 3),
                "reward": round(statistics.mean(found["reward"]), 3),
                "peak GiB": found["peak"],
            }
        )
    return rows


def main() -> None:
    """Runs both sides and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-searcher")
    parser.add_argument("--questions", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--questions-per-step", type=int, default=4)
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--parameters", type=int, default=134_515_008)
    parser.add_argument("--side", choices=("own", "trl"), help="one side alone, as JSON")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.side:
        found = own(given) if given.side == "own" else trl(given)
        found["peak"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1)
        print(json.dumps(found))
        return
    rows, speed = [], matrix_speed()
    for side in ("own", "trl"):
        print(f"{side}: {given.steps} steps ...", file=sys.stderr)
        done = subprocess.run([sys.executable, *sys.argv, "--side", side], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{side} ended with {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(found), file=sys.stderr)
        rows += row_of(side, found, speed, given.parameters, 1)
    if given.json:
        emit({"results": rows, "matrix_speed": speed}, True)
    else:
        emit_rows(rows, False, "results", f"bfloat16 products: {speed / 1e9:,.0f} GFLOP/s")


if __name__ == "__main__":
    main()

"""Seconds and memory of whole GRPO steps, compared with TRL's GRPOTrainer on the same questions and model.

    python benchmarks/end_to_end.py --model smollm2-searcher --questions train.jsonl --corpus corpus.json [--json]
                                    [--full] [--sampler vllm] [--autocast none]

Both train the same model, by a LoRA adapter of rank 16 or with ``--full`` all its weights, with as many questions and
attempts, the same environment, prompt, limits and rate. TRL samples by a `rollout_func`, one batch a turn for all open
episodes, with the action's end as stop string: its own loop of tool calls needs a model whose template has tools. The
batch is a call of ``model.generate`` or, with ``--sampler vllm`` on a GPU, of TRL's colocated engine, whose correction
for the difference between engine and trainer is off, as it costs TRL a pass more. Each side is a process of its own.

The limit is what the products with the weights would take at the speed of bfloat16 products measured in the same run:
2 x parameters for each token of the episodes (sampling), 6 x for each token learnt from. The first step is left out: it
visits shapes for the first time. GiB is the peak of the process, or of its allocations on a GPU: without vLLM for us,
whose engine is another process, and with it for TRL.
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
from searchgym.rollout.loading import load_model, load_tokenizer, meta_model, model_config
from searchgym.rollout.sampler import Finish
from searchgym.rollout.tokens import TokenFormat

RULES: dict[str, Any] = {"top_k": 3, "max_turns": 5, "max_observation_words": 150, "reward": "f1"}
ENV = "searchgym/HotpotQA-v0"
"""Its scorer judges the answers; questions and corpus are the ones given."""
RATE, RANK, GPU_SHARE = 1e-5, 16, 0.3
STOPS = ["</search>", "</answer>"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def matrix_speed(rows: int = 2048, inner: int = 576, columns: int = 1536) -> float:
    """Returns the floating-point operations per second of a bfloat16 product, the median of 30."""
    if DEVICE == "cuda":
        rows, inner, columns = 8192, 8192, 8192
    left, right = (torch.randn(n, inner, device=DEVICE).bfloat16() for n in (rows, columns))
    seconds = []
    for _ in range(30):
        began = time.perf_counter()
        torch.nn.functional.linear(left, right)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * rows * inner * columns / statistics.median(seconds)


def frozen_layers(model: str) -> int:
    """Returns the number of lowest layers without an adapter; 0 if the whole model is trained."""
    folder = model_folder(model)
    layers = read_json(folder / ADAPTER).get("layers_to_transform") if is_adapter(folder) else None
    return min(layers) if layers else 0


def parameters_of(model: str) -> int:
    """Returns the number of parameters of a model, or of an adapter's base."""
    folder = model_folder(model)
    base = model_folder(adapter_base(folder)) if is_adapter(folder) else folder
    return sum(parameter.numel() for parameter in meta_model(model_config(base), base).parameters())


def own(given: argparse.Namespace) -> dict[str, Any]:
    """Trains with this library; returns the figures of the table."""
    from searchgym.train import load_recipe, train

    engine = {"kind": "vllm", "gpu_share": GPU_SHARE} if given.sampler == "vllm" else given.sampler
    recipe = {
        "name": "end-to-end", "summary": "a comparison", "method": "policy", "model": given.model, "env": ENV,
        "env_options": {"questions": given.questions, "corpus": given.corpus, **RULES},
        "agent": "search-r1", "steps": given.steps,
        "rollout": {"questions": given.questions_per_step, "attempts": given.attempts, "sampler": engine},
        "advantage": {"drop_zero_variance": False}, "loss": {"importance_cap": 2.0},
        "optimizer": {"lr": RATE, "autocast": autocast(given), "micro_batch_tokens": given.micro_batch_tokens},
        "learner": {"frozen_layers": 0 if given.full else frozen_layers(given.model)},
        "lora": {"rank": 0 if given.full else RANK, "alpha": 32},
        "validation": {"every": 0}, "checkpoint": {"every": 0},
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
        "peak": round(max(max(row["memory/learn"], row["memory/draw"]) for row in rows), 1),
    }


def trl(given: argparse.Namespace) -> dict[str, Any]:
    """Trains with TRL; returns the figures of the table."""
    from datasets import Dataset
    from peft import LoraConfig, PeftModel, get_peft_model
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    folder = model_folder(given.model)
    base: Any = load_model(adapter_base(folder) if is_adapter(folder) else folder)[0]
    base.name_or_path = str(adapter_base(folder) if is_adapter(folder) else folder)  # TRL's engine loads it from there
    if given.full:
        model: Any = base
    elif is_adapter(folder):
        model = PeftModel.from_pretrained(base, str(folder), is_trainable=True)
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
            if given.sampler == "vllm":
                generate_by_engine(trainer.vllm_generation.llm, left, role.max_tokens)
            else:
                generate(trainer.accelerator.unwrap_model(trainer.model), tokenizer, left, role.max_tokens, given)
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
            lr_scheduler_type="constant", gradient_checkpointing=False, shuffle_dataset=False, use_cpu=DEVICE == "cpu",
            bf16=given.autocast == "bfloat16", use_vllm=given.sampler == "vllm", vllm_mode="colocate",
            vllm_gpu_memory_utilization=GPU_SHARE, vllm_importance_sampling_correction=False,
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
    figures = {name: clock[name] for name in ("sampling", "read", "written", "reward")} | {"learning": learning}
    return figures | {"peak": round(process_gib(), 1)}


def process_gib() -> float:
    """Returns the peak memory of this process since its start: of its allocations on a GPU, if there is one."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def autocast(given: argparse.Namespace) -> str | None:
    """Returns the type of matrix products as a recipe has it; None for that of the weights, float32."""
    return None if given.autocast == "none" else str(given.autocast)


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


def generate_by_engine(llm: Any, episodes: Sequence[Played], most: int) -> None:
    """Samples the next turn of each episode by a vLLM engine, in one call."""
    from vllm import SamplingParams

    parameters = SamplingParams(
        temperature=1.0, max_tokens=most, stop=STOPS, include_stop_str_in_output=True, logprobs=0
    )
    prompts = [{"prompt_token_ids": [*e.prompt, *e.ids]} for e in episodes]
    for episode, output in zip(episodes, llm.generate(prompts, parameters, use_tqdm=False), strict=True):
        response = output.outputs[0]
        ended: Finish = "stop" if isinstance(response.stop_reason, str) else "eos"
        episode.take(list(response.token_ids), ended if response.finish_reason == "stop" else "length")


def generate(model: Any, tokenizer: Any, episodes: Sequence[Played], most: int, given: argparse.Namespace) -> None:
    """Samples the next turn of each episode in one batch."""
    rows = [[*e.prompt, *e.ids] for e in episodes]
    width = max(map(len, rows))
    pad = tokenizer.pad_token_id
    prompts = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=given.autocast == "bfloat16"):
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
    parser.add_argument("--full", action="store_true", help="train all weights, not an adapter")
    parser.add_argument("--sampler", choices=("vllm", "transformers"), default="transformers")
    parser.add_argument("--autocast", choices=("bfloat16", "none"), default="bfloat16")
    parser.add_argument(
        "--micro-batch-tokens", type=int, default=16_384 if DEVICE == "cuda" else 2048, help="of this library's side"
    )
    parser.add_argument("--side", choices=("own", "trl"), help="one side alone, as JSON")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.full and is_adapter(model_folder(given.model)):
        parser.error(f"{given.model} is an adapter: name its base to train all weights")
    if given.sampler == "vllm" and DEVICE == "cpu" and given.side != "own":
        parser.error("TRL's colocated vLLM needs a GPU: use --sampler transformers, or --side own")
    if given.side:
        print(json.dumps(own(given) if given.side == "own" else trl(given)))
        return
    rows, speed = [], matrix_speed()
    for side in ("own", "trl"):
        print(f"{side}: {given.steps} steps ...", file=sys.stderr)
        done = subprocess.run([sys.executable, *sys.argv, "--side", side], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{side} ended with {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(found), file=sys.stderr)
        rows += row_of(side, found, speed, parameters_of(given.model), 1)
    if given.json:
        emit({"results": rows, "matrix_speed": speed}, True)
    else:
        emit_rows(rows, False, "results", f"bfloat16 products: {speed / 1e9:,.0f} GFLOP/s")


if __name__ == "__main__":
    main()

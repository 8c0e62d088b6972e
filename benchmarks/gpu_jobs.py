"""What `gpu.py` measures, one function for each kind of job: matrix products, updates, sampling, whole steps."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from counts import SHAPES, Shape, old_operations, operations
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from workload import WORKLOADS, measured_workload

from searchgym.options import find_kind
from searchgym.rollout.folders import model_folder
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.sampler_kind import SamplerKind
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.compiled import with_layers
from searchgym.train.learner.learner import peak_gib, reset_peak
from searchgym.train.learner.lora import adapted
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater
from searchgym.train.recipe.options import Checkpointing, LearnerOptions, LoraOptions, OptimizerOptions

REAL: Final = (400, 0.5, 64, 4096)
"""Rows called ``real``: median, standard deviation of the logarithm (log-normal), least and most tokens."""


def device_name() -> str:
    """Returns the name of the device that jobs run on."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"CPU ({torch.backends.cpu.get_cpu_capability()}), {torch.get_num_threads()} threads"


def now() -> float:
    """Waits for the device to finish its work and returns the time in seconds."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def products(size: int) -> dict[str, Any]:
    """Measures square matrix products: the best of ten means of three, in operations per second by number type.

    Args:
        size: Rows and columns of the matrices.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    speeds = {}
    for dtype in (torch.bfloat16, torch.float32):
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        best = float("inf")
        for _ in range(10):
            began = now()
            for _ in range(3):
                torch.matmul(left, right)
            best = min(best, (now() - began) / 3)
        speeds[str(dtype).removeprefix("torch.")] = 2 * size**3 / best
    return speeds


def update(
    shape: str,
    rows: str,
    precision: str,
    lora: int,
    compile: bool,
    checkpointing: Checkpointing,
    step_tokens: int,
    micro_batch_tokens: int,
    runs: int,
) -> dict[str, Any]:
    """Measures GRPO updates of a shape with random weights.

    Args:
        shape: Name of the shape.
        rows: Tokens of each row, the second half of which is trained; or ``real``: lengths drawn by `REAL`, the last
            quarter trained.
        precision: ``mixed`` (float32 weights, bfloat16 products), ``bfloat16`` (weights too) or ``float32``.
        lora: Rank of an adapter; 0 trains all weights.
        compile: True for compiled layers.
        checkpointing: See `LearnerOptions.gradient_checkpointing`.
        step_tokens: Tokens of a step, at least.
        micro_batch_tokens: See `OptimizerOptions`.
        runs: Number of counted steps, after two that warm up.

    Returns:
        Tokens per second, operations of a step, honest and as once counted, seconds and peak memory.
    """
    sizes = SHAPES[shape]
    reset_peak()
    model = random_model(sizes, "bfloat16" if precision == "bfloat16" else "float32")
    adapted(model, LoraOptions(rank=lora), 0, 0)
    model = with_layers(model, LearnerOptions(gradient_checkpointing=checkpointing, compile=compile))
    autocast: Literal["bfloat16"] | None = "bfloat16" if precision == "mixed" else None
    options = OptimizerOptions(micro_batch_tokens=micro_batch_tokens, autocast=autocast)
    policy = Policy(Updater(model, options, steps=10**6), LossOptions(), options)
    loaded = peak_gib()
    samples = samples_of(rows, step_tokens, sizes.vocabulary)
    seconds, peak, metrics = list[float](), 0.0, dict[str, float]()
    for number in range(runs + 2):
        reset_peak()
        began = now()
        metrics = policy.policy_step(samples, number)
        took = now() - began
        if number >= 2:
            seconds.append(took)
            peak = max(peak, peak_gib())
    lengths = [len(sample.ids) for sample in samples]
    trained = sum(int(sample.mask.sum()) for sample in samples)
    assert (metrics["tokens_read"], metrics["tokens_trained"]) == (sum(lengths), trained)
    return {
        "tokens/s": sum(lengths) / statistics.median(seconds),
        "operations": operations(sizes, lengths, trained, lora),
        "old operations": old_operations(sizes, lengths),
        "seconds": sorted(seconds),
        "tokens": sum(lengths),
        "trained": trained,
        "padded": metrics["tokens_padded"],
        "GiB loaded": loaded,
        "GiB": peak,
    }


def random_model(shape: Shape, dtype: str) -> PreTrainedModel:
    """Returns a randomly initialised model of a shape, created on the device."""
    config = AutoConfig.for_model(
        "qwen2",
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))  # type: ignore[no-untyped-call]
    return model


def samples_of(rows: str, tokens: int, vocabulary: int) -> list[Sample]:
    """Returns samples of random ids with at least `tokens` tokens; `rows` as for `update`."""
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    while sum(len(sample.ids) for sample in samples) < tokens:
        if rows == "real":
            median, spread, least, most = REAL
            length = int(np.clip(median * np.exp(spread * rng.standard_normal()), least, most))
            mask = np.arange(length) >= length - length // 4
        else:
            length = int(rows)
            mask = np.arange(length) >= length // 2
        zeros = np.zeros(length, np.float32)
        samples.append(
            Sample(
                ids=rng.integers(0, vocabulary, length).astype(np.int32),
                mask=mask,
                reward=zeros,
                advantage=np.where(mask, np.float32(rng.choice([-1, 1])), zeros),
                sampler_logp=zeros,
                calls=(),
                model_key="policy",
                episode_id=str(len(samples)),
                question_id=str(len(samples)),
                attempt=0,
                group_uid="0",
                policy_version=0,
            )
        )
    return samples


def sampling(
    model: str, sampler: str, dtype: str, requests: int, prompt_tokens: int, max_tokens: int, runs: int
) -> dict[str, Any]:
    """Measures a sampler on prompts of random ids: all requests at once, each of exactly `max_tokens` new tokens.

    Args:
        model: Folder or name of the model.
        sampler: ``vllm`` or ``transformers``.
        dtype: Type of weights and products.
        requests: Number of requests.
        prompt_tokens: Tokens of each prompt; no two prompts share any.
        max_tokens: New tokens of each.
        runs: Number of counted batches, after one that warms up.
    """
    kind = find_kind(SamplerKind, sampler)()  # pyright: ignore[reportAbstractUsage]
    context = 2 * (prompt_tokens + max_tokens)
    folder = model_folder(model)
    engine, tokenizer = kind.load(folder, dtype, requests=requests, max_context=context, share=0.8)
    engine.ends = frozenset[int]()  # type: ignore[attr-defined]  # no token ends a response early
    rng, seconds = np.random.default_rng(0), []
    try:
        for number in range(runs + 1):
            prompts = rng.integers(0, len(tokenizer), (requests, prompt_tokens)).astype(np.int32)
            asked = [SampleRequest(ids, Sampling(max_tokens), seed) for seed, ids in enumerate(prompts)]
            began = now()
            replies = engine.sample(asked)
            if number:
                seconds.append(now() - began)
            assert {len(reply.ids) for reply in replies} == {max_tokens}
    finally:
        engine.close()
    middle = statistics.median(seconds)
    return {
        "tokens/s": requests * max_tokens / middle,
        "read/s": requests * prompt_tokens / middle,
        "seconds": sorted(seconds),
        "GiB": peak_gib(),
    }


def step(
    workload: str, model: str, sampler: str, episodes: int, steps: int, overrides: Sequence[str]
) -> dict[str, Any]:
    """Measures whole training steps of a workload of `workload.WORKLOADS`; see `measured_workload`."""
    with tempfile.TemporaryDirectory() as scratch:
        return measured_workload(WORKLOADS[workload], model, sampler, episodes, steps, overrides, Path(scratch))


KINDS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "products": products,
    "update": update,
    "sampling": sampling,
    "step": step,
}
"""Functions of the kinds of jobs."""

"""Comparison of the transformers and vLLM samplers: agreement of greedy tokens, and tokens per second.

    python benchmarks/samplers.py [--model tiny] [--episodes 1000] [--concurrent 1 16 64 256] [--runs 3] [--json]
    python benchmarks/samplers.py --outputs [--rows 256]

*Parity.* Both samplers run greedy episodes of the monolithic agent on a generated world, in float32. Counted are
episodes whose tokens are all the same; for every other one, the gap at the first differing token is measured: the
difference in log-probability between the two tokens after the common prefix, computed by transformers without a cache.

*Speed.* The same environment at temperature 1, for several numbers of concurrent episodes, with and without keeping
keys and values of earlier turns; medians of several runs, the samplers in turn. Starting an engine is timed separately.

*Outputs.* CPU time that this process spends on vLLM's outputs, without an engine: every step gives each row a token. If
this takes longer than a step of the engine, the engine's outputs wait. Compared are the set-up of `LocalVllm` and that
of vLLM's defaults, which write each token as text beside its log-prob; medians, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from searchgym.agents import load_agent
from searchgym.cli.output import emit, emit_rows
from searchgym.envs import Task, find_env, load_task
from searchgym.records import Episode
from searchgym.rollout import Engine, Model, Sampler, SampleRequest, TokenFormat
from searchgym.rollout.folders import model_folder
from searchgym.rollout.sampler import Sampling
from searchgym.rollout.samplers.transformers import BATCH_TOKENS
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler
from searchgym.rollout.vllm.local import skip_token_texts
from searchgym.rollout.vllm.sampler import VllmSampler, request_parameters
from searchgym.rollout.vllm.setup import EngineSetup
from searchgym.rollout.vllm.start import start_engine
from searchgym.train.demonstrations.play import AGENT, ROLE

ENV = "searchgym/World-v0"
NEAR = 1e-3
"""Gap in nats below which two tokens count as equally likely in float32."""


def main() -> None:
    """Measures parity and speed, and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="model folder or name")
    parser.add_argument("--episodes", type=int, default=1000, help="number of greedy episodes to compare")
    parser.add_argument(
        "--concurrent", type=int, nargs="*", default=[1, 16, 64, 256], help="numbers of concurrent episodes"
    )
    parser.add_argument("--each", type=int, default=256, help="maximum number of episodes per run of the speed test")
    parser.add_argument("--runs", type=int, default=3, help="number of runs of each kind")
    parser.add_argument("--eager", action="store_true", help="vLLM without graphs and compilation")
    parser.add_argument("--json", action="store_true", help="print one JSON object per table")
    parser.add_argument("--outputs", action="store_true", help="measure the work on outputs only")
    parser.add_argument("--rows", type=int, default=256, help="rows of a step, for --outputs")
    args = parser.parse_args()
    if args.outputs:
        emit(outputs(args.model, args.rows, args.runs), args.json, "CPU time on vLLM's outputs, in this process")
        return
    task = load_task(find_env(ENV), questions={"split": "test", "size": max(args.episodes, args.each), "seed": 0})
    sampler, tokenizer = load_sampler(args.model)
    if args.episodes:
        vllm, seconds = started(args, sampler, caching=True)
        with contextlib.closing(vllm):
            found = parity(task, sampler, vllm, tokenizer, args.episodes)
        emit({"vLLM started in, s": seconds} | found, args.json, "greedy episodes of both samplers")
    if args.concurrent:
        rows = [row for caching in (True, False) for row in speeds(task, tokenizer, args, caching)]
        emit_rows(rows, args.json, "speed", f"{args.model}: generated tokens per second, medians of {args.runs}")


def started(args: Any, own: TransformersSampler, caching: bool) -> tuple[VllmSampler, float]:
    """Starts a vLLM sampler of the model; returns it and the seconds that the start took."""
    begun = time.perf_counter()
    options = Vllm(cache_gib=2, max_context=own.max_context, eager=args.eager)
    arguments = EngineSetup.arguments
    with mock.patch.object(EngineSetup, "arguments", lambda self: arguments(self) | {"enable_prefix_caching": caching}):
        engine = start_engine(args.model, dtype="float32", requests=256, options=options)
    return VllmSampler(engine, ends=own.ends), time.perf_counter() - begun


def run(
    task: Task, sampler: Sampler, tokenizer: PreTrainedTokenizerBase, concurrent: int, temperature: float
) -> tuple[float, list[Episode]]:
    """Runs all questions of a task; returns wall-clock seconds and episodes by id."""
    form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
    model = Model.over("benchmark", sampler, form)
    engine = Engine(task, load_agent(AGENT), {ROLE: model}, concurrency=concurrent, temperature=temperature)
    episodes: list[Episode] = []
    begun = time.perf_counter()
    asyncio.run(engine.run(task.questions, episodes.append))
    return time.perf_counter() - begun, sorted(episodes, key=lambda episode: episode.id)


# -- parity --------------------------------------------------------------------------------------------------------


def parity(
    task: Task, own: TransformersSampler, vllm: VllmSampler, tokenizer: PreTrainedTokenizerBase, count: int
) -> dict[str, Any]:
    """Compares the greedy episodes of both samplers token by token; returns the row of the table."""
    task = task.subset(count)
    _, ours = run(task, own, tokenizer, 64, 0.0)
    _, theirs = run(task, vllm, tokenizer, 64, 0.0)
    gaps, same, farthest = [], 0, 0.0
    for one, other in zip(ours, theirs, strict=True):
        first, second = _tokens(one), _tokens(other)
        if np.array_equal(first, second):
            same += 1
            farthest = max(farthest, float(np.abs(_logp(one) - _logp(other)).max()))
        else:
            gaps.append(gap(own.model, first, second))
    return {
        "episodes": len(ours),
        "the same tokens": same,
        "share": same / len(ours),
        "largest difference of a log-prob there": farthest,
        "others": len(gaps),
        "largest gap at a first difference, nats": max(gaps, default=0.0),
        "near-ties among them": sum(value < NEAR for value in gaps),
    }


def _tokens(episode: Episode) -> np.ndarray:
    return np.concatenate([span.ids for span in episode.contexts[0].spans])


def _logp(episode: Episode) -> np.ndarray:
    return np.concatenate([span.logp for span in episode.contexts[0].spans if span.logp is not None])


def gap(model: PreTrainedModel, first: np.ndarray, second: np.ndarray) -> float:
    """Returns the gap in log-probability of the first differing tokens, in nats; inf if one only ends earlier."""
    shared = min(len(first), len(second))
    differing = np.flatnonzero(first[:shared] != second[:shared])
    if not len(differing):
        return math.inf
    at = int(differing[0])
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(first[None, :at].astype(np.int64))).logits[0, -1]
    logp = torch.log_softmax(logits.double(), -1)
    return float(logp.max() - min(logp[int(first[at])], logp[int(second[at])]))


# -- outputs -------------------------------------------------------------------------------------------------------


def outputs(model: str, rows: int, runs: int, tokens: int = 100) -> dict[str, Any]:
    """Measures the CPU time of vLLM's output processor per token, with and without the texts of single tokens."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(runs):
        for texts in found:
            found[texts].append(_output_seconds(model, rows, tokens, texts))
    before, after = (statistics.median(found[texts]) for texts in (True, False))
    return {
        "rows": rows,
        "with texts, us a token": before * 1e6,
        "without, us a token": after * 1e6,
        "ratio": before / after,
        "with texts, ms a step": before * rows * 1e3,
        "without, ms a step": after * rows * 1e3,
    }


def _output_seconds(model: str, rows: int, tokens: int, texts: bool) -> float:
    """Returns the CPU seconds per token of one run."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.tokenizers import get_tokenizer
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.outputs import LogprobsLists

    tokenizer = get_tokenizer(str(model_folder(model)))
    processor = OutputProcessor(tokenizer, log_stats=False)
    stop = Sampling(max_tokens=2 * tokens, stop=("</search>", "</answer>"))
    for row in range(rows):
        request = SampleRequest(np.arange(246, dtype=np.int32), stop, row)
        parameters = SamplingParams(
            **request_parameters(request, [0], 1 << 20),
            output_kind=RequestOutputKind.FINAL_ONLY,
            flat_logprobs=not texts,
        )
        arguments: dict[str, Any] = dict.fromkeys(
            ("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank")
        )
        prompt: dict[str, Any] = {"prompt_token_ids": request.ids.tolist(), "arrival_time": 0.0}
        names: dict[str, Any] = {"request_id": str(row), "external_req_id": str(row)}
        processor.add_request(
            EngineCoreRequest(**names, **prompt, **arguments, sampling_params=parameters), None, None, 0
        )
        if not texts:
            skip_token_texts(processor, str(row))
    ids = np.random.default_rng(0).integers(300, len(tokenizer), (tokens, rows))
    one = np.ones((1, 1), np.float32)
    steps = [
        [
            EngineCoreOutput(str(row), [int(i)], LogprobsLists(np.array([[i]]), -one, one[0], None))
            for row, i in enumerate(s)
        ]
        for s in ids
    ]
    begun = time.process_time()
    for step in steps:
        processor.process_outputs(step)
    return (time.process_time() - begun) / (rows * tokens)


# -- speed ---------------------------------------------------------------------------------------------------------


def speeds(task: Task, tokenizer: PreTrainedTokenizerBase, args: Any, caching: bool) -> list[dict[str, Any]]:
    """Measures the speed of both samplers; returns a row per number of concurrent episodes."""
    own, _ = load_sampler(args.model, reuse_tokens=BATCH_TOKENS if caching else 0)
    vllm, seconds = started(args, own, caching)
    with contextlib.closing(vllm):
        rows = [_row(task, tokenizer, own, vllm, concurrent, args, caching) for concurrent in args.concurrent]
    return [row | {"vLLM started in, s": seconds} for row in rows]


def _row(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    own: TransformersSampler,
    vllm: VllmSampler,
    concurrent: int,
    args: Any,
    caching: bool,
) -> dict[str, Any]:
    count = min(args.each, 16 * concurrent)
    task = task.subset(count)

    def rate(sampler: Sampler) -> float:
        sampler.forget()  # the last run's cache
        seconds, episodes = run(task, sampler, tokenizer, concurrent, 1.0)
        return sum(len(span.ids) for e in episodes for span in e.contexts[0].spans if span.kind == "model") / seconds

    samplers: dict[str, Callable[[], float]] = {"transformers": lambda: rate(own), "vllm": lambda: rate(vllm)}
    found: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(args.runs):
        for name, measure in samplers.items():
            found[name].append(measure())
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["vllm"] / medians["transformers"]
    return {"episodes under way": concurrent, "kept prefixes": caching, **medians, "ratio": ratio}


if __name__ == "__main__":
    main()

"""Comparison of the greedy tokens of vLLM and transformers, with the gaps of logits where they differ.

    python benchmarks/greedy_tokens.py --model smollm2-searcher --questions test.jsonl --corpus corpus.json
        [--out runs/greedy] [--json]

Each sampler plays the same questions; their episodes are compared token by token. At the first difference of an episode
the two tokens' logits are computed once more in float32, from the same context: a gap below what bfloat16 leaves of a
logit (`STEP` of its size, one step of its 8 bits) is a tie that rounding decides. Any other difference, such as another
context or an earlier stop, is listed as such. With --out, a stopped run is resumed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from searchgym.agents import load_agent
from searchgym.cli.output import emit, emit_rows
from searchgym.envs import find_env, load_task
from searchgym.eval import EvalOptions, evaluate
from searchgym.records import Episode
from searchgym.rollout import read_episodes
from searchgym.rollout.loading import load_model
from searchgym.rollout.models import Loading, load_models

RULES: dict[str, Any] = {"top_k": 3, "max_turns": 6, "max_observation_words": 250}
STEP = 2.0**-7
"""Relative distance of neighbouring bfloat16 numbers."""


def played(given: argparse.Namespace, sampler: str, folder: Path) -> dict[str, Episode]:
    """Returns the episodes of one sampler, by question."""
    task = load_task(find_env("searchgym/HotpotQA-v0"), questions=given.questions, corpus=given.corpus, **RULES)
    task = task.subset(given.episodes)
    agent = load_agent("search-r1")
    if (folder / "scores.json").is_file():
        return {episode.question_id: episode for episode in read_episodes(folder / "episodes.jsonl")}
    model = load_models({"m": given.model}, task.rules.protocol, Loading(sampler, given.dtype, max_context=4096))["m"]
    try:
        options = EvalOptions(concurrency=32, resume=folder.exists())
        evaluate(task, agent, folder, dict.fromkeys(agent.roles, model), options)
    finally:
        model.sampler.close()
    return {episode.question_id: episode for episode in read_episodes(folder / "episodes.jsonl")}


def parts_of(episode: Episode) -> list[tuple[str, int]]:
    """Returns the (kind, id) of every token of an episode's context."""
    return [(span.kind, int(id)) for span in episode.contexts[0].spans for id in span.ids]


def first_difference(a: Sequence[tuple[str, int]], b: Sequence[tuple[str, int]]) -> int | None:
    """Returns the position of the first token that differs; None if both are the same."""
    for place, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return place
    return None if len(a) == len(b) else min(len(a), len(b))


def explained(a: Sequence[tuple[str, int]], b: Sequence[tuple[str, int]], at: int, model: Any) -> dict[str, Any]:
    """Returns the gap of the logits of the two differing tokens in float32."""
    if at >= min(len(a), len(b)) or {a[at][0], b[at][0]} != {"model"}:
        return {"place": at, "why": "one goes on where the other ends", "gap": None}
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[id for _, id in a[:at]]])).logits[0, -1].float().numpy()
    gap = float(abs(logits[a[at][1]] - logits[b[at][1]]))
    near = gap <= STEP * float(np.abs(logits[[a[at][1], b[at][1]]]).max())
    best = int(logits.argmax()) in (a[at][1], b[at][1])
    return {"place": at, "why": "tie" if near and best else "near" if best else "other", "gap": round(gap, 4)}


def main() -> None:
    """Plays, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-searcher")
    parser.add_argument("--questions", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, help="folder of the two runs; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = {}
        for sampler in ("transformers", "vllm"):
            print(f"{sampler}: {given.episodes} episodes ...", file=sys.stderr)
            runs[sampler] = played(given, sampler, (given.out or Path(scratch)) / sampler)
    model: Any = load_model(given.model)[0]
    found, tokens = [], 0
    for id, one in runs["transformers"].items():
        a, b = parts_of(one), parts_of(runs["vllm"][id])
        at = first_difference(a, b)
        tokens += sum(kind == "model" for kind, _ in a[:at])
        if at is not None:
            found.append({"question": id, **explained(a, b, at, model)})
    count = len(runs["transformers"])
    gaps = [row["gap"] for row in found if row["gap"] is not None]
    rows = [
        {
            "episodes": count,
            "same": count - len(found),
            "tokens compared": tokens,
            **{why: sum(row["why"] == why for row in found) for why in ("tie", "near", "other")},
            "one ends": sum(row["gap"] is None for row in found),
            "largest gap": max(gaps, default=0.0),
        }
    ]
    if given.json:
        emit({"results": rows, "differences": found}, True)
    else:
        emit_rows(rows, False, "results")
        emit_rows(found, False, "differences") if found else None


if __name__ == "__main__":
    main()

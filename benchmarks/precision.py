"""Difference between the log-probs of sampler and learner, by the number type in which each computes.

    python benchmarks/precision.py --model smollm2 --corpus 2wikimultihopqa/corpus.json

The sampler continues prompts about pages of the corpus; the learner, which holds the same weights, computes the
log-probs of what it wrote. The mean difference grows with the entropy of the policy: a model that has not been trained
for its task writes at about 2 nats per token, a trained agent at 0.1 to 0.3.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from searchgym.corpora.documents import open_corpus
from searchgym.rollout.loading import load_model
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.transformers.precision import mixed_precision
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import collate, trained_logits

ROWS = (
    ("float32", "float32"),
    ("mixed", "mixed"),
    ("float32", "mixed"),
    ("bfloat16", "mixed"),
    ("bfloat16", "bfloat16"),
)
"""(sampler, learner)."""


def main() -> None:
    """Measures each pair, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="model folder or name")
    parser.add_argument("--corpus", required=True, help="corpus whose pages the prompts are about")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args()
    model, tokenizer = load_model(args.model)
    passages = [passage for passage, _ in zip(open_corpus(args.corpus), range(args.prompts), strict=False)]
    texts = [f"{passage.title}: {passage.text[:700]}\n\nIn other words: " for passage in passages]
    prompts = [np.array(tokenizer(text).input_ids[:512], np.int32) for text in texts]
    rows = []
    for sampling, learning in ROWS:
        print(f"{sampling} beside {learning} ...", file=sys.stderr)
        rows.append(measure(model, tokenizer, prompts, sampling, learning))
    if args.json:
        sys.stdout.write(json.dumps({"results": rows}) + "\n")
        return
    print("| sampler | learner | mean difference, nats | largest | nats per token | sampling, s |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['sampler']} | {row['learner']} | {row['mean']:.4f} | {row['most']:.2f} | {row['nll']:.2f} "
            f"| {row['seconds']:.1f} |"
        )


def measure(model: Any, tokenizer: Any, prompts: list[Any], sampling: str, learning: str) -> dict[str, Any]:
    """Returns the differences of one pair of types."""
    sampler = TransformersSampler(_in_type(model, sampling), tokenizer, mixed=sampling == "mixed")
    started = time.perf_counter()
    replies = sampler.sample([SampleRequest(ids, Sampling(48), seed) for seed, ids in enumerate(prompts)])
    seconds = time.perf_counter() - started
    learner, found = _in_type(model, learning), []
    for prompt, reply in zip(prompts, replies, strict=True):
        ids = np.concatenate([prompt, reply.ids])
        zeros = np.zeros(len(ids), np.float32)
        mask = np.arange(len(ids)) >= len(prompt)
        sample = Sample(ids, mask, zeros, zeros, zeros, (), "policy", "e", "e", 0, None, 0)
        batch = collate([sample], {}, [0], learner.device)
        with torch.no_grad(), mixed_precision(learner) if learning == "mixed" else nullcontext():
            logits = trained_logits(learner, batch).float()
        found.append(torch.log_softmax(logits, -1).gather(1, batch.targets[:, None])[:, 0].numpy())
    logp = np.concatenate(found)
    apart = np.abs(logp - np.concatenate([reply.logp for reply in replies]))
    numbers = {"mean": float(apart.mean()), "most": float(apart.max()), "nll": -float(logp.mean())}
    return {"sampler": sampling, "learner": learning, **numbers, "seconds": seconds}


def _in_type(model: Any, name: str) -> Any:
    """Returns a copy of a model with weights of a type; mixed precision begins with float32."""
    return copy.deepcopy(model).to(torch.bfloat16 if name == "bfloat16" else torch.float32)


if __name__ == "__main__":
    main()

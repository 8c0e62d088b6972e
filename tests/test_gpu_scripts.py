"""The scripts that measure a GPU: counts of operations, jobs that resume, and samplers of scripted lengths."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from searchgym.envs import find_env, load_task
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Search
from searchgym.rollout import Sampled, SampleRequest, TokenFormat
from searchgym.rollout.loading import load_tokenizer

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_counts_equal_torchs():
    """torch counts what it computes: whole squares of attention, and no biases or norms."""
    import counts
    import gpu_jobs

    shape = counts.SHAPES["mini"]
    model = gpu_jobs.random_model(shape, "float32")
    model.set_attn_implementation("eager")
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    ids = torch.randint(0, shape.vocabulary, (2, 96))
    with FlopCounterMode(display=False) as counter:
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        model.lm_head(hidden[:, 48:]).sum().backward()
    squares = counts.attention(shape, [96, 96])
    expected = counts.operations(shape, [96, 96], 96) + squares
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def test_counts_by_hand():
    import counts

    one = counts.Shape(width=2, inner=3, layers=1, heads=1, groups=1, vocabulary=5, tied=False)
    # q, k, v, o: 4 x 4 and 3 x 2 biases; MLP 3 x 6; two norms of the layer, one at the end
    assert (one.body, one.head, one.parameters) == (16 + 6 + 18 + 4 + 2, 10, 66)
    assert one.adapter(1) == 4 * 4 + 3 * 5
    attention = 6 * 1 * 2 * (16 + 4)
    assert counts.operations(one, [4, 2], 3) == 6 * 46 * 6 + 6 * 10 * 3 + attention
    assert counts.operations(one, [4, 2], 3, rank=1) == (4 * 46 + 6 * 31) * 6 + 4 * 10 * 3 + attention
    assert counts.old_operations(one, [4, 2]) == 6 * 66 * 6 + attention


def test_predictions_for_an_h200():
    """The prototype's 35,600 tokens/s of the 1.5B on rows of 4,096 were 0.44 of the card's speed."""
    import counts

    rows = {(row["shape"], row["way"]): row for row in counts.predictions(counts.CARDS["h200"], 4096, 16_384)}
    row = rows["1.5b", "all weights, none"]
    assert 35_600 / row["tokens/s at 0.42"] * 0.42 == pytest.approx(0.44, abs=0.005)
    # the prototype had pieces of 4,096 tokens by 151,936 entries: 4.5 GiB more, and the allocator's waste
    assert row["GiB"] == pytest.approx(79, abs=1)
    assert rows["1.5b", "all weights, selective"]["GiB"] == pytest.approx(53.7, abs=1)
    bound = counts.decoding(counts.SHAPES["1.5b"], counts.CARDS["h200"], 1, 0)
    assert bound == pytest.approx(4.8e12 / 2 / 1_543_714_304)  # a row without cache reads all weights for each token


@pytest.mark.parametrize(("rows", "lora"), [("64", 0), ("real", 4)])
def test_an_update_of_the_mini_shape(rows, lora):
    import counts
    import gpu_jobs

    row = gpu_jobs.update("mini", rows, "mixed", lora, False, "selective", 512, 1024, 1)
    lengths = [64] * 8 if rows == "64" else [len(s.ids) for s in gpu_jobs.samples_of("real", 512, 2000)]
    assert (row["tokens"], row["trained"]) == (sum(lengths), sum(n // (2 if rows == "64" else 4) for n in lengths))
    assert row["operations"] == counts.operations(counts.SHAPES["mini"], lengths, row["trained"], lora)
    assert row["tokens/s"] == pytest.approx(row["tokens"] / row["seconds"][0])


def test_jobs_resume(tmp_path, monkeypatch, capsys):
    import gpu

    jobs = []

    def figures(job):
        jobs.append(gpu.label(job))
        if job["kind"] == "products":
            return {"bfloat16": 2e12, "float32": 1e12}
        if job["rows"] == "512":
            return {"error": gpu.MEMORY}
        if job["rows"] == "real" and len(jobs) == 3:
            return {"error": "RuntimeError: no"}
        return {"tokens/s": 100, "tokens": 50, "operations": 1e11, "old operations": 2e11, "GiB": 1.0}

    monkeypatch.setattr(gpu, "figures", figures)
    out = tmp_path / "figures.jsonl"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--shapes", "mini", "--rows", "512", "real", "--out", str(out)])
    with pytest.raises(SystemExit):
        gpu.main()
    assert jobs == ["products of 2048 x 2048", "mini 512", "mini real"]
    assert len(out.read_text().splitlines()) == 2  # the failed job will run again, the one without memory will not
    with out.open("a") as file:
        file.write('{"key": "cut')
    capsys.readouterr()
    gpu.main()
    assert jobs[3:] == ["mini real"]
    printed = capsys.readouterr().out
    assert "out of memory" in printed and "0.100" in printed and "0.200" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert len(out.read_text().splitlines()) == 3 and all(map(json.loads, out.read_text().splitlines()))
    monkeypatch.setattr(gpu, "device_name", lambda: "another")
    gpu.main()
    assert len(jobs) == 7


class Noise:
    """Sampler of random tokens."""

    max_context, version, ends = 4096, 0, frozenset({0})

    def stream(self, pull, deliver):
        while requests := pull():
            for key, request in requests:
                count = request.sampling.max_tokens
                deliver(key, Sampled(np.full(count, 7, np.int32), np.full(count, -2.0, np.float32), "length"))


def test_scripted_samplers_keep_lengths_and_replace_tokens():
    from scripted import NEVER, Script, ScriptedSampler
    from workload import WORKLOADS

    task = load_task(find_env("searchgym/World-v0"), questions={"split": "test", "size": 40, "seed": 0})
    format = TokenFormat(load_tokenizer("tiny"), get_protocol("tags"), chat=True)
    noise = Noise()
    sampler = ScriptedSampler(noise)
    assert noise.ends == frozenset()
    sampler.script = Script(format, task, replace(WORKLOADS["w"], tokens=200))
    turns, tokens, right = [], 0, 0
    for question in task.questions:
        for attempt in range(8):
            turns.append(0)
            while True:
                request = SampleRequest(np.arange(5, dtype=np.int32), episode=f"{question.id}#{attempt}")
                (reply,) = sampler.sample([request])
                assert (len(reply.ids), reply.finish, set(reply.logp.tolist())) == (len(reply.logp), "stop", {-2.0})
                action = format.protocol.parse(format.response_text(reply.ids))
                turns[-1], tokens = turns[-1] + 1, tokens + len(reply.ids)
                if isinstance(action, Answer):
                    right += action.text == question.answers[0]
                    break
                assert isinstance(action, Search) and set(action.queries[0].split()) <= set(question.text.split())
    assert np.mean(turns) == pytest.approx(2.2, abs=0.1)
    assert tokens / len(turns) == pytest.approx(200, rel=0.1)
    assert right == pytest.approx(len(turns) / 2 * 18 / 32, abs=8)
    assert sampler.clock.busy > 0 and NEVER != ()

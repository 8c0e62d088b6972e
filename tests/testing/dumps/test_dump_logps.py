"""Log-probs of a dump against the model that sampled it: what explains those that differ is named."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from dumped import FORMATS, TEMPERATURE, clean, fields_of, write

from searchgym.testing.dumps.run import Claims, check_dump


@functools.cache
def model():
    from searchgym.rollout.loading import load_model

    return load_model("tiny")[0]


def logps(ids, temperature, weights=None):
    """Returns the log-probs of a row's tokens, 0 at the first, by one forward pass in float64."""
    import torch

    with torch.no_grad():
        logits = (weights or model())(torch.tensor([ids])).logits[0, :-1].double() / temperature
    logp = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
    return [0.0, *logp.tolist()]


def spoilt(rows, change):
    """Sets both log-probs of each row to what a function makes of it, at the tokens of the model."""
    for row in rows:
        new = change(row)
        row.logp = [value if weight else 0.0 for value, weight in zip(new, row.mask, strict=True)]
        row.old_logp = [value if weight else -1.5 for value, weight in zip(new, row.mask, strict=True)]
    return rows


def report_of(tmp_path, name, rows, **claims):
    path = write(tmp_path / "dump.jsonl", fields_of(name, rows))
    return check_dump(path, name, Claims(**{"model": "tiny", "samples": 4, **claims}))


@pytest.mark.parametrize("name", FORMATS)
def test_log_probs_of_the_sampler_are_the_models(name, tmp_path):
    report = report_of(tmp_path, name, clean(name, "chat"))
    assert report.findings == []
    (text,) = {value.split(",")[1] for key, value in report.checked.items() if key.endswith("against the model")} or {
        ""
    }
    assert float(text.split()[0]) < 1e-4


FAULTS = {
    "logp-temperature": lambda row: logps(row.ids, 1.0),
    "logp-shifted": lambda row: [*logps(row.ids, TEMPERATURE)[1:], -3.0],
    "logp-model": lambda row: [value - 0.9 for value in logps(row.ids, TEMPERATURE)],
}


@pytest.mark.parametrize("name", ["skyrl", "openrlhf"])
@pytest.mark.parametrize("kind", FAULTS)
def test_what_explains_other_log_probs_is_named(kind, name, tmp_path):
    report = report_of(tmp_path, name, spoilt(clean(name), FAULTS[kind]))
    assert {finding.kind for finding in report.findings} == {kind}
    assert len({finding.sample for finding in report.findings}) == 4


def test_padding_that_was_attended_to(tmp_path):
    """Log-probs of a row with padding on the left, computed without its attention mask."""
    rows = clean("verl", "ragged")
    width = max(row.prompt for row in rows)

    def padded(row):
        before = width - row.prompt
        return logps([1828] * before + row.ids, TEMPERATURE)[before:]

    spoilt(rows, padded)
    report = report_of(tmp_path, "verl", rows, samples=6)
    shorter = [f"line 1, row {n + 1}" for n, row in enumerate(rows[:6]) if row.prompt < width]
    named = [finding.sample for finding in report.findings]
    assert {finding.kind for finding in report.findings} == {"logp-padding"} and set(named) <= set(shorter)
    assert named[-1] == shorter[-1]  # of rows with hardly any padding the log-probs are hardly others


def test_a_turn_that_was_encoded_again_shows_in_its_log_probs(tmp_path):
    """The sampler wrote other ids for the same text, and its log-probs are those of these ids."""
    rows = clean("trl")
    row = rows[1]
    at = row.trained[2:5]
    for n in at:
        row.logp[n] = row.old_logp[n] = row.logp[n] - 4.0
    (finding,) = report_of(tmp_path, "trl", rows).findings
    assert (finding.kind, finding.sample, finding.tokens) == ("retokenised", "line 1, row 2", tuple(at))


def test_tokens_that_nobody_sampled_show_in_their_log_probs(tmp_path):
    """Six trained tokens without marks, whose log-probs are 0: fewer than are noticed without a model."""
    rows = clean("prime-rl")
    row = rows[1]
    at = [n for n in row.trained if row.logp[n] < -0.6][:2]
    for n in at:
        row.logp[n] = 0.0
    (finding,) = report_of(tmp_path, "prime-rl", rows).findings
    assert (finding.kind, finding.tokens) == ("observation-trained", tuple(at))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """Returns an adapter of the tiny model that changes log-probs by about a tenth."""
    import torch
    from peft import LoraConfig, get_peft_model

    from searchgym.rollout.folders import model_folder
    from searchgym.rollout.loading import load_model

    torch.manual_seed(0)
    base = load_model(model_folder("tiny"))[0]
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    wrapped = get_peft_model(base, config)
    for name, weight in wrapped.named_parameters():
        if "lora_" in name:
            weight.data.mul_(0.35)
    folder = tmp_path_factory.mktemp("adapter")
    wrapped.save_pretrained(folder)
    return folder


@pytest.mark.slow_cases
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_an_adapter_that_was_not_delivered(noise, adapter, tmp_path):
    from searchgym.rollout.foreign.adapters import merge_adapter
    from searchgym.rollout.loading import load_model

    rows, rng = clean("verl"), np.random.default_rng(0)

    def noisy(row, weights):
        return [-abs(value + rng.normal(0, noise)) for value in logps(row.ids, TEMPERATURE, weights)]

    report = report_of(tmp_path, "verl", spoilt(rows, lambda row: noisy(row, None)), adapter=str(adapter), samples=8)
    assert {finding.kind for finding in report.findings} == {"logp-adapter"}
    tuned = merge_adapter(load_model("tiny")[0], adapter, "tiny")

    report = report_of(tmp_path, "verl", spoilt(rows, lambda row: noisy(row, tuned)), adapter=str(adapter), samples=8)
    assert report.findings == []
    assert 90 < float(report.checked["adapter in rollout_log_probs"].split()[0]) < 110

"""Planted faults in dumps of five frameworks are named, at their sample; clean dumps are silent."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from dumped import CLAIMED, END, FORMATS, PAD, advantages, clean, fields_of, write

from searchgym.testing.dumps.run import Claims, check_dump

TARGET = 2
"""Index of the row that is spoilt."""


def report_of(path, name, **claims):
    return check_dump(path, name, Claims(**{"tokenizer": "tiny", "estimator": CLAIMED[name], **claims}))


@pytest.mark.parametrize("kind", ["plain", "chat", "ragged", "bare"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_clean_dump_is_silent(name, kind, tmp_path):
    path = write(tmp_path / ("dump.npz" if name == "trl" else "dump.jsonl"), fields_of(name, clean(name, kind)))
    report = report_of(path, name)
    assert report.findings == []
    assert {"masks", "tokens", "groups", "advantages", "log-probs"} <= report.checked.keys()
    assert not {"masks", "advantages", "groups"} & report.unchecked.keys()


def middle(row):
    """Returns the range of the observation."""
    trained = row.trained
    first = next(n for n in trained if not row.mask[n + 1]) + 1
    return first, next(n for n in range(first, len(row.mask)) if row.mask[n])


def observation_trained(row):
    start, end = middle(row)
    row.mask[start:end] = [1] * (end - start)


def observation_sampled(row):
    """Trains the observation and gives it log-probs, as trainers that compute log-probs of all tokens do."""
    observation_trained(row)
    row.logp = row.old_logp = [logp or -1.0 for logp in row.logp]


def part_of_observation_trained(row):
    _, end = middle(row)
    row.mask[end - 10 : end] = [1] * 10


def prompt_trained(row):
    row.mask[row.prompt - 6 : row.prompt] = [1] * 6


def whole_prompt_trained(row):
    row.mask[: row.prompt] = [1] * row.prompt


def prompt_in_response(row):
    row.mask[row.prompt - 9 : row.prompt] = [1] * 9
    row.prompt -= 9


def end_untrained(row):
    row.mask[-1] = 0


def end_untrained_without_tag(row):
    """Masks the end token of a response that ends with a word."""
    row.ids[-2], row.mask[-1], row.logp[-1] = row.ids[10], 0, 0.0


def eos_doubled(row):
    for values, value in (("ids", END), ("mask", 1), ("logp", -0.1), ("old_logp", -0.1), ("token_reward", row.reward)):
        getattr(row, values).append(value)
    row.token_reward[-2] = 0.0


def mask_early(row):
    row.mask = [*row.mask[1:], 0]


def mask_late(row):
    row.mask = [0, *row.mask[:-1]]


def first_token_untrained(row):
    first = row.trained[0]
    row.mask[first], row.logp[first] = 0, -0.5


def nothing_trained(row):
    row.mask = [0] * len(row.mask)


def padding_trained(row):
    for values, value in (("ids", PAD), ("mask", 1), ("logp", 0.0), ("old_logp", -9.0), ("token_reward", 0.0)):
        setattr(row, values, getattr(row, values) + [value] * 3)


def nan_logp(row):
    row.logp[row.trained[3]] = float("nan")


def positive_logp(row):
    row.logp = row.old_logp = [-logp for logp in row.logp]


def shifted_logp(row):
    row.old_logp = [*row.old_logp[1:], -2.0]


def other_logp(row):
    row.old_logp = [logp - 1.0 for logp in row.old_logp]


def advantage_sign(row):
    row.advantage = -row.advantage if row.advantage else 0.7


def reward_early(row):
    row.token_reward[row.trained[3]], row.token_reward[-1] = 0.5, 0.0


def other_group(row):
    row.group = "alone"


def positions_from_padding(row):
    row.positions = list(range(3, 3 + len(row.ids)))


def split_mark(row):
    """Ends the response with the mark's characters as plain text."""
    from searchgym.rollout.loading import load_tokenizer

    pieces = load_tokenizer("tiny").encode("<|im_end|>", add_special_tokens=False, split_special_tokens=True)
    more = len(pieces) - 1
    row.ids[-1:], row.mask[-1:], row.logp[-1:] = pieces, [1] * len(pieces), [-0.1] * len(pieces)
    row.old_logp, row.token_reward = [*row.old_logp, *[-0.1] * more], [0.0] * more + row.token_reward


def lost_bytes(row):
    """Puts the replacement character where a token was."""
    from searchgym.rollout.loading import load_tokenizer

    pieces = load_tokenizer("tiny").encode("\N{REPLACEMENT CHARACTER}", add_special_tokens=False)
    at = row.trained[4]
    for values, value in (("ids", pieces), ("mask", [1] * 3), ("logp", [-0.5] * 3), ("old_logp", [-0.5] * 3)):
        getattr(row, values)[at : at + 1] = value[: len(pieces)]
    row.token_reward = [0.0] * (len(pieces) - 1) + row.token_reward


def cut(row):
    """Cuts the response, which is said to be complete."""
    for values in (row.ids, row.mask, row.logp, row.old_logp, row.token_reward):
        del values[-8:]
    row.token_reward[-1] = row.reward


SPOIL = [
    ("skyrl", "chat", cut, "end-missing"),
    ("verl", "plain", observation_trained, "observation-trained"),
    ("verl", "chat", observation_sampled, "observation-trained"),
    ("verl", "plain", end_untrained_without_tag, "end-untrained"),
    ("verl", "chat", mask_early, "mask-shifted"),
    ("verl", "plain", nan_logp, "not-finite"),
    ("verl", "plain", reward_early, "reward-misplaced"),
    ("verl", "plain", positions_from_padding, "positions-wrong"),
    ("verl", "plain", shifted_logp, "logp-shifted"),
    ("verl", "bare", prompt_in_response, "prompt-trained"),
    ("skyrl", "plain", observation_trained, "observation-trained"),
    ("skyrl", "chat", end_untrained, "end-untrained"),
    ("skyrl", "plain", eos_doubled, "eos-doubled"),
    ("skyrl", "plain", nothing_trained, "nothing-trained"),
    ("skyrl", "plain", advantage_sign, "advantage-mismatch"),
    ("skyrl", "chat", mask_late, "mask-shifted"),
    ("skyrl", "plain", other_group, "group-of-one"),
    ("skyrl", "plain", reward_early, "reward-misplaced"),
    ("trl", "chat", observation_sampled, "observation-trained"),
    ("trl", "plain", part_of_observation_trained, "observation-trained"),
    ("trl", "plain", end_untrained, "end-untrained"),
    ("trl", "plain", padding_trained, "padding-trained"),
    ("trl", "plain", advantage_sign, "advantage-mismatch"),
    ("trl", "plain", split_mark, "retokenised"),
    ("trl", "plain", other_logp, "logp-gap"),
    ("prime-rl", "plain", prompt_trained, "prompt-trained"),
    ("prime-rl", "bare", whole_prompt_trained, "prompt-trained"),
    ("prime-rl", "chat", observation_trained, "observation-trained"),
    ("prime-rl", "plain", mask_early, "mask-shifted"),
    ("prime-rl", "chat", first_token_untrained, "sampled-untrained"),
    ("prime-rl", "plain", positive_logp, "logp-positive"),
    ("prime-rl", "plain", lost_bytes, "retokenised"),
    ("prime-rl", "plain", other_group, "group-of-one"),
    ("openrlhf", "plain", prompt_trained, "prompt-trained"),
    ("openrlhf", "chat", observation_trained, "observation-trained"),
    ("openrlhf", "plain", end_untrained, "end-untrained"),
    ("openrlhf", "plain", eos_doubled, "eos-doubled"),
    ("openrlhf", "chat", mask_late, "mask-shifted"),
    ("openrlhf", "plain", advantage_sign, "advantage-mismatch"),
]


@pytest.mark.parametrize(("name", "kind", "spoil", "expected"), SPOIL)
def test_a_planted_fault_is_named_at_its_sample(name, kind, spoil, expected, tmp_path):
    rows = clean(name, kind)
    spoil(rows[TARGET])
    report = report_of(write(tmp_path / "dump.jsonl", fields_of(name, rows)), name)
    where = f"line {TARGET + 1}" if name == "prime-rl" else f"line 1, row {TARGET + 1}"
    hits = [finding for finding in report.findings if finding.kind == expected]
    assert [finding.sample for finding in hits] == [where], report.findings
    assert hits[0].detail and hits[0].cause
    assert not [
        finding
        for finding in report.findings
        if finding.sample != where and expected != "group-of-one" and finding.kind != "advantage-mismatch"
    ]


def test_groups_are_mixed(tmp_path):
    for name in FORMATS:
        rows = clean(name)
        rows[1], rows[5] = rows[5], rows[1]
        rows[1].group, rows[5].group = rows[5].group, rows[1].group
        report = report_of(write(tmp_path / f"{name}.jsonl", fields_of(name, rows)), name)
        mixed = [finding.sample for finding in report.findings if finding.kind == "group-mixed"]
        assert [sample.split()[-1] for sample in mixed] == ["2", "6"], name


def test_advantages_of_other_rows(tmp_path):
    rows = clean("verl")
    values = [row.advantage for row in rows]
    for row, value in zip(rows, values[1:] + values[:1], strict=True):
        row.advantage = value
    report = report_of(write(tmp_path / "dump.jsonl", fields_of("verl", rows)), "verl")
    assert {finding.kind for finding in report.findings} == {"advantage-order"}


def test_another_estimator_is_named_as_what_explains_the_advantages(tmp_path):
    path = write(tmp_path / "dump.jsonl", fields_of("verl", clean("verl")))
    report = report_of(path, "verl", estimator="rloo")
    assert "all follow grpo" in report.findings[0].detail
    assert report_of(path, "verl", estimator=None).unchecked["advantages"].endswith("they follow grpo")


def test_padding_that_is_trained_outside_the_attention_mask(tmp_path):
    fields = fields_of("verl", clean("verl", "ragged"))
    fields["response_mask"][:, -1] = 1
    shorter = [n + 1 for n, row in enumerate(fields["attention_mask"]) if not row[-1]]
    report = report_of(write(tmp_path / "dump.jsonl", fields), "verl")
    hits = [finding.sample for finding in report.findings if finding.kind == "padding-trained"]
    assert hits == [f"line 1, row {n}" for n in shorter] and hits


@pytest.mark.parametrize("name", ["skyrl", "prime-rl"])
def test_lengths_that_differ(name, tmp_path):
    fields = fields_of(name, clean(name))
    if name == "skyrl":
        del fields["rollout_logprobs"][TARGET][-1]
    else:
        del fields[TARGET]["logprobs"][-1]
    report = report_of(write(tmp_path / "dump.jsonl", fields), name)
    assert [(finding.kind, finding.sample.split()[-1]) for finding in report.findings] == [("lengths-differ", "3")]


def test_sampled_ids_are_compared(tmp_path):
    for name in FORMATS:
        rows = clean(name)
        sampled = [list(row.sampled) for row in rows]
        sampled[TARGET][5] += 1
        fields = fields_of(name, rows)
        for n, line in enumerate(fields if isinstance(fields, list) else [fields]):
            line["sampled_ids"] = sampled[n] if isinstance(fields, list) else sampled
        (finding,) = report_of(write(tmp_path / f"{name}.jsonl", fields), name).findings
        assert finding.kind == "retokenised" and finding.sample.endswith(str(TARGET + 1))
        assert finding.tokens == (rows[TARGET].trained[5],)


def test_a_response_that_stands_twice(tmp_path):
    rows = clean("prime-rl")
    rows[3] = copy.deepcopy(rows[TARGET])
    path = write(tmp_path / "dump.jsonl", fields_of("prime-rl", advantages(rows, "prime-rl")))
    assert report_of(path, "prime-rl").findings == []  # a likely response may come twice
    rows[3].logp = [logp - 1.0 if logp else 0.0 for logp in rows[3].logp]
    path = write(path, fields_of("prime-rl", rows))
    assert [(f.kind, f.sample) for f in report_of(path, "prime-rl").findings] == [("sample-twice", "line 4")]


def test_turns_without_weight_are_told(tmp_path):
    rows = clean("prime-rl")
    first = middle(rows[TARGET])[0]
    rows[TARGET].mask[:first] = [0] * first
    report = report_of(write(tmp_path / "dump.jsonl", fields_of("prime-rl", rows)), "prime-rl")
    assert report.findings == [] and "line 3" in report.checked["sampled turns without weight"]


def test_log_probs_that_were_not_recorded(tmp_path):
    fields = fields_of("skyrl", clean("skyrl"))
    fields["rollout_logprobs"] = [[0.0] * len(row) for row in fields["rollout_logprobs"]]
    report = report_of(write(tmp_path / "dump.jsonl", fields), "skyrl")
    assert [finding.kind for finding in report.findings] == ["logp-missing"]
    del fields["rollout_logprobs"]
    report = report_of(write(tmp_path / "dump.jsonl", fields), "skyrl")
    assert report.findings == [] and report.unchecked["log-probs"] == "the dump has none"


def test_a_prompt_of_two_beginnings(tmp_path):
    """A tokenizer that has a BOS token: two of them at the start."""
    import json
    import shutil

    from searchgym.rollout.folders import model_folder

    folder = tmp_path / "with-bos"
    shutil.copytree(model_folder("tiny"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<|im_start|>"}))
    rows = clean("openrlhf")
    report = report_of(write(tmp_path / "dump.jsonl", fields_of("openrlhf", rows)), "openrlhf", tokenizer=str(folder))
    assert report.findings == []
    row = rows[TARGET]
    row.ids.insert(0, row.ids[0])
    for values, value in ((row.mask, 0), (row.logp, 0.0), (row.old_logp, -1.0), (row.token_reward, 0.0)):
        values.insert(0, value)
    row.prompt += 1
    path = write(tmp_path / "twice.jsonl", fields_of("openrlhf", rows))
    kinds = [finding.kind for finding in report_of(path, "openrlhf", tokenizer=str(folder)).findings]
    assert kinds == ["bos-doubled", "group-mixed"]  # the prompt is another one now


def test_formulas_of_advantages_are_those_of_the_reference():
    """Each estimator gives what `searchgym.testing.reference` computes for the same rewards."""
    from searchgym.testing.dumps.advantages import ESTIMATORS
    from searchgym.testing.reference.advantages import group_advantages
    from searchgym.train.algorithms.estimator import AdvantageOptions
    from searchgym.train.algorithms.estimators.grpo import Grpo
    from searchgym.train.algorithms.estimators.rloo import Rloo
    from searchgym.train.algorithms.samples import Sample

    rewards, groups = [1.0, 0.0, 0.25, 1.0, 0.5, 0.0], [[0, 1, 2], [3, 4, 5]]
    zeros = np.zeros(2, np.float32)
    samples = [
        Sample(
            np.zeros(2, np.int32), np.array([False, True]), np.array([0, reward], np.float32), zeros, zeros, (), "k",
            f"e{n}", "q", n, str(n // 3), 0,
        )
        for n, reward in enumerate(rewards)
    ]  # fmt: skip
    for name, estimator in (
        ("grpo", Grpo(std="sample", std_floor=0.0, eps=1e-6)),
        ("grpo-no-std", Grpo(std="none")),
        ("rloo", Rloo()),
    ):
        right = group_advantages(samples, AdvantageOptions(estimator=estimator, normalise="all"), 0.0)
        assert all(row is not None for row in right)
        computed = ESTIMATORS[name](np.array(rewards), groups, np.ones(6), 1e-6)
        np.testing.assert_allclose(computed, [row[0] for row in right if row is not None], atol=1e-6)
    assert advantages  # the formulas of `dumped` are a third implementation, which the clean dumps compare


@pytest.mark.parametrize(
    ("spoil", "expected"), [(observation_trained, "observation-trained"), (whole_prompt_trained, "prompt-trained")]
)
def test_log_probs_of_0_tell_without_a_tokenizer(spoil, expected, tmp_path):
    rows = clean("prime-rl")
    spoil(rows[TARGET])
    report = report_of(write(tmp_path / "dump.jsonl", fields_of("prime-rl", rows)), "prime-rl", tokenizer=None)
    assert [(finding.kind, finding.sample) for finding in report.findings] == [(expected, "line 3")]

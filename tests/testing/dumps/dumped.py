"""Dumps of five frameworks, made of real rollouts of the tiny model, and the ways to spoil them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROLLOUTS = Path(__file__).parent / "rollouts.json"
TEMPERATURE = 1.2
PAD, END = 1828, 1827
FORMATS = ("verl", "skyrl", "trl", "prime-rl", "openrlhf")
EPSILON = {"verl": 1e-6, "skyrl": 1e-6, "trl": 1e-4, "prime-rl": 1e-6, "openrlhf": 1e-9}
CLAIMED = {"verl": "grpo", "skyrl": "rloo", "trl": "group", "prime-rl": "grpo", "openrlhf": "group_norm"}
"""Estimator that is named for each format, as its configuration names it."""


@dataclass
class Row:
    """One sequence, before a framework pads it; every list has one number for each token."""

    prompt: int
    ids: list[int]
    mask: list[int]
    logp: list[float]
    reward: float
    group: str
    advantage: float = 0.0
    token_reward: list[float] = field(default_factory=list)
    old_logp: list[float] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    positions: list[int] | None = None

    @property
    def trained(self):
        return [n for n, weight in enumerate(self.mask) if weight]


def rows_of(groups, attempts=4):
    """Returns the rows of some groups of the rollouts, by their indices."""
    saved, rows = json.loads(ROLLOUTS.read_text(encoding="utf-8")), []
    for index in groups:
        for attempt in saved[index]["attempts"][:attempts]:
            prompt, spans = attempt["prompt"], attempt["spans"]
            row = Row(len(prompt), list(prompt), [0] * len(prompt), [0.0] * len(prompt), attempt["reward"], f"g{index}")
            for ids, logp in spans:
                row.ids += ids
                row.mask += [int(logp is not None)] * len(ids)
                row.logp += logp or [0.0] * len(ids)
            row.token_reward = [0.0] * (len(row.ids) - 1) + [row.reward]
            row.old_logp = [logp if weight else -1.5 for logp, weight in zip(row.logp, row.mask, strict=True)]
            row.sampled = [row.ids[n] for n in row.trained]
            rows.append(row)
    return rows


def advantages(rows, name):
    """Sets the advantages of a format's estimator, by formulas of this file."""
    for row in rows:
        same = [other.reward for other in rows if other.group == row.group]
        mean, n = sum(same) / len(same), len(same)
        deviation = (sum((r - mean) ** 2 for r in same) / max(n - 1, 1)) ** 0.5
        scale = {"skyrl": (n - 1) / n if n > 1 else 1.0, "prime-rl": 1.0}.get(name, deviation + EPSILON[name])
        row.advantage = (row.reward - mean) / scale
    return rows


def clean(name, kind="plain"):
    """Returns one of four clean dumps of a format, as rows: ``plain``, ``chat``, ``ragged`` or ``bare``."""
    groups = {"plain": (1, 3), "chat": (0, 2), "ragged": (1, 2, 5, 6), "bare": (4, 7)}[kind]
    rows = rows_of(groups, 3 if kind == "ragged" else 4)
    if kind == "bare":  # one turn, without the observation and what follows it
        for row in rows:
            first = row.trained
            end = next(n for n in first if n + 1 == len(row.mask) or not row.mask[n + 1]) + 1
            for values in ("ids", "mask", "logp", "old_logp", "token_reward"):
                setattr(row, values, getattr(row, values)[:end])
            row.token_reward[-1], row.sampled = row.reward, [row.ids[n] for n in row.trained]
    return advantages(rows, name)


def _left(values, width, blank):
    return [blank] * (width - len(values)) + list(values)


def _right(values, width, blank):
    return list(values) + [blank] * (width - len(values))


def _matrix(rows, get, blank, right=True):
    values = [get(row) for row in rows]
    width = max(map(len, values))
    return np.array([(_right if right else _left)(each, width, blank) for each in values])


def verl(rows):
    """Returns a `DataProto`'s tensors and texts."""
    prompts = _matrix(rows, lambda r: r.ids[: r.prompt], PAD, right=False)
    responses = _matrix(rows, lambda r: r.ids[r.prompt :], PAD)
    left = _matrix(rows, lambda r: [1] * r.prompt, 0, right=False)
    attention = np.concatenate([left, _matrix(rows, lambda r: [1] * (len(r.ids) - r.prompt), 0)], 1)
    mask = _matrix(rows, lambda r: r.mask[r.prompt :], 0)
    positions = np.maximum(attention.cumsum(1) - 1, 0)
    for n, row in enumerate(rows):
        if row.positions is not None:
            positions[n][attention[n] == 1] = row.positions
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "attention_mask": attention,
        "position_ids": positions,
        "input_ids": np.concatenate([prompts, responses], 1),
        "rollout_log_probs": _matrix(rows, lambda r: r.logp[r.prompt :], 0.0).astype(np.float32),
        "old_log_probs": _matrix(rows, lambda r: r.old_logp[r.prompt :], 0.0).astype(np.float32),
        "rm_scores": _matrix(rows, lambda r: r.token_reward[r.prompt :], 0.0).astype(np.float32),
        "token_level_scores": _matrix(rows, lambda r: r.token_reward[r.prompt :], 0.0).astype(np.float32),
        "token_level_rewards": _matrix(rows, lambda r: r.token_reward[r.prompt :], 0.0).astype(np.float32),
        "advantages": (np.array([[row.advantage] for row in rows]) * mask).astype(np.float32),
        "uid": [row.group for row in rows],
        "temperature": TEMPERATURE,
    }


def skyrl(rows):
    """Returns a `GeneratorOutput`."""
    return {
        "prompt_token_ids": [row.ids[: row.prompt] for row in rows],
        "response_ids": [row.ids[row.prompt :] for row in rows],
        "loss_masks": [row.mask[row.prompt :] for row in rows],
        "rewards": [row.token_reward[row.prompt :] for row in rows],
        "stop_reasons": ["stop"] * len(rows),
        "rollout_logprobs": [row.logp[row.prompt :] for row in rows],
        "rollout_metrics": {"mean": 0.1},
        "trajectory_ids": [{"instance_id": row.group, "repetition_id": n % 4} for n, row in enumerate(rows)],
        "advantages": [row.advantage for row in rows],
        "temperature": TEMPERATURE,
    }


def trl(rows):
    """Returns the inputs of the loss, with rewards and the size of groups beside them."""
    size = sum(row.group == rows[0].group for row in rows)
    return {
        "prompt_ids": _matrix(rows, lambda r: r.ids[: r.prompt], PAD, right=False),
        "prompt_mask": _matrix(rows, lambda r: [1] * r.prompt, 0, right=False),
        "completion_ids": _matrix(rows, lambda r: r.ids[r.prompt :], PAD),
        "completion_mask": _matrix(rows, lambda r: [1] * (len(r.ids) - r.prompt), 0),
        "tool_mask": _matrix(rows, lambda r: r.mask[r.prompt :], 1),
        "advantages": np.array([row.advantage for row in rows], np.float32),
        "num_items_in_batch": sum(len(row.trained) for row in rows),
        "old_per_token_logps": _matrix(rows, lambda r: r.old_logp[r.prompt :], 0.0).astype(np.float32),
        "sampling_per_token_logps": _matrix(rows, lambda r: r.logp[r.prompt :], 0.0).astype(np.float32),
        "rewards": np.array([row.reward for row in rows], np.float32),
        "num_generations": size,
        "temperature": TEMPERATURE,
    }


def prime_rl(rows):
    """Returns `TrainingSample`s."""
    return [
        {
            "token_ids": row.ids,
            "mask": [bool(weight) for weight in row.mask],
            "logprobs": row.logp,
            "temperatures": [TEMPERATURE] * len(row.ids),
            "env_name": "search",
            "advantages": [row.advantage * weight for weight in row.mask],
            "group": row.group,
            "reward": row.reward,
        }
        for row in rows
    ]


def openrlhf(rows):
    """Returns an `Experience`."""
    size = sum(row.group == rows[0].group for row in rows)
    mask = _matrix(rows, lambda r: r.mask[1:], 0)
    return {
        "sequences": _matrix(rows, lambda r: r.ids, PAD),
        "attention_mask": _matrix(rows, lambda r: [1] * len(r.ids), 0),
        "action_mask": mask.astype(bool),
        "action_log_probs": _matrix(rows, lambda r: r.old_logp[1:], 0.0).astype(np.float32) * mask,
        "rollout_log_probs": _matrix(rows, lambda r: r.logp[1:], 0.0).astype(np.float32),
        "advantages": (np.array([[row.advantage] for row in rows]) * mask).astype(np.float32),
        "rewards": np.array([row.reward for row in rows], np.float32),
        "index": list(range(len(rows))),
        "truncated": np.zeros(len(rows), bool),
        "n_samples_per_prompt": size,
        "temperature": TEMPERATURE,
    }


MAKERS = {"verl": verl, "skyrl": skyrl, "trl": trl, "prime-rl": prime_rl, "openrlhf": openrlhf}


def fields_of(name, rows):
    """Returns a framework's batch of some rows."""
    return copy.deepcopy(MAKERS[name](rows))


def write(path, fields):
    """Writes a batch as JSON lines or, by the name of the file, as a file of torch or NumPy; returns the path."""
    if path.suffix == ".pt":
        import torch

        plain = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in fields.items()}
        torch.save(plain, path)
    elif path.suffix == ".npz":
        np.savez(path, **fields)
    else:
        lines = fields if isinstance(fields, list) else [fields]
        listed = [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in line.items()} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in listed), encoding="utf-8")
    return path

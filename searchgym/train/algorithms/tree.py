"""Process rewards by branches: the attempts at a question form a tree, whose nodes are worth what grew out of them.

Where no two attempts share a call, ``V(s)`` is the attempt's own reward everywhere: its first call gets
``2 (r - mean r)`` and the others ``r - mean r``, which is GRPO without division whose first call counts twice. What
the branches add is therefore seen beside that control, `AdvantageOptions.shared` false, not beside GRPO alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from searchgym.train.algorithms.advantages import calls_of_episodes, staying, with_advantage
from searchgym.train.algorithms.estimators import GroupCounts, counts_of
from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.options import AdvantageOptions


def branch_rewards(rewards: Sequence[float], paths: Sequence[Sequence[bytes]]) -> list[list[float]]:
    """Computes the process reward of each call of a group, ``((V(s) - V(root)) + (V(s) - V(parent))) / sqrt(n(s))``.

    A node s is a beginning of an attempt up to the end of one of its calls, ``V(s)`` the mean reward of the n(s)
    attempts that begin so, and the root what all attempts begin with.

    Source: TreeRL, arXiv 2506.11902: the global advantage and the local one, weighted down by the leaves below the
    node. Deviations, which are ours: the tree is what independent attempts have in common, where TreeRL forks
    responses at tokens of high entropy; a node is a call, not a segment; and rewards are not normalised further.

    Args:
        rewards: One per attempt of the group.
        paths: For each attempt, what its calls are known by: equal keys at one place are the same call if all keys
            before them are equal too.

    Returns:
        One list per attempt, with one number per call.
    """
    below: dict[tuple[bytes, ...], list[float]] = defaultdict(list)
    for reward, path in zip(rewards, paths, strict=True):
        for depth in range(len(path) + 1):
            below[tuple(path[:depth])].append(reward)
    value = {node: sum(own) / len(own) for node, own in below.items()}
    return [
        [
            (2 * value[tuple(path[: d + 1])] - value[()] - value[tuple(path[:d])])
            / math.sqrt(len(below[tuple(path[: d + 1])]))
            for d in range(len(path))
        ]
        for path in paths
    ]


def assign_tree(samples: Sequence[Sample], options: AdvantageOptions) -> tuple[list[Sample], GroupCounts]:
    """Sets the advantages of a batch of samples to the process rewards of their calls; see `branch_rewards`.

    Which samples stay in the batch, and what an episode's reward is, is as with ``grpo`` and ``normalise: all``. The
    same tokens, observations included, are the same call; with `AdvantageOptions.shared` false, no two calls are.

    Args:
        samples: Whole groups; see `assign_advantages`.
        options: See `assign_advantages`.

    Returns:
        The samples that stay, in the same order, with advantages; and the counts of groups and nodes.
    """
    kept, fates = staying(samples, options)
    groups: dict[str, list[list[tuple[int, int]]]] = defaultdict(list)
    for places in calls_of_episodes(samples):
        if places:
            groups[samples[places[0][0]].group_uid or ""].append(places)
    by_call: dict[str, float] = {}
    nodes = shared = 0
    for group, members in groups.items():
        if fates[group] != "signal":
            continue
        paths = [[samples[i].ids[: samples[i].calls[j].end].tobytes() for i, j in places] for places in members]
        if not options.shared:
            paths = [[b"%d " % attempt + call for call in path] for attempt, path in enumerate(paths)]
        first = [samples[places[0][0]] for places in members]
        rewards = [float(sample.reward[sample.mask].sum()) for sample in first]
        for places, values in zip(members, branch_rewards(rewards, paths), strict=True):
            by_call |= {samples[i].call_ids[j]: value for (i, j), value in zip(places, values, strict=True)}
        passed: dict[tuple[bytes, ...], int] = defaultdict(int)
        for path in paths:
            for depth in range(1, len(path) + 1):
                passed[tuple(path[:depth])] += 1
        nodes, shared = nodes + len(passed), shared + sum(n > 1 for n in passed.values())
    made = []
    for sample in kept:
        spread = np.zeros(len(sample.ids))
        for call, name in zip(sample.calls, sample.call_ids, strict=True):
            spread[call.start : call.end] = by_call.get(name, 0.0)  # a trial answer is no part of the attempt
        made.append(with_advantage(sample, spread[sample.mask]))
    return made, dataclasses.replace(counts_of(fates), nodes=nodes, shared=shared)

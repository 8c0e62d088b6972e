"""Short ways to write options of advantages: those of the estimator stand beside those of the section."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from searchgym.options import find_kind, name_of
from searchgym.train.algorithms.estimator import AdvantageOptions, Estimator, Group
from searchgym.train.algorithms.estimators.gae import Gae, gae
from searchgym.train.algorithms.estimators.tree import Tree, branch_rewards

__all__ = ["advantage_options", "assign_gae", "assign_tree", "branch_rewards", "compare", "gae", "with_options"]


def advantage_options(estimator: str = "grpo", **values: Any) -> AdvantageOptions:
    """Returns options whose estimator has those of the values that are its fields."""
    kind: Any = find_kind(Estimator, estimator)
    fields = {field.name for field in dataclasses.fields(kind)} & values.keys()
    inner = kind(**{name: values.pop(name) for name in fields})
    return AdvantageOptions(estimator=inner, **values)


def with_options(options: AdvantageOptions, **values: Any) -> AdvantageOptions:
    """Returns options with other values, of the section or of its estimator."""
    kind = name_of(options.estimator)
    every = {**dataclasses.asdict(options), **dataclasses.asdict(options.estimator)}  # type: ignore[call-overload]
    del every["estimator"]
    return advantage_options(**{"estimator": kind, **every, **values})


def assign_gae(samples, options, targets, kl_coef=0.0, frozen=()):
    """Sets advantages by the estimator of the options, which must be ``gae``."""
    assert isinstance(options.estimator, Gae)
    made, counts = options.estimator.assign(samples, options, kl_coef, targets, frozen)
    assert counts is None
    return made


def assign_tree(samples, options):
    """Sets advantages by the estimator of the options, which must be ``tree``."""
    assert isinstance(options.estimator, Tree)
    return options.estimator.assign(samples, options)


def compare(estimator, returns, searches=None, rewards=None, **values):
    """Returns the advantages of one group by the estimator of a name, with its options."""
    searches = np.zeros(len(returns), np.int64) if searches is None else searches
    group = Group(returns, returns if rewards is None else rewards, searches)
    return advantage_options(estimator, **values).estimator.compare(group)

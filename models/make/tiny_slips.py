"""Demonstrations with a wrong token, so that a model learns to continue legally after its own errors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import Sample

LAST: Final = 0.5
"""Probability that the wrong token is the last one before a tag, as after a name that is cut short."""


def with_slips(samples: Sequence[Sample], share: float, form: TokenFormat, rng: random.Random) -> list[Sample]:
    """Returns the samples, some of them with one wrong token.

    After a wrongly copied name, a model sees a text that occurs in no demonstration; small models then often repeat or
    omit a tag. Samples with a wrong token train such cases.

    Args:
        samples: Demonstrations.
        share: Probability that a sample gets a wrong token.
        form: Token format of the model.
        rng: Random generator for the choice of samples and tokens.
    """
    tags = np.array(sorted(form.marks))
    return [slipped(sample, tags, rng) if rng.random() < share else sample for sample in samples]


def slipped(sample: Sample, tags: Any, rng: random.Random) -> Sample:
    """Returns a sample in which one written token is left out or is another one.

    The loss mask excludes the wrong token; after an omitted token it excludes the next one. If a token is omitted, the
    new sample has no calls, since their positions would be wrong.

    Args:
        sample: A demonstration.
        tags: (n,) integer ids of tags and special tokens, which are never changed.
        rng: Random generator.

    Returns:
        The new sample; the same sample if its generated tokens are all tags.
    """
    said = sample.mask & ~np.isin(sample.ids, tags)
    said[-1] = False  # a token must follow
    before_tag = said & np.append(np.isin(sample.ids, tags)[1:], False)
    places = np.flatnonzero(before_tag if before_tag.any() and rng.random() < LAST else said)
    if not len(places):
        return sample
    place = int(rng.choice(places))
    mask = sample.mask.copy()
    if rng.random() < 0.5:
        mask[place] = False
        ids = sample.ids.copy()
        ids[place] = rng.choice(sample.ids[said])
        return replace(sample, ids=ids, mask=mask)
    mask[place + 1] = False
    kept = np.arange(len(mask)) != place
    zeros = np.zeros(len(mask) - 1, np.float32)
    return replace(
        sample, ids=sample.ids[kept], mask=mask[kept], reward=zeros, advantage=zeros, sampler_logp=zeros, calls=()
    )

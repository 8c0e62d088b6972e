"""Demonstrations with a slip of the pen, so that a model goes on legally after its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import Sample

LAST: Final = 0.5
"""Probability that the slip is in the last token before a tag, where a name that is cut short meets its closing tag."""


def with_slips(samples: Sequence[Sample], share: float, form: TokenFormat, rng: random.Random) -> list[Sample]:
    """Returns the samples, some of them with one wrong token.

    A model that copies a name wrong stands before a text that no demonstration has, and small ones then repeat a tag or
    leave it out. A slip shows them such texts.

    Args:
        samples: Demonstrations.
        share: Probability that a sample has a slip.
        form: Token format of the model.
        rng: Random generator of samples and slips.
    """
    tags = np.array(sorted(form.marks))
    return [slipped(sample, tags, rng) if rng.random() < share else sample for sample in samples]


def slipped(sample: Sample, tags: Any, rng: random.Random) -> Sample:
    """Returns a sample in which one written token is left out or is another one.

    The wrong token is not trained on: after one that is left out, that is the token that follows. All others are. After
    one that is left out the sample has no calls, whose places would be wrong.

    Args:
        sample: A demonstration.
        tags: (n,) integer ids of tags and special tokens; a slip never touches one.
        rng: Random generator of the slip.

    Returns:
        The new sample; the same one if the model wrote nothing but tags.
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

"""Slips of the pen in demonstrations: what is changed, and what is still trained on."""

import random

import numpy as np
import pytest
from tiny_slips import slipped, with_slips

from searchgym.train.algorithms.samples import Sample

pytestmark = pytest.mark.study
OPEN, CLOSE, END = 90, 91, 92
TAGS = np.array([OPEN, CLOSE, END])


def sample(ids, said):
    zeros = np.zeros(len(ids), np.float32)
    mask = np.arange(len(ids)) >= len(ids) - said
    return Sample(np.array(ids, np.int32), mask, zeros, zeros, zeros, (), "m", "e", "q", 0, None, 0)


def kinds(shown, tries=400):
    """Returns how often each (ids, mask) comes."""
    made = [slipped(shown, TAGS, random.Random(seed)) for seed in range(tries)]
    found = {}
    for one in made:
        key = (tuple(one.ids.tolist()), tuple(one.mask.tolist()))
        found[key] = found.get(key, 0) + 1
    return found


def test_one_written_token_is_left_out_or_another_one():
    # prompt 1 2; written: <answer> 3 4 </answer> <end>
    found = kinds(sample([1, 2, OPEN, 3, 4, CLOSE, END], 5))
    f, t = False, True
    worked_out = {
        # left out: what follows is not trained on
        ((1, 2, OPEN, 4, CLOSE, END), (f, f, t, f, t, t)),
        ((1, 2, OPEN, 3, CLOSE, END), (f, f, t, t, f, t)),
        # another one of what was written: it is not trained on
        *(((1, 2, OPEN, other, 4, CLOSE, END), (f, f, t, f, t, t, t)) for other in (3, 4)),
        *(((1, 2, OPEN, 3, other, CLOSE, END), (f, f, t, t, f, t, t)) for other in (3, 4)),
    }
    assert set(found) == worked_out
    last = sum(n for (ids, mask), n in found.items() if ids[3] == 3 and mask[3])
    assert 0.68 < last / 400 < 0.82  # half of all, and half of the other half


@pytest.mark.parametrize("ids, said", [([1, 2, OPEN, CLOSE, END], 3), ([1, 2, OPEN, 3], 1)])
def test_tags_and_a_cut_end_are_left_alone(ids, said):
    shown = sample(ids, said)
    assert all(slipped(shown, TAGS, random.Random(seed)) is shown for seed in range(20))


def test_as_many_as_asked_and_the_rest_as_they_were():
    class Form:
        marks = frozenset(TAGS.tolist())

    shown = [sample([1, OPEN, 3, 4, CLOSE, END], 5) for _ in range(2000)]
    made = with_slips(shown, 0.25, Form(), random.Random(0))
    same = sum(a is b for a, b in zip(shown, made, strict=True))
    assert abs(same / 2000 - 0.75) < 0.03
    assert with_slips(shown, 0.0, Form(), random.Random(0)) == shown
    for one in made:
        assert len(one.ids) == len(one.mask) == len(one.reward) == len(one.sampler_logp)

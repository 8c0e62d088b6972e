"""Supervised training without predictable tokens: which are left out, when, and that the loss is that of the rest."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from test_learner import learner, model, random_samples, weights_of

from searchgym.errors import CardError
from searchgym.train.algorithms.predictable import DropOptions, frame_tokens, without_predictable
from searchgym.train.algorithms.samples import SampleCall
from searchgym.train.recipe.load import load_recipe

TEMPLATE = random_samples(1)[0]


def sequence(ids, mask, role="r"):
    ids, mask = np.array(ids, np.int32), np.array(mask, bool)
    row = np.zeros(len(ids), np.float32)
    calls = (SampleCall(0, 1, len(ids), role, 1),)
    return dataclasses.replace(
        TEMPLATE, ids=ids, mask=mask, reward=row, advantage=row, sampler_logp=row, calls=calls, episode_id=role
    )


def test_the_form_is_what_most_of_the_sequences_of_a_role_contain():
    group = [sequence([9, 1, 5, 2], [0, 1, 1, 1]), sequence([9, 1, 6, 2], [0, 1, 1, 1]), sequence([9, 1, 7], [0, 1, 1])]
    other = [sequence([9, 5, 5], [0, 1, 1], "s"), sequence([9, 6], [0, 1], "s"), sequence([9, 7], [0, 1], "s")]
    assert frame_tokens([*group, *other]) == {("r",): {1, 2}, ("s",): set()}
    assert frame_tokens([]) == {}


def test_the_least_doubtful_tokens_are_left_out_by_hand():
    first = sequence([9, 1, 5, 6, 9, 7, 2], [0, 1, 1, 1, 0, 1, 1])
    second = sequence([9, 1, 8, 4, 2], [0, 1, 1, 1, 1])
    entropies = [np.array([0.0, 0.3, 0.1, 0.4, 0.0], np.float32), np.array([0.0, 0.1, 0.2, 0.0], np.float32)]
    one, two = without_predictable([first, second], entropies, 0.5)  # 5 tokens beside the form {1, 2}: two go
    assert one.mask.tolist() == [0, 1, 1, 0, 0, 1, 1] and two.mask.tolist() == [0, 1, 0, 1, 1]
    one, two = without_predictable([first, second], entropies, 0.2)
    assert one.mask.sum() == 4 and two.mask.sum() == 4, "of equal entropies the first goes"
    one, two = without_predictable([first, second], entropies, 0.19)
    assert np.array_equal(one.mask, first.mask) and np.array_equal(two.mask, second.mask)
    assert first.mask.sum() == 5 and one.ids is first.ids, "the samples themselves stay as they are"


def test_nothing_is_left_out_of_samples_of_form_alone():
    samples = [sequence([9, 1, 2], [0, 1, 1])] * 2
    left = without_predictable(samples, [np.zeros(2, np.float32)] * 2, 0.9)
    assert all(s.mask.tolist() == [0, 1, 1] for s in left)


def test_the_schedule_is_a_sigmoid():
    drop = DropOptions(most=0.6)
    assert drop.share(49, 100) == pytest.approx(0.3)
    assert drop.share(0, 100) == pytest.approx(0.6 / (1 + math.exp(4.9)))
    shares = [drop.share(step, 100) for step in range(100)]
    assert shares == sorted(shares) and 0.59 < shares[-1] < 0.6
    assert DropOptions(most=0.6, midpoint=0, slope=1000).share(0, 10) == pytest.approx(0.6)


@pytest.mark.parametrize("size", [64, 4096])
def test_a_step_is_that_of_the_tokens_with_most_doubt(size):
    """The entropies by a plain forward pass, row by row; a split into micro-batches changes nothing."""
    samples = [
        dataclasses.replace(s, ids=np.where(s.mask, s.ids % 8 + 8 * i, 49).astype(np.int32))
        for i, s in enumerate(random_samples(6))
    ]
    plain, entropies = model(), []
    for s in samples:
        with torch.no_grad():
            logits = plain(torch.tensor(s.ids[None].astype(np.int64))).logits[0, :-1]
        distribution = torch.distributions.Categorical(logits=logits)
        entropies.append(distribution.entropy().numpy()[s.mask[1:]])
    limit = np.quantile(np.concatenate(entropies), 0.5)
    kept = []
    for s, of_sample in zip(samples, entropies, strict=True):
        mask = s.mask.copy()
        mask[s.mask] = of_sample > limit
        kept.append(dataclasses.replace(s, mask=mask))
    assert frame_tokens(samples) == {("r",): set()}, "no form here, so that the median splits all tokens"
    dropping, reference = learner(micro_batch_tokens=size), learner(micro_batch_tokens=size)
    row, expected = dropping.supervised_step(samples, 0, 0.5), reference.supervised_step(kept, 0)
    assert row["tokens_trained"] == pytest.approx(expected["tokens_trained"], abs=1)
    assert row["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    torch.testing.assert_close(weights_of(dropping), weights_of(reference), atol=1e-6, rtol=0)


def test_without_a_share_no_bit_changes():
    one, two = learner(), learner()
    assert one.supervised_step(random_samples(4), 0) == two.supervised_step(random_samples(4), 0, 0.0)
    assert torch.equal(weights_of(one), weights_of(two))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["method.drop={most: 1}"], "method.drop.most"),
        (["method.drop={mots: 0.5}"], "did you mean 'most'"),
        (["method.drop={most: 0.5}", "method.targets=all"], "drop leaves out tokens that the model wrote"),
        (["method.drop={most: 0.5, slope: 0}"], "method.drop.slope"),
    ],
)
def test_options_that_cannot_work_are_refused(values, says):
    with pytest.raises(CardError, match=says):
        load_recipe("tiny-warm", values)

"""The probe after an update: what it lets pass, and what it stops."""

import numpy as np
import pytest
from test_learner import random_samples

from searchgym.errors import TrainingError
from searchgym.rollout.sampler import Sampled
from searchgym.train.algorithms.samples import SampleCall
from searchgym.train.run.probe import probe


class Writes:
    """A sampler whose responses have the log-probs of the learner, apart by given differences."""

    def __init__(self, apart):
        self.apart = list(apart)

    def sample(self, requests):
        return [Sampled(np.arange(len(own)), -1 + np.array(own, np.float32), "stop") for own in self.apart]


class Knows:
    """A learner by which every token has the log-prob -1."""

    def logp(self, samples):
        return [np.full(int(sample.mask.sum()), -1, np.float32) for sample in samples]

    def version_of(self, key):
        return 2


def probed(apart, allowed=0.02):
    samples = []
    for sample in random_samples(len(apart)):
        call = SampleCall(0, len(sample.ids) - 1, len(sample.ids), "searcher", 1)
        samples.append(
            type(sample)(**{f: getattr(sample, f) for f in sample.__dataclass_fields__} | {"calls": (call,)})
        )
    return probe(Writes(apart), Knows(), samples, temperature=1.0, count=len(apart), allowed=allowed)


def test_rounding_that_scatters_does_not_stop_a_training():
    """Seen with SmolLM2 in bfloat16: 48 tokens, mean 0.0208, because a few tokens differ by much."""
    apart = np.full(48, 0.004)
    apart[:4] = 0.2
    row = probed(apart.reshape(4, 12))
    assert row["probe/difference"] == pytest.approx(0.0203, abs=1e-4)
    assert row["probe/max_difference"] == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize("apart", [np.full(48, 0.021), np.linspace(0.0, 0.12, 48), np.full(48, np.nan)])
def test_other_weights_stop_it(apart):
    """A difference of every token, one that scatters around three times the limit, and no number at all."""
    with pytest.raises(TrainingError, match=r"policy: after update 2, .* \(48 tokens, 0.02 is allowed\)"):
        probed(apart.reshape(4, 12))


def test_a_single_token_is_judged_as_it_is():
    assert probed([[0.02]])["probe/difference"] == pytest.approx(0.02)
    with pytest.raises(TrainingError, match="1 tokens"):
        probed([[0.03]])

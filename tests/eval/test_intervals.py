from statistics import NormalDist

import numpy as np
import pytest

from searchgym.eval import scores
from searchgym.eval.compare import t_interval, two_way_ci
from searchgym.eval.scores import bootstrap_ci


def test_equal_values_have_no_width():
    assert bootstrap_ci([1.0] * 10) == [1.0, 1.0]


def test_it_is_close_to_the_normal_interval_of_a_large_sample():
    values = np.random.default_rng(1).random(4000)
    low, high = bootstrap_ci(values, resamples=2000)
    half = NormalDist().inv_cdf(0.975) * values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=half * 0.15)
    assert high == pytest.approx(values.mean() + half, abs=half * 0.15)


def test_it_is_deterministic():
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    assert bootstrap_ci(values) == bootstrap_ci(values)
    assert bootstrap_ci(values, seed=1, resamples=50) != bootstrap_ci(values, resamples=50)


def test_t_interval_by_hand():
    """Mean 3, variance 2.5, 5 values: 3 ± 2.776 √(2.5 / 5), 2.776 from the tables for 4 degrees of freedom."""
    assert t_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5), abs=1e-3)


@pytest.mark.parametrize("block", [1, 7, 3000, 1 << 22])
def test_resampling_in_blocks_gives_the_bits_of_resampling_one_by_one(monkeypatch, block):
    values = np.random.default_rng(3).random(333)
    rng = np.random.default_rng(0)
    means = [values[rng.integers(333, size=333)].mean() for _ in range(1000)]
    monkeypatch.setattr(scores, "BLOCK", block)
    assert bootstrap_ci(values) == [float(bound) for bound in np.quantile(means, (0.025, 0.975))]


def test_the_two_way_interval_has_both_variances():
    """Values that are a seed's part plus a question's: the variance of their mean is the sum of two, each over n."""
    rng = np.random.default_rng(5)
    seeds, questions = rng.normal(0, 0.02, 20), rng.normal(0.03, 0.4, 200)
    low, high = two_way_ci(seeds[:, None] + questions, resamples=4000)
    half = 1.96 * np.sqrt(seeds.var() / 20 + questions.var() / 200)
    mean = seeds.mean() + questions.mean()
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=half * 0.06)


def test_the_two_way_interval_of_seeds_that_agree_is_that_of_the_questions():
    """Student's t over the seeds has no width there, whatever other questions would give."""
    questions = np.random.default_rng(6).normal(0.0, 0.5, 100)
    same = np.tile(questions, (5, 1))
    assert t_interval(same.mean(1)) == pytest.approx((questions.mean(), questions.mean()))
    low, high = two_way_ci(same, resamples=4000)
    assert high - low == pytest.approx(2 * 1.96 * questions.std() / 10, rel=0.06)


def test_the_two_way_interval_is_no_narrower_than_students_t():
    by_seed = np.array([0.1, 0.2, 0.3])
    low, high = two_way_ci(np.tile(by_seed[:, None], (1, 50)), resamples=500)
    assert (low, high) == pytest.approx(t_interval(by_seed))

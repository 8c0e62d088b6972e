"""Shares of data by merging models: mixtures, the fitted surface, a linear model, and the command."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support import command_line

import searchgym
from searchgym.cli.pipeline.mixture import best_mixture, mixtures
from searchgym.errors import UsageError
from searchgym.rollout.loading import load_model


def test_mixtures_begin_with_each_expert_and_their_mean():
    shares = mixtures(3, 9, 0)
    assert shares.shape == (9, 3) and shares[:4].tolist() == [*np.eye(3).tolist(), [1 / 3] * 3]
    assert shares.sum(axis=1) == pytest.approx(np.ones(9)) and shares.min() >= 0
    assert np.array_equal(shares, mixtures(3, 9, 0)) and not np.array_equal(shares, mixtures(3, 9, 1))


@pytest.mark.parametrize(("experts", "points", "why"), [(1, 9, "two experts"), (3, 6, "points is 6: 3 experts need 7")])
def test_what_no_surface_fits_is_refused(experts, points, why):
    with pytest.raises(UsageError, match=why):
        mixtures(experts, points, 0)


def test_the_best_share_of_a_known_surface():
    """By hand: 1 - (a - 0.3) ** 2 and 0.5 - (a - 0.5) ** 2 have the best mean at a = 0.4."""
    shares = mixtures(2, 8, 0)
    a = shares[:, 0]
    best, predicted = best_mixture(shares, np.stack([1 - (a - 0.3) ** 2, 0.5 - (a - 0.5) ** 2], axis=1))
    assert best == pytest.approx([0.4, 0.6]) and predicted == pytest.approx([0.99, 0.49], abs=1e-4)


def test_an_expert_that_is_best_at_everything_is_all_of_the_mixture():
    shares = mixtures(3, 12, 0)
    assert best_mixture(shares, shares @ np.array([[0.2, 0.3], [0.9, 0.8], [0.1, 0.4]]))[0].tolist() == [0, 1, 0]


def test_for_a_linear_model_merging_finds_the_best_mixture_of_the_data():
    """Least squares on mixed data, solved for every mixture of a grid, against the fitted surface of merged experts.

    The inputs of all data sets are the same, so an expert's weights are linear in its labels, and so are a mixture's.
    """
    rng = np.random.default_rng(3)
    inputs, truths = rng.normal(size=(40, 4)), rng.normal(size=(3, 4))
    targets = np.array([0.5, 0.3, 0.2]) @ truths + rng.normal(size=(2, 4)) * 0.3  # two capabilities

    def trained(shares):
        """Weights that minimise the loss on data sets of labels ``inputs @ truth``, each with its share."""
        left = sum(share * inputs.T @ inputs for share in shares)
        return np.linalg.solve(left, sum(s * inputs.T @ (inputs @ t) for s, t in zip(shares, truths, strict=True)))

    def skill(weights):
        return [-float(((inputs @ (weights - target)) ** 2).mean()) for target in targets]

    experts = [trained(row) for row in np.eye(3)]
    shares = mixtures(3, 12, 0)
    best, predicted = best_mixture(shares, np.array([skill(np.tensordot(row, experts, 1)) for row in shares]))
    grid = [np.array([i, j, 20 - i - j]) / 20 for i, j in itertools.product(range(21), repeat=2) if i + j <= 20]
    right = max(grid, key=lambda row: np.mean(skill(trained(row))))
    assert best == pytest.approx(right) and predicted == pytest.approx(skill(trained(right)), abs=1e-3)
    assert 0 < best.max() < 1


@pytest.mark.slow
def test_the_command_prefers_the_model_that_can_answer(tmp_path, monkeypatch, capsys):
    """The shipped model and the same without its head: nothing of the second is best."""
    shutil.copytree(Path(searchgym.__file__).parents[1] / "models" / "tiny", tmp_path / "good")
    (tmp_path / "good" / "card.yaml").unlink(missing_ok=True)
    model, tokenizer = load_model(tmp_path / "good")
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    model.save_pretrained(tmp_path / "empty")
    tokenizer.save_pretrained(tmp_path / "empty")
    run = command_line(monkeypatch, capsys)
    common = ("--env", "World", "--agent", "search-r1", "--limit", "3", "--points", "4", "--json")
    status, out, errors = run("model", "mix", tmp_path / "good", tmp_path / "empty", *common)
    assert status == 0, errors
    result = json.loads(out)
    first, second = result["shares"].values()
    assert first > 0.5 > second and len(result["measured"]) == 4
    status, _, errors = run("model", "mix", tmp_path / "good", *common)
    assert status and "two experts or more" in errors

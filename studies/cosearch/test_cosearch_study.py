"""The ranker's study: demonstrations are written and learnt."""

import pytest
from test_benchmarks import here

from searchgym.train.recipe.load import load_recipe

pytestmark = pytest.mark.study


def test_a_ranker_is_shown_its_role(tmp_path):
    found = here(
        "studies/cosearch/cosearch.py",
        "show",
        "--out",
        str(tmp_path),
        "--n",
        "12",
        "--set",
        "steps=1",
        "method.batch=4",
    )
    assert found.returncode == 0, found.stderr
    assert load_recipe(str(tmp_path / "shown" / "recipe.yaml")).agent == "cosearch"
    assert (tmp_path / "shown" / "checkpoints" / "last").exists()
    assert (tmp_path / "demonstrations" / "episodes.jsonl").read_text().count('"ranked"') > 6

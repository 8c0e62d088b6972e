"""What an agent does after its last page: worked by hand, and for scripted agents of which it is known."""

import importlib
import json
from pathlib import Path

import pytest
from test_benchmarks import script

from searchgym.agents import load_agent
from searchgym.envs import find_env, load_task
from searchgym.errors import DataError
from searchgym.eval import evaluate
from searchgym.records import Episode, Hit, Passage, Question, Searched, SupportingFact

pytestmark = pytest.mark.study
ROOT = Path(__file__).parents[2]
QUESTION = Question("q", "?", ("Rox",), supporting_facts=(SupportingFact("Zor"), SupportingFact("Ada Bel")))


@pytest.fixture(scope="module")
def searching_on():
    return importlib.import_module("searching_on")


def episode(em, *found):
    """An episode whose turns found pages of these titles."""
    searches = [
        Searched(turn, "?", tuple(Hit(Passage(title, title, "?"), 1.0) for title in titles))
        for turn, titles in enumerate(found, 1)
    ]
    return Episode("q#0", "q", "a", "env", searches=searches, scores={"em": em})


def test_by_hand(searching_on):
    made = [
        episode(1.0, ["Zor"], ["Ada Bel"]),  # answers at once
        episode(0.0, ["Zor", "Kim"], ["Kim"], ["Ada Bel"]),  # searched in vain, but not afterwards
        episode(1.0, ["Zor", "Ada Bel"], ["Zor"]),  # goes on
        episode(1.0, ["Zor"], ["Kim"]),  # a page is missing: right by luck
    ]
    found = [searching_on.found_in(own, QUESTION) for own in made]
    assert [(own.whole, own.went_on) for own in found] == [(True, False), (True, False), (True, True), (False, False)]
    wanted = {"questions": 4, "em": 0.75, "whole": 0.75, "right of whole": 2 / 3, "searched on": 1 / 3}
    assert searching_on.summary(found) == wanted
    assert searching_on.summary(found[3:])["searched on"] is None
    with pytest.raises(DataError, match="names no gold page"):
        searching_on.found_in(made[0], Question("q", "?", ("Rox",)))


@pytest.mark.slow
def test_scripted_agents(tmp_path):
    task = load_task(find_env("searchgym/World-v0"))
    for agent in ("evidence-oracle", "single-search"):
        evaluate(task.subset(20), load_agent(agent), tmp_path / agent)
    found = script(
        "studies/field/searching_on.py", str(tmp_path / "evidence-oracle"), str(tmp_path / "single-search"), "--json"
    )
    assert found.returncode == 0, found.stderr
    oracle, single = (row for row in json.loads(found.stdout)["results"] if row["pages"] == "all")
    assert oracle["questions"] == single["questions"] == 20
    assert oracle["whole"] == 1 and oracle["searched on"] == single["searched on"] == 0
    assert single["whole"] < 1

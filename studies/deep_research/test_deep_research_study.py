"""The study at a small size: agents under faults lose what arithmetic says."""

import argparse

import pytest
from deep_research import compared, of_agents, task_with, under_faults

pytestmark = pytest.mark.study
SMALL = {"questions": {"split": "test", "documents": 40, "words": 1000, "n": 10}}


def test_differences_are_averaged_over_seeds_before_questions():
    row = compared({"a": [(1.0, 0.0), (1.0, 1.0)], "b": [(1.0, 1.0)]})
    assert (row["questions"], row["runs"], row["clean"], row["faulty"], row["difference"]) == (2, 3, 1.0, 0.75, -0.25)
    assert compared({}) == {"questions": 0}


def test_a_researcher_that_repeats_keeps_more_than_one_that_does_not(tmp_path):
    given = argparse.Namespace(rules=SMALL, limit=None, kinds=["rate-limit", "injected"])
    losses = {
        agent: {row["fault"]: row for row in under_faults(agent, [1, 2], tmp_path / agent, None, given)}
        for agent in ("research-oracle", "research-once")
    }
    assert losses["research-once"]["rate-limit"]["faulty"] == 0.0 < losses["research-oracle"]["rate-limit"]["faulty"]
    assert losses["research-oracle"]["injected"]["difference"] == 0.0
    assert losses["research-once"]["none"]["em"] == 1.0


def test_agents_have_rows(tmp_path):
    (row,) = of_agents(["closed-book"], tmp_path, limit=2)
    assert (row["agent"], row["em"], row["turns"]) == ("closed-book", 0.0, 1.0)
    assert len(task_with([]).questions) == 100

"""The study at a small size: the demonstrations, a step of each arm, and the contrasts as by hand."""

import json

import completeness
import pytest

from searchgym.envs import find_env, load_task
from searchgym.rollout import read_episodes
from searchgym.train.algorithms.samples import samples_from


def test_half_of_the_demonstrations_search_and_the_reader_is_learnt(tmp_path):
    task = load_task(find_env(completeness.ENV), questions={"split": "train", "size": 8, "seed": 7})
    episodes = list(read_episodes(completeness.by_heart(task, tmp_path / "shown"), tokens=True))
    searches = [len(episode.searches) for episode in episodes]
    assert searches[:8] == [0] * 8 and searches[8:] == [len(q.gold_titles) for q in task.questions]
    assert all(episode.scores["em"] == 1 for episode in episodes)
    roles = [{call.role for sample in samples_from(e, "demonstration") for call in sample.calls} for e in episodes]
    assert roles == [{"searcher"}] * 8 + [{"searcher", "reader"}] * 8


@pytest.mark.study
def test_every_arm_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(completeness, "VALUES", [*completeness.VALUES, "steps=1", "rollout.questions=2"])
    for arm in completeness.ARMS:
        row = completeness.run_unit(arm, 1, "tiny", tmp_path / arm)
        assert len(row["searches"]) == len(row["em"]) == 2


def test_the_contrasts_are_those_by_hand(tmp_path):
    ends = {"outcome": (1.5, 1.3), "costs": (0.0, 0.2), "completeness": (2.0, 2.4)}
    for arm, of_seeds in ends.items():
        for seed, searches in enumerate(of_seeds, 1):
            row = {"arm": arm, "seed": seed, "searches": [1.6, searches], "em": [1.0, 0.9]}
            (tmp_path / f"{arm}-{seed}.json").write_text(json.dumps(row))
    result = completeness.summary(tmp_path)
    assert result["searches, costs"].startswith("0.100") and result["em, costs"].startswith("0.900")
    assert result["searches, completeness less costs"].startswith("2.100")
    assert result["searches, costs less outcome"].startswith("-1.300")

"""Trainings that are killed and resumed: no response that is on disk is sampled again; see crash_rollouts.py."""

import json

import pytest
from test_crash import script

KINDS = {
    "whole steps": ["rollout.durable=steps"],
    "responses": ["rollout.durable=responses"],
    "ahead": ["rollout.staleness=1", "loss.importance_cap=2"],
    "partial": ["rollout.staleness=1", "rollout.partial=1", "loss.importance_cap=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_response_on_disk_is_sampled_again_after_a_kill(tmp_path, kind):
    """More kills: ``python tests/train/crash_rollouts.py OUT 20 0 KEY=VALUE ...``."""
    result = json.loads(script("crash_rollouts.py", tmp_path, 3, KINDS[kind]).splitlines()[-1])
    assert result["reused"] > 0
    if kind != "whole steps":  # there a rollout that was not complete is sampled again, to keep the bits
        assert result["twice"] == 0
    if kind in ("whole steps", "responses"):
        for name in ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl"):
            assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()

"""Demonstrations of every shipped team, which the model for teams is made from."""

import numpy as np
import pytest
from tiny_teams import team_samples

from searchgym.agents.base import load_agent
from searchgym.protocol import get_protocol
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.demonstrations.teams import TEAMS

pytestmark = pytest.mark.study


def test_team_demonstrations_are_a_function_of_world_and_flaws():
    world = build_world(WorldSpec("simple", size=40, seed=3, split="validation"))
    form = TokenFormat(load_tokenizer("tiny-teams"), get_protocol("tags"), chat=True)
    first, second = (team_samples(world, 0.5, form) for _ in range(2))
    assert len(first) == len(second) > 100
    assert all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.mask, b.mask) for a, b in zip(first, second, strict=True)
    )
    roles = {call.role for sample in first for call in sample.calls}
    shown = {role for name in (*TEAMS, "praise") for role in load_agent(name).roles}
    assert roles == shown - (set() if "parallel" in roles else {"parallel"})

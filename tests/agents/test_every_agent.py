"""Every shipped agent keeps the contract of agents, whatever its models say."""

import pytest

from searchgym.agents.base import load_agent
from searchgym.options.cards import list_cards
from searchgym.testing import AgentTests


@pytest.mark.slow_cases
class TestEveryAgent(AgentTests):
    @pytest.fixture(autouse=True, params=list_cards("agents"))
    def name_it(self, request):
        self.name = request.param

    def make_agent(self):
        return load_agent(self.name)

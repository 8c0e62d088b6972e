"""Conformance suites for your own environments, retrievers, agents and samplers.

Each suite is a mixin: a subclass defines how to make the object under test, and every ``test_`` method checks one
clause of the contract. pytest collects the subclass; without pytest, call the methods one by one::

    from searchgym.testing import RetrieverTests

    class TestMine(RetrieverTests):
        queries = ("Which river ends in the Black Sea?", "zebra")

        def make_retriever(self):
            return MyRetriever(PASSAGES)
"""

from searchgym.testing.agents import AgentTests
from searchgym.testing.environments import EnvironmentTests
from searchgym.testing.retrievers import RetrieverTests, assert_same_hits, hostile_queries
from searchgym.testing.samplers import SamplerTests

__all__ = ["AgentTests", "EnvironmentTests", "RetrieverTests", "SamplerTests", "assert_same_hits", "hostile_queries"]

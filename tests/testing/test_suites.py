"""A suite passes what is right, and each of its checks names what breaks its clause."""

import subprocess
import sys

import pytest
from broken_gym import ENVIRONMENTS, RETRIEVERS, Shifted
from broken_rollout import AGENTS, SAMPLERS
from subjects import Agents, Environments, Retrievers, Samplers, Weightless

from searchgym.envs.single import SearchEnv
from searchgym.retrieval.retriever import NullRetriever
from searchgym.testing import AgentTests, EnvironmentTests, RetrieverTests, SamplerTests


def checks(suite):
    return [name for name in dir(suite) if name.startswith("test_")]


SUITES = [Retrievers, Environments, Agents, Samplers]


@pytest.mark.slow_cases
@pytest.mark.parametrize(("suite", "check"), [(suite, check) for suite in SUITES for check in checks(suite)])
def test_what_is_right_passes(suite, check):
    getattr(suite(), check)()


def test_a_sampler_without_weights_passes():
    class Suite(Samplers):
        subject = Weightless

        def new_weights(self):
            return None

    for check in checks(Suite):
        getattr(Suite(), check)()


# -- each names what is broken --------------------------------------------------------------------------------------

BROKEN = [
    *((Retrievers, *row) for row in RETRIEVERS),
    *((Environments, *row) for row in ENVIRONMENTS),
    *((Agents, *row) for row in AGENTS),
    *((Samplers, *row) for row in SAMPLERS),
]


@pytest.mark.parametrize(
    ("suite", "check", "broken", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_what_is_broken_is_named(suite, check, broken, message):
    mine = type("Mine", (suite,), {"subject": broken})
    with pytest.raises(Exception, match=f"(?s){message}"):
        getattr(mine(), check)()


def test_a_vector_of_other_seeds_is_named():
    class Suite(Environments):
        def make_vector(self, number):
            return Shifted("demo", number, retriever=NullRetriever())

        def make_env(self, retriever=None):
            return SearchEnv("demo", retriever=NullRetriever())

    with pytest.raises(AssertionError, match=r"environment \d of the vector"):
        Suite().test_a_vector_gives_the_episodes_of_single_environments()


def test_every_check_has_a_broken_subject():
    tried = {(suite, check) for suite, check, _, _ in BROKEN}
    tried.add((Environments, "test_a_vector_gives_the_episodes_of_single_environments"))
    assert tried == {(suite, check) for suite in SUITES for check in checks(suite)}


@pytest.mark.parametrize(
    ("suite", "check", "missing"),
    [
        (RetrieverTests, "test_many_queries_in_one_call", r"must define make_retriever\(self\)"),
        (EnvironmentTests, "test_an_answer_ends_the_episode", r"must define make_env\(self, retriever=None\)"),
        (AgentTests, "test_hostile_pages_are_survived", r"must define make_agent\(self\)"),
        (SamplerTests, "test_close_can_be_called_twice", r"must define make_sampler\(self\)"),
    ],
)
def test_what_a_subclass_must_define_is_said(suite, check, missing):
    with pytest.raises(NotImplementedError, match=f"{suite.__name__} {missing}"):
        getattr(suite(), check)()


@pytest.mark.slow
def test_the_import_is_light():
    heavy = {"torch", "transformers", "faiss", "numba", "pytest"}
    code = f"import sys, searchgym.testing; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"

"""The same scripted episode through each adapter gives the reward, stop reason and observations of `SearchEnv`.

Adapters whose packages stand beside this package's own run in `make test`; the others, marked ``adapter``, in
environments of their own (`make test-adapters`).
"""

import importlib

import pytest
from scripts import SCRIPTS, agree, expected, register

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages warn of what is theirs to mend

ADAPTERS = [
    pytest.param("inspect", marks=pytest.mark.smoke),  # its first evaluation imports 4,000 modules of model providers
    *(pytest.param(name, marks=pytest.mark.adapter) for name in ("skyrl", "openrlhf", "verl", "openenv", "verifiers")),
]


@pytest.fixture(scope="module")
def envs():
    return register()


@pytest.mark.slow_cases
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_episode_is_the_same_everywhere(adapter, script, envs, tmp_path):
    name, says = SCRIPTS[script]
    play = importlib.import_module(f"play_{adapter}").play
    agree(play(envs[name], says, tmp_path), expected(envs[name], says))

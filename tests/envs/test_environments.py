"""Environments of all kinds keep the contract of environments: in both grammars, over several retrievers."""

import gymnasium
import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.envs.registration import find_env, registered
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.envs.vector import SearchVectorEnv
from searchgym.retrieval.index.index import build_in_memory
from searchgym.testing import EnvironmentTests
from searchgym.testing.fakes import HOSTILE_ACTIONS


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEARCHGYM_HOME", str(tmp_path_factory.mktemp("home")))
        yield


INDEX = build_in_memory(PASSAGES)
DOCUMENTS = {"questions": {"documents": 40, "words": 1000, "n": 20}}
SMALL = {"questions": QUESTIONS, "retriever": TitleRetriever()}
WORLD = {"questions": {"seed": 7, "size": 30}}
ENVIRONMENTS = {
    "tags": SMALL | {"protocol": "tags"},
    "tool_calls": SMALL | {"protocol": "tool_calls"},
    "bm25": SMALL | {"retriever": INDEX, "protocol": "tags"},
    "bm25, tool_calls": SMALL | {"retriever": INDEX, "protocol": "tool_calls", "max_queries": 3},
    "browse": SMALL | {"retriever": INDEX, "protocol": "tags", "browse": True, "snippet_words": 3},
    "two retrievers": SMALL | {"protocol": "tags", "retrievers": {"web": INDEX}},
    "two retrievers, tool_calls": SMALL | {"protocol": "tool_calls", "max_queries": 3, "retrievers": {"web": INDEX}},
    "browse, tool_calls": SMALL | {"retriever": INDEX, "protocol": "tool_calls", "browse": True},
}


@pytest.mark.slow_cases
class TestEveryEnvironment(EnvironmentTests):
    @pytest.fixture(autouse=True, params=ENVIRONMENTS)
    def options_of_it(self, request):
        self.options = ENVIRONMENTS[request.param]
        self.protocol = self.options["protocol"]

    def task(self, retriever=None):
        if retriever is not None and self.options.get("browse"):  # pages are opened from a corpus
            retriever.passages, retriever.passage = INDEX.passages, INDEX.passage
        return load_task(CARD, **(self.options | ({"retriever": retriever} if retriever else {})))

    def make_env(self, retriever=None):
        return SearchEnv(self.task(retriever), render_mode="ansi")

    def make_vector(self, number):
        return SearchVectorEnv(self.task(), number)

    @pytest.mark.slow  # megabytes of text; the class below has the short ones
    def test_hostile_actions_get_deterministic_replies(self):
        super().test_hostile_actions_get_deterministic_replies()


@pytest.mark.slow_cases
class TestEveryRegisteredEnvironment(EnvironmentTests):
    """As Gymnasium makes them: wrapped, by their ids, with small questions where theirs are not bundled."""

    hostile = tuple(action for action in HOSTILE_ACTIONS if len(action) < 10_000)

    @pytest.fixture(autouse=True, params=sorted(registered()))
    def id_of_it(self, request):
        self.id, demo, world = request.param, request.param == "searchgym/Demo-v0", "World" in request.param
        self.options = {} if demo else WORLD if world else DOCUMENTS if "Research" in self.id else SMALL
        self.protocol = find_env(self.id).protocol

    def make_env(self, retriever=None):
        without_pages = dict.fromkeys(("browse", "find", "cite"), False)  # a retriever of a test has no corpus
        options = self.options | ({"retriever": retriever, **without_pages} if retriever else {})
        return gymnasium.make(self.id, render_mode="ansi", **options)

    def make_vector(self, number):
        return gymnasium.make_vec(self.id, num_envs=number, vectorization_mode="vector_entry_point", **self.options)

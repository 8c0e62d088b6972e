"""What a user's retriever may return: a wrong field is a fault of one search, a wrong program an error at once."""

import json
import math

import numpy as np
import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.agents.base import load_agent
from searchgym.envs.reward import get_reward
from searchgym.envs.single import SearchEnv
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.kinds.cache import CacheRetriever
from searchgym.retrieval.kinds.hybrid import HybridRetriever
from searchgym.retrieval.kinds.tool import ToolRetriever
from searchgym.retrieval.retriever import checked, retrieve

PAGE = Passage("1", "A", "b")
SEARCH = "<search>Alpha</search>"


class Gives:
    """A retriever that returns the same for every query."""

    in_process = True

    def __init__(self, hits):
        self.hits, self.calls = hits, 0

    def search(self, queries, k):
        self.calls += 1
        return [self.hits for _ in queries]


def page(**fields):
    return Hit(Passage(**{"id": "1", "title": "A", "text": "b"} | fields), 1.0)


FIELDS = [
    (Hit(PAGE, "high"), "score is 'high', expected a finite number"),
    (Hit(PAGE, None), "score is None"),
    (Hit(PAGE, math.nan), "score is nan"),
    (Hit(PAGE, -math.inf), "score is -inf"),
    (Hit(PAGE, np.float32("nan")), "score is .*nan"),
    (Hit(PAGE, np.array([1.0])), r"score is array\(\[1.\]\)"),
    (Hit(PAGE, True), "score is True"),
    (Hit(PAGE, np.True_), "score is .*True"),
    (Hit(PAGE, 1j), "score is 1j"),
    (Hit(PAGE, 10**400), "score is 1000"),
    (page(id=5), "passage.id is 5, expected a text"),
    (page(title=None), "passage.title is None"),
    (page(text=None), "passage.text is None"),
    (page(text=b"x"), "passage.text is b'x'"),
    (page(text=["a"]), r"passage.text is \['a'\]"),
    (Hit({"id": "1"}, 1.0), "passage is {'id': '1'}, expected a Passage"),
    (Hit(None, 1.0), "passage is None"),
]


@pytest.mark.parametrize(("hit", "said"), FIELDS)
def test_a_field_of_the_wrong_type_is_a_fault_that_names_it(hit, said):
    good = Hit(PAGE, 2.0)
    with pytest.raises(RetrieverError, match=f"hit 2 of query 1: {said}"):
        checked([[good, hit]], 1, 2)
    env = SearchEnv(CARD, questions=QUESTIONS, retriever=Gives([hit]), retriever_deadline=0.01)
    env.reset(seed=0)
    *_, truncated, info = env.step(SEARCH)
    assert truncated and info["stop_reason"] == "retriever_error" and "hit 1 of query 1" in info["error"]


@pytest.mark.parametrize(
    ("score", "number"),
    [(np.float32(0.5), 0.5), (np.float64(0.1), 0.1), (np.int64(3), 3.0), (7, 7.0), (np.float16(-2), -2.0), (0, 0.0)],
)
def test_other_numbers_become_floats(score, number):
    ((hit,),) = checked([(Hit(PAGE, score),)], 1, 1)
    assert (type(hit.score), hit.score, hit.passage) == (float, number, PAGE)


def test_what_was_right_stays_as_it_is():
    hits = [[Hit(PAGE, 1.5), Hit(PAGE, -1.0)], []]
    assert checked(hits, 2, 2) == hits
    assert checked([[page(text=np.str_("b"))]], 1, 1) == [[page()]]  # a text of a subclass is a text


def test_an_evaluation_with_numbers_of_numpy_can_be_read_back(tmp_path):
    from searchgym.envs.registration import find_env
    from searchgym.envs.task import load_task
    from searchgym.eval.runner import evaluate
    from searchgym.rollout.storage import read_episodes

    task = load_task(find_env("Demo"), retriever=Gives([Hit(PAGE, np.float32(0.5))]))
    evaluate(task.asking(task.questions[:1]), load_agent("single-search"), tmp_path / "run", {})
    (line,) = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    assert json.loads(line)["searches"][0]["hits"][0]["score"] == 0.5
    (episode,) = read_episodes(tmp_path / "run" / "episodes.jsonl")
    assert episode.searches[0].hits == (Hit(PAGE, 0.5),)


# -- mistakes of the program ---------------------------------------------------------------------------------------


async def later(queries, k):
    return [[]]


class Asynchronous:
    def search(self, queries, k):
        return later(queries, k)


class Whole:
    in_process = True

    def __init__(self, whole):
        self.whole = whole

    def search(self, queries, k):
        return self.whole


MISTAKES = [
    (Gives([{"id": "1", "title": "A", "text": "b"}]), "expected Hit records, hit 1 of query 1, got dict"),
    (Gives([PAGE]), "got Passage"),
    (Gives(["a page"]), "got str"),
    (Gives(None), "expected a list of hits for query 1, got NoneType"),
    (Gives("ab"), "expected a list of hits for query 1, got str 'ab'"),
    (Gives({0: Hit(PAGE, 1.0)}), "got dict"),
    (Whole(None), "expected a list of 1 lists of hits, got NoneType"),
    (Whole(([],)), "got tuple"),
    (Whole([Hit(PAGE, 1.0)]), "expected a list of hits for query 1, got Hit"),
    (Whole(iter([[]])), "got list_iterator"),
    (Asynchronous(), "got coroutine: search.. is not async; a ToolRetriever calls an async function"),
]


@pytest.mark.parametrize(("retriever", "said"), MISTAKES)
def test_a_program_that_returns_no_hits_is_an_error_at_once(retriever, said):
    """Neither an episode with reward 0 nor a second try."""
    env = SearchEnv(CARD, questions=QUESTIONS, retriever=retriever)
    env.reset(seed=0)
    with pytest.raises(UsageError, match=said) as caught:
        env.step(SEARCH)
    assert "\n" not in str(caught.value)
    if not isinstance(retriever, Gives):
        return
    assert retriever.calls == 1
    vector = SearchVectorEnv(CARD, 2, questions=QUESTIONS, retriever=retriever)
    vector.reset(seed=0)
    with pytest.raises(UsageError, match="expected"):
        vector.step((SEARCH, SEARCH))


def test_a_mistake_ends_an_evaluation(tmp_path):
    from searchgym.envs.registration import find_env
    from searchgym.envs.task import load_task
    from searchgym.eval.runner import evaluate

    task = load_task(find_env("Demo"), retriever=Gives([{"id": "1"}]))
    with pytest.raises(UsageError, match="expected Hit records"):
        evaluate(task, load_agent("single-search"), tmp_path / "run", {})


class FewArguments:
    def search(self, queries):
        return [[] for _ in queries]


class NamedArguments:
    def search(self, queries, *, k):
        return [[] for _ in queries]


class ForQuestions:
    def search_for(self, queries, k):
        return [[] for _ in queries]


class Fine:
    def search(self, queries, k=3, *rest, more=None):
        return [[] for _ in queries]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            FewArguments(),
            r"FewArguments\.search is called with \(queries, k\), but FewArguments\.search takes \(queries",
        ),
        (NamedArguments(), r"NamedArguments\.search is called with \(queries, k\)"),
        (ForQuestions(), r"ForQuestions\.search_for is called with \(question_ids, queries, k\)"),
        (lambda: Fine(), r"the function retriever= is called with \(passages\), but .*<lambda> takes \(\)"),
        (lambda passages, k: Fine(), "the function retriever= is called with"),
        (lambda passages: {"a": 1}, r"the function retriever= returned dict, which has no search\(\)"),
        (lambda passages: FewArguments(), "FewArguments.search is called with"),
    ],
)
def test_a_retriever_of_other_arguments_is_refused_when_it_is_given(given, said):
    with pytest.raises(UsageError, match=said) as caught:
        SearchEnv(CARD, questions=QUESTIONS, retriever=given)
    assert "\n" not in str(caught.value)


def test_a_retriever_inside_another_is_checked_too():
    for wrap in (CacheRetriever, lambda inner: HybridRetriever([TitleRetriever(), inner])):
        with pytest.raises(UsageError, match=r"FewArguments\.search is called with"):
            wrap(FewArguments())
    with pytest.raises(UsageError, match="expected Hit records"):
        retrieve(CacheRetriever(Gives([{"id": "1"}])), ["q"], ["x"], 1, 1.0)


@pytest.mark.parametrize("function", [lambda query: [], lambda query, *, k: [], lambda a, b, c: []])
def test_a_tool_of_other_arguments_is_refused(function):
    with pytest.raises(UsageError, match=r"a tool is called with \(query, k\), but .* takes \("):
        ToolRetriever(function)
    with pytest.raises(UsageError, match=r"a tool is called with \(queries, k\)"):
        ToolRetriever(function, batched=True)
    assert ToolRetriever(dict.fromkeys)  # Python does not tell what it takes


@pytest.mark.parametrize("reward", [lambda: 1.0, lambda state, answer: 1.0])
def test_a_reward_of_other_arguments_is_refused(reward):
    with pytest.raises(UsageError, match=r"reward .*<lambda> is called with \(state\)"):
        get_reward(reward)
    with pytest.raises(UsageError, match="is called with"):
        SearchEnv(CARD, questions=QUESTIONS, retriever=TitleRetriever(), reward=reward)


def test_functions_by_name_are_checked_too(tmp_path, monkeypatch):
    (tmp_path / "functions_of_a_user.py").write_text(
        "def reward(): return 1.0\ndef tool(query): return []\nclass Agent:\n    async def run(self, question): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for load, name, wanted in (
        (get_reward, "functions_of_a_user:reward", "state"),
        (ToolRetriever.of_name, "functions_of_a_user:tool", "query, k"),
        (load_agent, "functions_of_a_user:Agent", "self, question, io"),
    ):
        with pytest.raises(UsageError, match=rf"functions_of_a_user:.* is called with \({wanted}\), but ") as caught:
            load(name)
        assert "\n" not in str(caught.value)


def test_what_fails_at_work_stays_data():
    """Even an error of a type that a wrong program would raise: a reply that lacks a field does, too."""
    for error in (ConnectionError("down"), TimeoutError("late"), TypeError("'NoneType' object is not subscriptable")):

        class Fails:
            in_process = True

            def search(self, queries, k, error=error):
                raise error

        env = SearchEnv(CARD, questions=QUESTIONS, retriever=Fails(), retriever_deadline=0.01)
        env.reset(seed=0)
        *_, info = env.step(SEARCH)
        assert info["stop_reason"] == "retriever_error" and str(error) in info["error"]
    assert len(retrieve(TitleRetriever(), ["q"], ["Alpha"], 3, 1.0)[0]) == len(PASSAGES[:1])

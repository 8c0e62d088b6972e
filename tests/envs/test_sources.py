"""Environments with several retrievers: who is asked, what Gymnasium says, and what is refused."""

import asyncio
import dataclasses
import itertools
import json
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from support import CARD, PASSAGES, QUESTIONS, FailingRetriever, TitleRetriever

import searchgym
from searchgym.agents.base import LoadedAgent
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import CardError, DataMissingError, UsageError
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Invalid, Search
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine

OWN, WEB = TitleRetriever(PASSAGES[:2]), TitleRetriever(PASSAGES[2:])


def small(**options):
    return load_task(CARD, **({"questions": QUESTIONS, "retriever": OWN, "retrievers": {"web": WEB}} | options))


def titles(info):
    return [hit["title"] for hit in info["hits"]]


@pytest.mark.parametrize("protocol", ["tags", "tool_calls"])
def test_gymnasium_accepts_an_environment_with_two_retrievers(protocol):
    for web in (WEB, build_in_memory(PASSAGES)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on spaces that Gymnasium does not know
            check_env(SearchEnv(small(protocol=protocol, retrievers={"web": web})))


@pytest.mark.parametrize("protocol", ["tags", "tool_calls"])
def test_each_action_asks_its_own_retriever(protocol):
    task, grammar = small(protocol=protocol, max_turns=6), get_protocol(protocol, sources=("web",))
    env = SearchEnv(task)
    env.reset(seed=0)
    found = {}
    for source, query in itertools.product(("", "web"), ("Alpha Beta", "Gamma")):
        observation, *_, info = env.step(grammar.write(Search((query,), source)))
        found[source, query] = titles(info)
        assert all(f"(Title: {title})" in observation for title in titles(info))
    assert found == {
        ("", "Alpha Beta"): ["Alpha", "Beta"], ("", "Gamma"): [],
        ("web", "Alpha Beta"): [], ("web", "Gamma"): ["Gamma"],
    }  # fmt: skip
    assert [search.source for search in env.state.searches] == ["", "", "web", "web"]


def test_instructions_and_samples_of_actions_name_every_source():
    env = SearchEnv(small(retrievers={"web": WEB, "notes": OWN}))
    _, info = env.reset(seed=0)
    assert "source web with <web_search>your query</web_search>" in info["instructions"]
    assert "source notes with <notes_search>your query</notes_search>" in info["instructions"]
    env.action_space.seed(0)
    actions = [env.task.rules.protocol.parse(env.action_space.sample()) for _ in range(300)]
    assert {action.source for action in actions if isinstance(action, Search)} == {"", "web", "notes"}


SCRIPT = [
    "<search>Alpha Beta</search>", "<web_search>Gamma Delta</web_search>", "junk", "<web_search>Alpha</web_search>",
    "<news_search>Gamma</news_search>", "<web_search><search>Beta</search></web_search>", "<answer>1901</answer>",
]  # fmt: skip


def test_a_vector_gives_the_same_episodes_as_single_environments():
    n, task = 9, small(max_turns=8)
    vector, singles = SearchVectorEnv(task, n), [SearchEnv(task) for _ in range(n)]
    observations, _ = vector.reset(seed=5)
    starts = [env.reset(seed=5 + i) for i, env in enumerate(singles)]
    assert observations == tuple(observation for observation, _ in starts)
    alive, seen = list(range(n)), set[str]()
    for turn in range(8):
        texts = [SCRIPT[(turn + 2 * i) % len(SCRIPT)] for i in range(n)]
        got = vector.step_subset(alive, [texts[i] for i in alive])
        for i in alive:
            observation, reward, terminated, truncated, info = singles[i].step(texts[i])
            assert (got[0][i], got[1][i], got[2][i], got[3][i]) == (observation, reward, terminated, truncated)
            assert {key: got[4][key][i] for key in info} == info
            assert vector.states[i].searches == singles[i].state.searches
            seen |= set(titles(info))
        alive = [i for i in alive if not got[2][i]]
        if not alive:
            break
    assert not alive and seen == {"Alpha", "Beta", "Gamma", "Delta"}


def test_a_step_of_a_vector_asks_each_retriever_once():
    own, web = TitleRetriever(), TitleRetriever()
    vector = SearchVectorEnv(small(retriever=own, retrievers={"web": web}), 6)
    vector.reset(seed=0)
    vector.step([f"<{tag}>{i}</{tag}>" for i, tag in enumerate(["search", "web_search"] * 3)])
    assert (own.calls, web.calls) == ([["0", "2", "4"]], [["1", "3", "5"]])
    assert (vector.stats.retriever_calls, vector.stats.queries) == (2, 6)


def test_a_failing_source_ends_only_the_episodes_that_asked_it():
    vector = SearchVectorEnv(small(retrievers={"web": FailingRetriever()}, retriever_deadline=0.01), 3)
    vector.reset(seed=0)
    observations, _, terminated, truncated, infos = vector.step(
        ["<search>Alpha</search>", "<web_search>Alpha</web_search>", "<answer>x</answer>"]
    )
    assert (list(terminated), list(truncated)) == ([False, False, True], [False, True, False])
    assert "(Title: Alpha)" in observations[0] and "fire" in infos["error"][1]


class Asks:
    """Asks both sources in turn, then one that does not exist."""

    async def run(self, question, io):
        await io.step(Search(("Alpha Gamma",)))
        await io.step(Search(("Alpha Gamma",), "web"))
        seen = await io.step(Search(("Alpha",), "news"))
        await io.step(Answer(seen.text))


def test_the_engine_finds_what_the_environment_finds():
    task, found = small(), []
    asyncio.run(Engine(task, LoadedAgent("asks", Asks())).run(QUESTIONS, found.append))
    assert len(found) == 3
    for episode in found:
        hits = [(s.turn, s.source, [h.passage.title for h in s.hits]) for s in episode.searches]
        assert hits == [(1, "", ["Alpha"]), (2, "web", ["Gamma"])]
        assert episode.invalid == 1 and "there is no source 'news'" in episode.answer.text


def test_the_record_of_an_evaluation_names_its_sources(tmp_path):
    task = small(retrievers={"web": build_in_memory(PASSAGES)})
    evaluate(task, LoadedAgent("asks", Asks()), tmp_path / "run", options=EvalOptions())
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(record["sources"]) == ["web"] and record["sources"]["web"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert all([search.get("source", "") for search in row["searches"]] == ["", "web"] for row in rows)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["web"], UsageError, r"retrievers= is a mapping such as \{'web': 'bm25'\}, got list"),
        ("web", UsageError, "is a mapping .*, got str"),
        ({"Web": WEB}, UsageError, "has the name 'Web': expected a small letter"),
        ({"": WEB}, UsageError, "has the name ''"),
        ({3: WEB}, UsageError, "has the name 3"),
        ({"web>": WEB}, UsageError, "has the name 'web>'"),
        ({"web\n": WEB}, UsageError, r"has the name 'web\\n'"),
        ({"w" * 32: WEB}, UsageError, "at most 30 more"),
        ({"web": None}, UsageError, r"^test/Small-v0: retrievers\.web is empty: give a retriever"),
        ({"web": {}}, UsageError, r"retrievers\.web is empty"),
        ({"web": ""}, UsageError, r"retrievers\.web is empty"),
        ({"web": 3}, UsageError, r"retrievers\.web: retriever= has neither search\(\) nor"),
        ({"web": {"corpus": ""}}, UsageError, r"retrievers\.web: nothing to search"),
        ({"web": {"corpus": None}}, UsageError, r"^test/Small-v0: retrievers\.web: corpus= is a path"),
        ({"web": {"corpus": "demo", "top_k": 3}}, UsageError, r"retrievers\.web has top_k: expected corpus, retriever"),
        ({"web": {"corpus": "demo", "retriever": "bm26"}}, UsageError, "did you mean 'bm25'"),
        (
            {"web": {"corpus": "dem"}},
            UsageError,
            r"retrievers\.web: unknown corpus file, folder or card 'dem'; did you mean 'demo'",
        ),
        ({"web": {"corpus": "no/where.jsonl"}}, DataMissingError, r"no/where\.jsonl"),
        ({"web": "bm26"}, UsageError, "unknown retriever card 'bm26'; did you mean 'bm25'"),
        ({"web": {"kind": "bm26"}}, CardError, "unknown kind of retriever"),
    ],
)
def test_what_is_no_further_retriever_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        small(retrievers=given)


def test_sources_of_every_kind():
    """A retriever, a card, a corpus of its own, a function; the same corpus is searched where none is given."""

    def by_title(passages):
        return TitleRetriever(list(passages))

    given = {"a": WEB, "b": "bm25", "c": {"corpus": "demo"}, "d": by_title}
    task = small(retriever=None, corpus="demo", retrievers=given)
    assert list(task.retrievers) == ["a", "b", "c", "d"] == list(task.rules.protocol.sources)
    assert task.source("a") is WEB and task.source("") is task.retriever
    hits = {name: task.source(name).search(["Teskel"], 1)[0][0].passage for name in "bcd"}
    assert set(hits.values()) == {task.retriever.search(["Teskel"], 1)[0][0].passage}


def test_no_further_retriever_leaves_the_environment_as_it_was():
    for none in ({}, None):
        task = small(retrievers=none)
        assert (task.retrievers, task.rules.protocol.sources) == ({}, ())
        assert task.rules.protocol.parse("<web_search>a</web_search>") == Invalid("no complete action was found")
        assert dataclasses.replace(task.rules, protocol=get_protocol("tags")) == task.rules


def test_the_option_of_a_registered_environment():
    name = searchgym.register("Mine/Two-v0", questions=QUESTIONS, retriever=OWN, retrievers={"web": WEB})
    env = gymnasium.make(name)
    env.reset(seed=0)
    assert titles(env.step("<web_search>Gamma</web_search>")[4]) == ["Gamma"]
    del gymnasium.registry[name]


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"query": "a", "source": "web"}, Search(("a",), "web")),
        ({"query": ["a", "b"], "source": "web"}, Search(("a", "b"), "web")),
        ({"query": "a", "source": ""}, Search(("a",))),
        ({"query": "a"}, Search(("a",))),
        ({"query": "a", "source": "news"}, Invalid("the sources are web; leave source out for the first")),
        ({"query": "a", "source": None}, Invalid("the sources are web; leave source out for the first")),
        ({"query": "a", "source": ["web"]}, Invalid("the sources are web; leave source out for the first")),
        ({"query": "a", "source": {"web": 1}}, Invalid("the sources are web; leave source out for the first")),
    ],
)
def test_the_source_of_a_tool_call(arguments, action):
    call = json.dumps({"name": "search", "arguments": arguments})
    assert get_protocol("tool_calls", sources=("web",)).parse(f"<tool_call>{call}</tool_call>") == action

import threading

import gymnasium
import pytest
from support import QUESTIONS, TitleRetriever

import searchgym
from searchgym.envs.registration import (
    env_options,
    find_env,
    full_id,
    register_shipped,
    registered,
)
from searchgym.errors import CardError, UnknownNameError, UsageError

SHIPPED = ["2WikiMultihopQA", "Bamboogle", "Demo", "HotpotQA", "MuSiQue", "NQ", "PopQA", "TriviaQA"]


def test_the_shipped_ids_are_registered():
    assert {f"searchgym/{name}-v0" for name in SHIPPED} <= set(registered())
    assert {f"searchgym/{name}-v0" for name in SHIPPED} <= set(gymnasium.registry)


@pytest.mark.parametrize("name", ["searchgym/HotpotQA-v0", "HotpotQA-v0", "HotpotQA", "hotpotqa", "searchgym/HotpotQA"])
def test_short_names(name):
    assert full_id(name) == "searchgym/HotpotQA-v0"
    assert find_env(name).scorer == "hotpotqa"


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown environment 'HotPotQ'; did you mean 'HotpotQA'"):
        full_id("HotPotQ")
    with pytest.raises(UnknownNameError, match=r"did you mean 'searchgym/HotpotQA-v0'"):
        full_id("searchgym/HotpotQ-v0")


def test_a_user_registers_in_one_call_and_may_do_so_again():
    for top_k in (1, 2):
        name = searchgym.register("Mine/Quiz-v0", questions=QUESTIONS, retriever=TitleRetriever(), top_k=top_k)
    env = gymnasium.make(name)
    env.reset(seed=0)
    assert len(env.step("<search>Alpha Beta Gamma</search>")[4]["hits"]) == 2
    assert len(gymnasium.make(name, top_k=3).unwrapped.task.questions) == 3
    assert env_options("Quiz")["top_k"] == 2


def test_a_user_registers_a_card(tmp_path):
    card = tmp_path / "mine.yaml"
    card.write_text(
        "id: Mine/Card-v1\nsummary: mine\ncorpus: demo\nmax_turns: 2\n"
        "questions: {kind: dataset, dataset: mine, "
        "split: all, size: 3, file: mine.json, get: here, bundled: demo/questions.json}\n"
    )
    env = gymnasium.make(searchgym.register(card))
    assert env.unwrapped.task.rules.max_turns == 2
    card.write_text(card.read_text() + "max_turn: 3\n")
    with pytest.raises(CardError, match=r"mine\.yaml:6: max_turn: unknown key; did you mean 'max_turns'"):
        searchgym.register(card)


def test_a_retriever_is_shared_not_copied():
    class Locked(TitleRetriever):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()  # cannot be copied

    retriever = Locked()
    name = searchgym.register("Mine/Locked-v0", questions=QUESTIONS, retriever=retriever)
    assert gymnasium.make(name, top_k=1).unwrapped.task.retriever is retriever
    assert gymnasium.make_vec(name, num_envs=2).unwrapped.task.retriever is retriever
    assert "top_k" not in env_options(name)


def test_what_cannot_be_registered():
    with pytest.raises(UsageError, match="'Bad id!' is not an environment id"):
        searchgym.register("Bad id!", questions=QUESTIONS, retriever=TitleRetriever())
    with pytest.raises(UsageError, match="needs questions="):
        searchgym.register("Mine/A-v0")
    with pytest.raises(UsageError, match="something to search"):
        searchgym.register("Mine/A-v0", questions=QUESTIONS)
    with pytest.raises(UnknownNameError, match="did you mean 'corpus'"):
        searchgym.register("Mine/A-v0", questions=QUESTIONS, corpora="x")
    with pytest.raises(UsageError, match="taken by another package"):
        searchgym.register("CartPole-v1", questions=QUESTIONS, retriever=TitleRetriever())


def test_short_names_take_the_newest_version_and_refuse_two_namespaces(tmp_path):
    for version in (2, 10):
        searchgym.register(f"Mine/Many-v{version}", questions=QUESTIONS, retriever=TitleRetriever())
    assert full_id("many") == "Mine/Many-v10"
    searchgym.register("Other/Many-v1", questions=QUESTIONS, retriever=TitleRetriever())
    with pytest.raises(UsageError, match="ambiguous: write one of Mine/Many-v10, Mine/Many-v2, Other/Many-v1"):
        full_id("Many")


def test_a_card_stands_for_its_id_and_a_broken_shipped_one_warns(tmp_path, monkeypatch):
    card = tmp_path / "own.yaml"
    card.write_text(
        "id: Mine/Own-v0\nsummary: mine\ncorpus: demo\n"
        "questions: {kind: dataset, dataset: mine, "
        "split: all, size: 3, file: mine.json, get: here, bundled: demo/questions.json}\n"
    )
    assert full_id(str(card)) == "Mine/Own-v0"
    monkeypatch.setattr("searchgym.envs.registration.list_cards", lambda kind: {"own": card})
    for text, problem in [
        (b"", "expected a line such as id: Mine/Quiz-v0"),
        (b"id: a b", "expected a line such as id: Mine/Quiz-v0"),
        (b"id: Quiz!-v0", "is not an environment id"),
        (b"id: Mine/Own-v1\xff", "utf-8"),
    ]:
        card.write_bytes(text)
        with pytest.warns(UserWarning, match=f"not registered: .*{problem}"):
            register_shipped()
    card.write_text("id: Mine/Own-v1\n")
    register_shipped()  # no warning: the other keys are read when the environment is used
    for use in (find_env, gymnasium.make):
        with pytest.raises(CardError, match=r"own\.yaml:1: summary: missing key"):
            use("Mine/Own-v1")
    del gymnasium.registry["Mine/Own-v1"]

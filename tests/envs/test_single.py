import asyncio
import gzip
import json
import math
import threading
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from support import CARD, QUESTIONS, FailingRetriever, TitleRetriever

import searchgym
from searchgym.corpora.folders import bundled_file
from searchgym.envs.single import SearchEnv
from searchgym.errors import (
    DataError,
    DataMissingError,
    EpisodeError,
    RetrieverError,
    RewardError,
    UnknownNameError,
    UsageError,
)
from searchgym.questions.question_source import given_questions
from searchgym.records import Hit, Passage
from searchgym.retrieval.kinds.tool import ToolRetriever
from searchgym.retrieval.retriever import NullRetriever, retrieve


def make(**options):
    return SearchEnv(CARD, **({"questions": QUESTIONS, "retriever": TitleRetriever()} | options))


def test_an_episode_from_question_to_reward():
    env = make(render_mode="ansi")
    observation, info = env.reset(seed=0, options={"question_id": "q1"})
    assert observation == "When was the founder of Beta born?"
    assert info["turns_left"] == 5
    assert "<search>" in info["instructions"]
    observation, reward, terminated, truncated, info = env.step("<search>Beta and Gamma</search>")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert [hit["title"] for hit in info["hits"]] == ["Beta", "Gamma"]
    assert "Doc 2(Title: Gamma) Gamma was born in 1901." in observation
    observation, reward, terminated, truncated, info = env.step("<think>easy</think><answer>1901</answer>")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert {k: info[k] for k in ("em", "f1", "answer", "stop_reason", "turn", "searches")} == {
        "em": 1.0,
        "f1": 1.0,
        "answer": "1901",
        "stop_reason": "answer",
        "turn": 2,
        "searches": 1,
    }
    assert "Question: When was" in env.render()
    assert "<think>easy</think>" in env.render()
    assert env.render().splitlines()[-1] == "[answer: reward 1, em 1, f1 1]"


def test_thoughts_can_be_dropped_from_the_transcript():
    import dataclasses

    env = SearchEnv(dataclasses.replace(CARD, thoughts="drop"), questions=QUESTIONS, retriever=NullRetriever(),
                    render_mode="ansi")  # fmt: skip
    env.reset(seed=0)
    env.step("<think>secret</think><answer>1901</answer>")
    assert "secret" not in env.render()


def test_the_turn_budget_terminates():
    env = make(max_turns=2)
    env.reset(seed=0, options={"question_id": "q0"})
    env.step("nothing")
    _, reward, terminated, truncated, info = env.step("<search>Beta</search>")
    assert (reward, terminated, truncated, info["stop_reason"], info["searches"]) == (0.0, True, False, "turns", 0)


def test_seeds_draw_the_same_questions():
    one, two = make(), make()
    draws = [one.reset(seed=5)[0], *(one.reset()[0] for _ in range(20))]
    assert draws == [two.reset(seed=5)[0], *(two.reset()[0] for _ in range(20))]
    assert set(draws) == {q.text for q in QUESTIONS}


# -- rewards -------------------------------------------------------------------------------------------------------


def answer(env, text, question="q0"):
    env.reset(options={"question_id": question})
    return env.step(f"<answer>{text}</answer>")[1]


def half(state):
    """A reward that other tests name as module:function."""
    return 0.5


def test_rewards_by_name_callable_and_module():
    assert answer(make(), "the gamma!") == 1.0
    assert answer(make(reward="f1"), "Gamma Beta") == pytest.approx(2 / 3)
    assert answer(make(reward=lambda state: len(state.answer_text) + state.turn), "abc") == 4.0
    assert answer(make(reward="test_single:half"), "x") == 0.5


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), np.array(0.5), Fraction(1, 2)])
def test_any_real_number_is_a_reward(half):
    reward = answer(make(reward=lambda state: half), "x")
    assert reward == 0.5 and type(reward) is float
    assert answer(make(reward=lambda state: 2), "x") == 2.0


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda state: math.nan, "returned nan on question 'q0'"),
        (lambda state: math.inf, "returned inf"),
        (lambda state: 1 / 0, "raised ZeroDivisionError on question 'q0'"),
        (lambda state: None, "returned None on question 'q0': expected a finite number"),
        (lambda state: "high", "returned 'high' on question 'q0': expected a finite number"),
        (lambda state: "0.5", "returned '0.5' on"),
        (lambda state: True, "returned True on"),
        (lambda state: np.bool_(True), "returned .*True"),
        (lambda state: 1j, "returned 1j"),
        (lambda state: [0.5], r"returned \[0.5\]"),
        (lambda state: np.array([0.5]), "returned array"),
        (lambda state: 1e308, "returned 1e.308 on question 'q0': expected a finite number"),
        (lambda state: 10**400, "returned 10000"),
    ],
)
def test_a_bad_reward_is_an_error_and_the_episode_can_go_on(reward, message):
    env = make(reward=reward)
    with pytest.raises(RewardError, match=message):
        answer(env, "x")
    assert env.state.turn == 0  # nothing half-done: the step did not happen


@pytest.mark.parametrize(("reward", "error"), [("emm", "did you mean 'em'"), ("no_module_x:f", "cannot load")])
def test_unknown_rewards(reward, error):
    with pytest.raises(UsageError, match=error):
        make(reward=reward)


# -- retriever faults ----------------------------------------------------------------------------------------------


def test_a_retriever_that_keeps_failing_truncates_with_zero_reward():
    env = make(retriever=FailingRetriever(), retriever_deadline=0.01, reward=lambda state: 1.0)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("<search>x</search>")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["stop_reason"] == "retriever_error"
    assert "the index is on fire" in info["error"]
    assert env.stats.retriever_errors == 1
    with pytest.raises(EpisodeError):
        env.step("<answer>x</answer>")
    env.reset(seed=0)
    assert env.step("<answer>x</answer>")[2] is True


def test_a_fault_is_retried():
    retriever = FailingRetriever(failures=1)
    env = make(retriever=retriever)
    env.reset(seed=0)
    _, _, terminated, truncated, _ = env.step("<search>x</search>")
    assert (terminated, truncated, retriever.calls) == (False, False, 2)


def test_a_retriever_that_hangs_is_abandoned_at_the_deadline():
    release = threading.Event()
    hanging = ToolRetriever(lambda query, k: [release.wait(60)])
    with pytest.raises(RetrieverError, match="no reply before the deadline"):
        retrieve(hanging, ["q"], ["x"], 3, deadline=0.05)
    release.set()


@pytest.mark.parametrize("error", [SystemExit("over"), KeyboardInterrupt("over"), asyncio.CancelledError("over")])
def test_a_retriever_ends_neither_the_program_nor_the_loop(error):
    def fails(query, k):
        raise error

    with pytest.raises(RetrieverError, match=f"{type(error).__name__}: over"):
        retrieve(ToolRetriever(fails), ["q"], ["x"], 3, deadline=0.01)


class Odd:
    """A retriever that returns what it is given."""

    def __init__(self, reply):
        self.reply, self.calls = reply, 0

    def search(self, queries, k):
        self.calls += 1
        return self.reply


@pytest.mark.parametrize("reply", [[], [[], []], [[1, 2, 3, 4]]])
def test_a_reply_of_the_wrong_length_is_a_fault(reply):
    with pytest.raises(RetrieverError, match=r"expected"):
        retrieve(Odd(reply), ["q"], ["x"], 3, deadline=0.01)


# -- misuse --------------------------------------------------------------------------------------------------------


def test_out_of_order_and_wrong_types():
    env = make()
    with pytest.raises(EpisodeError, match="reset the environment"):
        env.step("<answer>x</answer>")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="an action is a string"):
        env.step(3)
    with pytest.raises(UnknownNameError, match="unknown reset option 'question'; did you mean 'question_id'"):
        env.reset(options={"question": "q0"})
    with pytest.raises(UnknownNameError, match="unknown question id 'q9'"):
        env.reset(options={"question_id": "q9"})
    with pytest.raises(UsageError, match="render_mode"):
        make(render_mode="human")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"topk": 3}, UnknownNameError, "unknown option 'topk'; did you mean 'top_k'"),
        ({"top_k": 0}, UsageError, "top_k: expected above 0, got 0"),
        ({"top_k": 2.5}, UsageError, "top_k: expected an integer, got 2.5"),
        ({"max_turns": "3"}, UsageError, "max_turns: expected an integer, got '3'"),
        ({"max_queries": True}, UsageError, "max_queries: expected an integer, got True"),
        ({"retriever_deadline": math.inf}, UsageError, "retriever_deadline: expected a finite number, got inf"),
        ({"protocol": "xml"}, UsageError, "protocol: got 'xml'"),
        ({"reward": 3}, UsageError, "reward= is a function or the name of one, got int"),
        ({"questions": []}, UsageError, "questions= is empty"),
        ({"questions": ["q0"]}, DataMissingError, "q0"),
        ({"questions": ["q0", 5]}, UsageError, "neither paths nor a list of Question records"),
        ({"questions": 5}, UsageError, "neither paths nor a list of Question records"),
        ({"retriever": None, "corpus": 5}, UsageError, "corpus= is a path or the name of a corpus card, got int"),
        ({"retriever": None, "corpus": ""}, UsageError, "nothing to search"),
        ({"retriever": TitleRetriever}, UsageError, "retriever= is the class TitleRetriever: pass an instance of it"),
        ({"questions": [QUESTIONS[0], QUESTIONS[0]]}, UsageError, "not unique"),
        ({"questions": "nowhere.json"}, DataMissingError, "nowhere.json"),
        ({"retriever": 3}, UsageError, "neither search"),
        ({"distractors": True}, UsageError, "leave out retriever="),
    ],
)
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_missing_corpora_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    for corpus, message in [
        ("nowhere/corpus.jsonl", "no such corpus file"),
        ("wiki-18", "searchgym corpus get wiki-18"),
        ("wiki-19", "did you mean 'wiki-18'"),
        (str(tmp_path), "holds no documents"),
    ]:
        with pytest.raises((DataError, UnknownNameError), match=message):
            SearchEnv(CARD, questions=QUESTIONS, corpus=corpus)


def test_a_corpus_card_may_be_given_by_path():
    from searchgym.options.cards import find_card

    env = SearchEnv(CARD, questions=QUESTIONS, corpus=find_card("corpora", "demo"))
    env.reset(seed=0)
    assert env.step("<search>Dunmere</search>")[4]["hits"]


def test_none_is_the_same_as_left_out():
    env = make(reward=None, protocol=None, top_k=None, corpus=None)
    assert (env.task.rules.top_k, env.task.rules.protocol.name) == (CARD.top_k, CARD.protocol)


def test_a_folder_that_is_called_like_a_card_changes_no_environment(tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(gymnasium.make("searchgym/Demo-v0").unwrapped.task.retriever) == 25


def test_a_packed_beir_folder_is_a_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wb") as file:
        file.write(bundled_file("demo/corpus.jsonl").read_bytes())
    assert len(make(retriever=None, corpus=tmp_path).task.retriever) == 25


def test_an_index_cached_by_other_code_is_built_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    for version in (98, 99, 99):
        monkeypatch.setattr("searchgym.retrieval.bm25.analysis.VERSION", version)
        make(retriever=None, corpus=bundled_file("demo/corpus.jsonl"))
    assert len(list((tmp_path / "indexes").iterdir())) == 2


def test_a_spec_goes_through_json():
    spec = gymnasium.make("searchgym/Demo-v0", top_k=1).spec
    env = gymnasium.make(EnvSpec.from_json(spec.to_json()))
    env.reset(seed=0)
    assert len(env.step("<search>Dunmere</search>")[4]["hits"]) == 1
    own = searchgym.register("Spec/Own-v0", questions=str(bundled_file("demo/questions.json")), corpus="demo")
    env = gymnasium.make(EnvSpec.from_json(gymnasium.make(own).spec.to_json()))
    assert env.reset(seed=0)[0] == gymnasium.make("searchgym/Demo-v0").reset(seed=0)[0]


def test_a_page_without_blanks_stays_in_the_observation_space():
    page = Passage("p", "T", "x" * 2**23)
    env = make(retriever=ToolRetriever(lambda query, k: [Hit(page, 1.0)]))
    env.reset(seed=0)
    assert env.step("<search>x</search>")[0] in env.observation_space


def test_missing_questions_name_the_file_and_the_place(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataMissingError) as caught:
        gymnasium.make("searchgym/HotpotQA-v0")
    for part in (
        "hotpot_dev_distractor_v1.json",
        "https://hotpotqa.github.io",
        str(tmp_path / "data"),
        "questions=PATH",
    ):
        assert part in str(caught.value)


def test_a_retriever_may_be_built_from_the_corpus():
    env = gymnasium.make("searchgym/Demo-v0", retriever=lambda passages: TitleRetriever(list(passages)))
    env.reset(seed=0)
    assert env.step("<search>Dunmere</search>")[4]["hits"][0]["title"] == "Dunmere"


def test_the_package_names_its_public_records():
    assert {"Question", "Search", "register"} <= set(searchgym.__all__)
    assert all(hasattr(searchgym, name) for name in searchgym.__all__)


def test_questions_of_several_files_in_a_row(tmp_path):
    """Ids that two files share get the number of their file; where none is shared, they stay as they are."""
    for name, ids in (("a", ["x", "y"]), ("b", ["y", "z"]), ("c", ["w"])):
        rows = [{"id": id, "question": f"{name} {id}?", "golden_answers": ["Ulm"]} for id in ids]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in "abc"}
    own = given_questions(CARD.id, [paths["a"], paths["b"]])
    assert [q.id for q in own] == ["1/x", "1/y", "2/y", "2/z"]
    assert [q.text for q in own] == ["a x?", "a y?", "b y?", "b z?"]
    assert [q.id for q in given_questions(CARD.id, [paths["a"], paths["c"]])] == ["x", "y", "w"]
    with pytest.raises(DataMissingError, match="nowhere"):
        given_questions(CARD.id, [paths["a"], str(tmp_path / "nowhere.jsonl")])

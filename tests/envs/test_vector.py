import dataclasses
import json

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from support import CARD, QUESTIONS, FailingRetriever, TitleRetriever

from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import EpisodeError, UnknownNameError, UsageError

SCRIPT = [
    "<search>Alpha Beta</search>",
    "junk",
    "<search>Gamma</search>",
    "<search>none</search>",
    "<answer>1901</answer>",
]


def task(**options):
    return load_task(CARD, questions=QUESTIONS, **({"retriever": TitleRetriever()} | options))


def infos_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert type(value) is type(other[key]), key
        if isinstance(value, dict):
            infos_equal(value, other[key])
        else:
            assert list(value) == list(other[key]), key


def actions(turn, n):
    """Different actions in different environments, so that some end while others go on."""
    return [SCRIPT[(turn + i) % len(SCRIPT)] for i in range(n)]


def test_a_vector_gives_the_same_episodes_as_single_environments():
    n, shared = 7, task()
    vector, singles = SearchVectorEnv(shared, n), [SearchEnv(shared) for _ in range(n)]
    observations, infos = vector.reset(seed=11)
    starts = [env.reset(seed=11 + i) for i, env in enumerate(singles)]
    assert observations == tuple(observation for observation, _ in starts)
    assert list(infos["question_id"]) == [info["question_id"] for _, info in starts]
    alive = list(range(n))
    for turn in range(5):
        texts = actions(turn, n)
        got = vector.step_subset(alive, [texts[i] for i in alive])
        for i in alive:
            observation, reward, terminated, truncated, info = singles[i].step(texts[i])
            assert (got[0][i], got[1][i], got[2][i], got[3][i]) == (observation, reward, terminated, truncated)
            assert {key: got[4][key][i] for key in info} == info
        alive = [i for i in alive if not got[2][i]]
        if not alive:
            break
    assert not alive


def test_each_environment_gets_the_hits_of_its_own_queries():
    """One call retrieves for all of them; some ask several queries at once, some none."""
    asked = [["Alpha", "Beta"], ["Gamma"], [], ["Delta", "Alpha", "Gamma"], ["Beta"]]
    calls = [json.dumps({"name": "search", "arguments": {"query": own}}) if own else "junk" for own in asked]
    vector = SearchVectorEnv(task(protocol="tool_calls", max_queries=3), len(asked))
    vector.reset(seed=0)
    observations, _, _, _, infos = vector.step([f"<tool_call>\n{call}\n</tool_call>" for call in calls])
    for own, observation, hits in zip(asked, observations, infos["hits"], strict=True):
        assert [hit["title"] for hit in hits or ()] == own
        assert all((f"(Title: {title})" in observation) == (title in own) for title in ("Alpha", "Beta", "Gamma"))


def test_one_retriever_call_per_step_for_64_environments():
    retriever = TitleRetriever()
    vector = SearchVectorEnv(task(retriever=retriever), 64)
    vector.reset(seed=0)
    vector.step(["<search>Alpha</search>"] * 64)
    assert [len(call) for call in retriever.calls] == [64]
    vector.step(["junk"] * 64)
    assert len(retriever.calls) == 1
    vector.step(["<search>Beta</search>", *["junk"] * 62, "<answer>x</answer>"])
    assert retriever.calls[1:] == [["Beta"]]
    assert (vector.stats.retriever_calls, vector.stats.queries, vector.stats.steps) == (2, 65, 192)


@pytest.mark.slow
def test_it_agrees_with_async_vector_env():
    n, shared = 3, task()
    disabled = gymnasium.vector.AutoresetMode.DISABLED
    other = gymnasium.vector.AsyncVectorEnv(
        [lambda: SearchEnv(shared)] * n, shared_memory=False, autoreset_mode=disabled
    )
    vector = SearchVectorEnv(shared, n)
    try:
        one, two = vector.reset(seed=4), other.reset(seed=4)
        assert one[0] == two[0]
        infos_equal(one[1], two[1])
        for turn in range(3):
            texts = [["<search>Alpha</search>", "<search>Beta</search>", "<answer>1901</answer>"][turn]] * n
            one, two = vector.step(texts), other.step(tuple(texts))
            assert one[0] == two[0]
            for a, b in zip(one[1:4], two[1:4], strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
            infos_equal(one[4], two[4])
    finally:
        other.close()


MODES = ("next_step", "same_step", "disabled")


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("mode", "n", "steps"),
    [
        *((mode, 8, 40) for mode in MODES),
        *(
            pytest.param(mode, 64, 1000, marks=getattr(pytest.mark, group), id=f"{mode}, 64 environments, 1,000 steps")
            for mode, group in zip(MODES, ("study", "slow", "study"), strict=True)
        ),
    ],
)
def test_the_loop_of_gymnasiums_documentation_equals_single_environments(mode, n, steps):
    """The oracle is Gymnasium's own vector of single environments."""
    shared = task()
    vector = SearchVectorEnv(shared, n, autoreset=mode)
    singles = gymnasium.vector.SyncVectorEnv(
        [lambda: SearchEnv(shared)] * n, autoreset_mode=AutoresetMode[mode.upper()]
    )
    assert vector.metadata["autoreset_mode"] is singles.metadata["autoreset_mode"]
    rng = np.random.default_rng(5)
    for one, two in zip(vector.reset(seed=4), singles.reset(seed=4), strict=True):
        infos_equal({"": one}, {"": two})
    episodes = 0
    for _ in range(steps):
        texts = tuple(SCRIPT[i] for i in rng.integers(len(SCRIPT), size=n))
        one, two = vector.step(texts), singles.step(texts)
        assert one[0] == two[0]
        for a, b in zip(one[1:4], two[1:4], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        infos_equal(one[4], two[4])
        ended = one[2] | one[3]
        episodes += int(ended.sum())
        if mode == "disabled" and ended.any():
            one, two = (env.reset(options={"reset_mask": ended}) for env in (vector, singles))
            assert [text for text, new in zip(one[0], ended, strict=True) if new] == [
                text for text, new in zip(two[0], ended, strict=True) if new
            ]
            infos_equal(one[1], two[1])
    assert episodes > n  # so episodes did start again


def test_an_unknown_autoreset_is_refused():
    with pytest.raises(UnknownNameError, match="unknown autoreset 'nextstep'; did you mean 'next_step'"):
        gymnasium.make_vec("searchgym/Demo-v0", num_envs=2, autoreset="nextstep")


def test_shared_memory_is_refused_with_a_clear_error():
    shared = task()
    with pytest.raises(ValueError, match="shared_memory"):
        gymnasium.vector.AsyncVectorEnv([lambda: SearchEnv(shared)] * 2, shared_memory=True)


def test_make_vec_takes_the_same_options():
    vector = gymnasium.make_vec("searchgym/Demo-v0", num_envs=4, vectorization_mode="vector_entry_point", top_k=1)
    assert isinstance(vector.unwrapped, SearchVectorEnv)
    _, infos = vector.reset(seed=0, options={"question_ids": ["demo-01", None, "demo-02", None]})
    assert infos["question_id"][0] == "demo-01"
    infos = vector.step(["<search>Dunmere</search>"] * 4)[4]
    assert [len(hits) for hits in infos["hits"]] == [1] * 4


def test_a_reset_mask_resets_only_the_finished():
    vector = SearchVectorEnv(task(), 3, autoreset="disabled")
    vector.reset(seed=0)
    terminations = vector.step(["<answer>x</answer>", "junk", "<answer>x</answer>"])[2]
    assert list(terminations) == [True, False, True]
    with pytest.raises(EpisodeError, match="environment 0 has ended"):
        vector.step(["junk"] * 3)
    observations, infos = vector.reset(options={"reset_mask": terminations})
    assert observations[1] == ""
    assert list(infos["_turn"]) == [True, False, True]
    assert [state.turn for state in vector.states] == [0, 1, 0]
    vector.step(["junk"] * 3)


def test_a_failing_retriever_truncates_only_who_searched():
    vector = SearchVectorEnv(task(retriever=FailingRetriever(), retriever_deadline=0.01), 3)
    vector.reset(seed=0)
    _, rewards, terminations, truncations, infos = vector.step(["<search>x</search>", "junk", "<answer>x</answer>"])
    assert list(truncations) == [True, False, False]
    assert list(terminations) == [False, False, True]
    assert list(rewards) == [0.0, 0.0, 0.0]
    assert list(infos["stop_reason"]) == ["retriever_error", "", "answer"]


def test_a_wrong_step_changes_nothing():
    vector = SearchVectorEnv(task(), 2)
    with pytest.raises(EpisodeError, match="environment 0 has not been reset"):
        vector.step(["junk"] * 2)
    vector.reset(seed=0)
    with pytest.raises(UsageError, match="an action is a string"):
        vector.step(["<answer>x</answer>", 3])
    with pytest.raises(UsageError, match="3 actions for 2 environments"):
        vector.step(["junk"] * 3)
    with pytest.raises(UsageError, match="does not exist"):
        vector.step_subset([5], ["junk"])
    assert [state.turn for state in vector.states] == [0, 0]
    before = vector.states
    with pytest.raises(UnknownNameError, match="unknown question id 'q9'"):
        vector.reset(options={"question_ids": ["q0", "q9"]})
    assert all(after is state for after, state in zip(vector.states, before, strict=True))


def test_seeds_may_be_numpy_integers():
    one, two = SearchVectorEnv(task(), 2), SearchVectorEnv(task(), 2)
    assert one.reset(seed=np.int64(3))[0] == two.reset(seed=3)[0]


@pytest.mark.parametrize(
    ("seed", "options", "message"),
    [
        ([1, 2, 3], None, "seed must have 2 entries, got 3"),
        (None, {"reset_mask": np.ones(3, bool)}, "reset_mask must be"),
        (None, {"reset_mask": [1, 0]}, "reset_mask must be"),
        (None, {"question_ids": ["q0"]}, "question_ids must have 2 entries"),
    ],
)
def test_wrong_resets(seed, options, message):
    with pytest.raises(UsageError, match=message):
        SearchVectorEnv(task(), 2).reset(seed=seed, options=options)


def test_unknown_reset_options_and_sizes():
    with pytest.raises(UnknownNameError, match="did you mean 'question_ids'"):
        SearchVectorEnv(task(), 2).reset(options={"question_id": "q0"})
    with pytest.raises(UsageError, match="at least 1"):
        SearchVectorEnv(task(), 0)
    with pytest.raises(UsageError, match="not rendered"):
        SearchVectorEnv(task(), 1, render_mode="ansi")


def test_distractors_search_each_question_its_own_paragraphs():
    own = load_task(dataclasses.replace(CARD, max_turns=3), questions=demo_questions(), distractors=True)
    vec = SearchVectorEnv(own, len(own.questions))
    vec.reset(seed=0, options={"question_ids": [q.id for q in own.questions]})
    infos = vec.step([f"<search>{q.text}</search>" for q in own.questions])[4]
    for question, hits in zip(own.questions, infos["hits"], strict=True):
        assert hits
        assert {hit["title"] for hit in hits} <= {p.title for p in question.paragraphs}


def demo_questions():
    from searchgym.corpora.folders import bundled_file
    from searchgym.corpora.questions import read_questions

    return read_questions(bundled_file("demo/questions.json"))

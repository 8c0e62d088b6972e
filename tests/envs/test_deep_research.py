"""`searchgym/DeepResearch-v0`: the usual checks, ceilings and floors, on small documents and the default ones."""

import asyncio
import json
import tracemalloc

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from support import step_alike

import searchgym  # noqa: F401 (registers the environments)
from searchgym.agents import load_agent
from searchgym.cli.evaluation.judge import judge_runs
from searchgym.corpora.files import read_json
from searchgym.envs import find_env, load_task
from searchgym.envs.single import SearchEnv
from searchgym.envs.vector import SearchVectorEnv
from searchgym.eval import evaluate
from searchgym.eval.scores import score_episodes
from searchgym.eval.viewing.rewards import searchless_task
from searchgym.rollout.engine import Engine
from searchgym.scoring.citations import gold_spans_of
from searchgym.text import count_words

SMALL = {"documents": 40, "words": 1000, "n": 20, "seed": 5}


@pytest.fixture(scope="module")
def small():
    return load_task(find_env("searchgym/DeepResearch-v0"), questions=SMALL)


def scores_of(task, agent):
    episodes = []
    asyncio.run(Engine(task, load_agent(agent)).run(task.questions, episodes.append))
    return score_episodes(task, episodes)


def test_the_usual_checks(small):
    check_env(SearchEnv(small), skip_render_check=True)


def test_the_vector_environment_equals_single_ones(small):
    ids = [question.id for question in small.questions[:3]]
    vector, singles = SearchVectorEnv(small, 3), [SearchEnv(small) for _ in ids]
    vector.reset(options={"question_ids": ids})
    for env, id in zip(singles, ids, strict=True):
        env.reset(options={"question_id": id})
    plans = []
    for question in small.questions[:3]:
        plan = []
        for span in gold_spans_of(question):
            plan += [f"<search>{span.title}</search>", f"<open>{span.title}</open>", f"<find>{span.text[:150]}</find>"]
            plan += [f"<cite>{span.title} | {span.text}</cite>"]
        plans.append([*plan, f"<answer>{question.answers[0]}\nConfidence: 90%</answer>"])
    for actions in zip(*plans, strict=True):
        _, rewards, ended, _, infos = step_alike(vector, singles, actions, ["tokens_left"])
    assert rewards.tolist() == [1.0] * 3 and ended.all()
    assert infos["cites"].tolist() == [3] * 3 and vector.states[0].answer.confidence == 0.9


def test_ceilings_and_floors(small):
    research = scores_of(small, "research-oracle")
    names = ("em", "gold_found", "citation_precision", "citation_recall", "turns")
    assert [research[name] for name in names] == [1.0, 1.0, 1.0, 1.0, 13.0]
    assert scores_of(small, "oracle")["em"] == 1.0
    for floor in ("research-snippets", "single-search", "closed-book"):
        assert scores_of(small, floor)["em"] <= 0.05, floor


def test_the_default_documents_are_long_and_a_hundred_turns_take_no_more_memory():
    env = gymnasium.make("searchgym/DeepResearch-v0").unwrapped
    assert isinstance(env, SearchEnv)
    pages, title = env.task.rules.pages, env.task.questions[0].gold_titles[0]
    assert pages is not None and len(pages) == 100
    (position,) = pages.find(title)
    assert count_words(pages.at(position).text) >= 5000

    def episode():
        env.reset(seed=0, options={"question_id": env.task.questions[0].id})
        env.step(f"<open>{title}</open>")
        for turn in range(98):
            env.step("<more></more>" if turn < 15 else f"<find>{title} {turn}</find>")
        assert not env.state.done
        return env.step("<answer>nothing</answer>")[4]["turn"]

    assert episode() == 100
    tracemalloc.start()
    try:
        sizes = [(episode(), tracemalloc.get_traced_memory()[0])[1] for _ in range(6)]
    finally:
        tracemalloc.stop()
    assert max(sizes[1:]) - min(sizes[1:]) < 200_000


def test_a_run_is_judged_without_its_documents(small, tmp_path):
    evaluate(small, load_agent("research-oracle"), tmp_path / "run")
    questions = json.dumps({"kind": "documents", "split": "validation"} | SMALL)
    judge_runs([tmp_path / "run"], "rules", questions=questions)
    scores = read_json(tmp_path / "run" / "scores.json")
    assert (scores["judged"], scores["unjudged"]) == (1.0, 0)


def test_a_saved_run_is_explained_without_its_documents_and_without_code_of_its_faults():
    faults = [{"kind": "os:system"}]
    task = searchless_task("searchgym/DeepResearch-v0", {"questions": SMALL, "faults": faults})
    assert (len(task.questions), task.rules.pages, task.rules.faults) == (20, None, ())

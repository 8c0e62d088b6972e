"""A package of somebody else adds one of each kind of thing in one file, named by an entry point or `module:Class`."""

from __future__ import annotations

import asyncio
import sys

import gymnasium
import numpy as np
import pytest

import searchgym
from searchgym.agents import load_agent
from searchgym.envs import Reward, find_env, load_task
from searchgym.envs.reward import get_reward
from searchgym.errors import CardError, UnknownNameError
from searchgym.options import find_kind, kinds, loaded, read
from searchgym.options import kinds as kinds_module
from searchgym.records import Answer
from searchgym.retrieval import RetrieverCard
from searchgym.rollout.engine import Engine
from searchgym.scoring.judges import Judge
from searchgym.train import CreditContext, Group, Term, load_recipe
from searchgym.train.algorithms.estimator import Estimator
from searchgym.train.recipe.load import with_code

HEAD = """
from dataclasses import dataclass
from typing import Annotated, ClassVar
from annotated_types import Ge
from searchgym import Answer, Hit, Search
from searchgym.retrieval import RetrieverCard
from searchgym.envs import Reward
from searchgym.scoring.judges import Judge
from searchgym.train import Comparing, Term
kind = dataclass(frozen=True, slots=True, kw_only=True)
"""
FILES = {
    "term": """
@kind
class Own(Term):
    price: Annotated[float, Ge(0)] = 0.5
    def of_episode(self, episode, context):
        return [-self.price * len(episode.searches)] * len(episode.calls)
""",
    "estimator": """
@kind
class Own(Comparing):
    price: Annotated[float, Ge(0)] = 0.5
    def compare(self, group):
        return self.price * (group.returns - group.returns.min())
""",
    "retriever": """
@kind
class Own(RetrieverCard):
    searches_corpus: ClassVar = True
    price: Annotated[float, Ge(0)] = 0.5
    def open(self, sources):
        return First(list(sources.passages())[0], self.price)
class First:
    def __init__(self, page, score):
        self.page, self.score = page, score
    def search(self, queries, k):
        return [[Hit(self.page, self.score)] for query in queries]
""",
    "reward": """
@kind
class Own(Reward):
    price: Annotated[float, Ge(0)] = 0.5
    def of_answer(self, text, question):
        return (text in question.golds) - self.price * len(text.split())
""",
    "judge": """
@kind
class Own(Judge):
    price: Annotated[float, Ge(0)] = 0.5
    def verify(self, question, answer, pages):
        return answer in pages
    def meets(self, question, answer, criteria):
        return [len(answer) > self.price for _ in criteria]
    def better(self, question, answers, criteria):
        return None
""",
    "agent": """
class Own:
    async def run(self, question, io):
        await io.step(Search((question.text,)))
        await io.step(Answer("own"))
""",
    "environment": """
import searchgym
QUESTIONS = [searchgym.Question("q1", "Who keeps the light?", ("Ada",))]
searchgym.register("Own/Quiz-v0", questions=QUESTIONS, corpus="demo", reward={"kind": "own-reward", "price": 0.25})
""",
}
BASES = {"term": Term, "estimator": Estimator, "retriever": RetrieverCard, "reward": Reward, "judge": Judge}


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """An installed package: a module for each thing, and an entry point ``own-NAME`` for each kind."""
    folder, info = tmp_path / "site" / "own_package", tmp_path / "site" / "own_package-1.0.dist-info"
    folder.mkdir(parents=True)
    info.mkdir()
    for name, code in {"__init__": "", **FILES}.items():
        (folder / f"{name}.py").write_text(HEAD * bool(code) + code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own_package\nVersion: 1.0\n")
    points = [f"[{base.kinds_in}]\nown-{name} = own_package.{name}:Own\n" for name, base in BASES.items()]
    (info / "entry_points.txt").write_text("".join(points))
    monkeypatch.syspath_prepend(tmp_path / "site")
    forget = kinds_module.__globals__["_listed"].cache_clear
    forget()
    yield
    forget()
    for name in [name for name in sys.modules if name.split(".")[0] == "own_package"]:
        del sys.modules[name]
    gymnasium.registry.pop("Own/Quiz-v0", None)


def names(name):
    return [f"own-{name}", f"own_package.{name}:Own"]


@pytest.mark.parametrize("name", BASES)
def test_a_kind_is_listed_loaded_and_checked_by_both_names(name):
    base = BASES[name]
    assert kinds(base)[f"own-{name}"] == [f"own_package.{name}:Own"]
    assert f"own_package.{name}" not in sys.modules  # a list imports no kind
    for spelling in names(name):
        cls = find_kind(base, spelling)
        assert cls.__name__ == "Own" and cls.__module__ == f"own_package.{name}"
        assert loaded(read(base, {"kind": spelling, "price": 0.25}, "test")) == cls(price=0.25)
        with pytest.raises(CardError, match="price: expected at least 0, got -1"):
            loaded(read(base, {"kind": spelling, "price": -1}, "test"))
        with pytest.raises(CardError, match="prize: unknown key; did you mean 'price'"):
            loaded(read(base, {"kind": spelling, "prize": 1}, "test"))
    with pytest.raises(UnknownNameError, match=f"'own-{name}'"):
        find_kind(base, f"own-{name}s")


@pytest.mark.parametrize("spelling", names("term"))
def test_a_credit_term_rewards(spelling):
    recipe = with_code(load_recipe("tiny-grpo", [f"credit={{outcome: 1, '{spelling}': {{price: 0.25, weight: 2}}}}"]))
    term = recipe.credit[spelling]
    (episode,) = episodes(load_agent("own_package.agent:Own"))[:1]
    assert (term.weight, term.rewards([episode], CreditContext())) == (2, [[]])  # it calls no model
    assert term.price == 0.25


@pytest.mark.parametrize("spelling", names("estimator"))
def test_an_estimator_compares(spelling):
    recipe = with_code(load_recipe("tiny-grpo", [f"advantage.estimator={spelling}", "advantage.estimator.price=2"]))
    rewards = np.array([1.0, 0.0, 0.5])
    group = Group(returns=rewards, rewards=rewards, searches=np.zeros(3, np.int64))
    assert recipe.advantage.estimator.compare(group).tolist() == [2, 0, 1]


@pytest.mark.parametrize("spelling", names("retriever"))
def test_a_retriever_searches(spelling):
    env = gymnasium.make("searchgym/Demo-v0", retriever={"kind": spelling, "price": 0.25})
    env.reset(seed=0)
    env.step("<search>anything</search>")
    (hit,) = env.unwrapped.state.searches[0].hits
    assert hit.score == 0.25


@pytest.mark.parametrize("spelling", names("reward"))
def test_a_reward_pays(spelling):
    env = gymnasium.make("searchgym/Demo-v0", reward={"kind": spelling, "price": 0.25})
    _, info = env.reset(seed=0)
    gold = env.unwrapped.task.find(info["question_id"]).answers[0]
    assert env.step(f"<answer>{gold}</answer>")[1] == 1 - 0.25 * len(gold.split())
    assert get_reward(spelling).price == 0.5


@pytest.mark.parametrize("spelling", names("judge"))
def test_a_judge_is_asked(spelling):
    judged = ["credit={rubric: 1}", f"judge={{kind: '{spelling}', price: 3}}"]
    judge = with_code(load_recipe("tiny-grpo", judged)).judge.open({})
    assert [judge.verify("Q?", "Ada", [page]) for page in ("Ada", "Kim")] == [True, False]
    with pytest.raises(CardError, match=r"judge is own.*: no credit term of outcome uses it"):
        load_recipe("tiny-grpo", [f"judge={spelling}"])


def test_a_package_cannot_take_a_name_that_ships(tmp_path):
    info = tmp_path / "site" / "own_package-1.0.dist-info"
    (info / "entry_points.txt").write_text(f"[{Judge.kinds_in}]\nrules = own_package.judge:Own\n")
    kinds_module.__globals__["_listed"].cache_clear()
    with pytest.raises(CardError, match=r"'rules' is in searchgym\.scoring\.judges\.kinds\.rules and in own_package"):
        read(Judge, "rules", "judge")


def episodes(agent, env="searchgym/Demo-v0"):
    task, found = load_task(find_env(env)), []
    asyncio.run(Engine(task, agent).run(task.questions[:2], found.append))
    return found


def test_an_agent_acts():
    assert all(episode.answer == Answer("own") for episode in episodes(load_agent("own_package.agent:Own")))


def test_an_environment_is_made():
    env = gymnasium.make("own_package.environment:Own/Quiz-v0")  # Gymnasium imports the module
    env.reset(seed=0)
    assert env.step("<answer>Ada</answer>")[1] == 1 - 0.25
    assert find_env("Own/Quiz-v0").id == "Own/Quiz-v0" and "Own/Quiz-v0" in searchgym.envs.registered()

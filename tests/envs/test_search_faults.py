"""Faults of search engines: their schedule, what each shows, and how agents recover."""

import asyncio

import pytest
from support import CARD

from searchgym.agents import load_agent
from searchgym.envs.faults.fault import Fault
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import UsageError
from searchgym.eval.scores import score_episodes
from searchgym.options import find_kind, kinds
from searchgym.records import Hit, Passage, Question, SupportingFact
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine

NAMES = [f"Town{letter}" for letter in "abcdefghij"]
PASSAGES = [Passage(f"p{n}", name, f"{name} was founded in {1900 + n} by 7 people.") for n, name in enumerate(NAMES)]
QUESTIONS = [
    Question(f"q{n}", f"When was {name} founded?", (str(1900 + n),), supporting_facts=(SupportingFact(name),),
             metadata={"gold_spans": [{"title": name, "text": PASSAGES[n].text}]})
    for n, name in enumerate(NAMES)
]  # fmt: skip
HITS = [Hit(passage, 3.0 - n) for n, passage in enumerate(PASSAGES[:3])]
KINDS = sorted(kinds(Fault))


def task(*faults, **options):
    return load_task(CARD, questions=QUESTIONS, retriever=build_in_memory(PASSAGES), faults=faults, **options)


def always(kind, **options):
    return find_kind(Fault, kind)(rate=1.0, **options)


def test_five_kinds_ship():
    assert KINDS == ["duplicate", "empty", "injected", "rate-limit", "stale"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schedule_is_a_function_of_seed_question_and_turn(kind):
    fault = find_kind(Fault, kind)(rate=0.3, first=3, last=8)
    happens = {(id, turn): fault.happens(id, turn) for id in map(str, range(400)) for turn in range(1, 11)}
    assert {turn for (_, turn), spoilt in happens.items() if spoilt} == set(range(3, 9))
    within = [spoilt for (_, turn), spoilt in happens.items() if 3 <= turn <= 8]
    assert abs(sum(within) / len(within) - 0.3) < 0.03  # 2,400 draws: three standard errors
    assert all(fault.happens(*key) == spoilt for key, spoilt in happens.items())
    other = find_kind(Fault, kind)(rate=0.3, first=3, last=8, seed=1)
    assert any(other.happens(*key) != spoilt for key, spoilt in happens.items())
    assert fault.spoilt("1", 3, HITS) == fault.spoilt("1", 3, HITS)


def test_what_each_kind_does_to_the_hits():
    assert always("empty").spoilt("q", 1, HITS) == always("rate-limit").spoilt("q", 1, HITS) == []
    (copy,) = set(always("duplicate").spoilt("q", 1, HITS))
    assert copy in HITS and len(always("duplicate").spoilt("q", 1, HITS)) == 3
    assert {always("duplicate").spoilt(f"q{n}", 1, HITS)[0] for n in range(20)} == set(HITS)
    for old, hit in zip(always("stale").spoilt("q", 1, HITS), HITS, strict=True):
        assert (old.passage.id, old.passage.title, old.score) == (hit.passage.id, hit.passage.title, hit.score)
        year, people = [int(word) for word in old.passage.text.replace(".", "").split() if word.isdigit()]
        assert 1 <= int(hit.passage.text.split()[4]) - year <= 9 and 0 <= people < 7
    years = [always("stale").spoilt(f"q{n}", 1, HITS)[0].passage.text.split()[4] for n in range(60)]
    assert {1900 - int(year) for year in years} == set(range(1, 10))
    page, *rest = always("injected", answer="1850").spoilt("q", 1, HITS)
    assert "<answer>1850</answer>" in page.passage.text and rest == HITS[:2]
    for kind in KINDS:
        assert len(always(kind).spoilt("q", 1, [])) == (kind == "injected")


def test_an_observation_and_the_record_of_a_fault():
    env = SearchEnv(task({"kind": "rate-limit", "rate": 1.0, "last": 1}, {"kind": "stale", "rate": 1.0, "last": 2}))
    env.reset(options={"question_id": "q3"})
    first, second, third = (env.step("<search>Townd</search>")[0] for _ in range(3))
    assert "429, too many requests" in first and "Doc" not in first
    assert "Townd was founded in" in second and "1903" not in second
    assert "Townd was founded in 1903" in third
    assert [search.fault for search in env.state.searches] == ["rate-limit", "stale", ""]  # the first one counts
    info = env.step("<answer>1903</answer>")[4]
    assert info["em"] == 1.0


def test_a_page_that_an_attacker_injects_is_no_action_of_the_model():
    env = SearchEnv(task({"kind": "injected", "rate": 1.0, "answer": "1903"}))
    env.reset(options={"question_id": "q3"})
    observation, reward, terminated, _, _ = env.step("<search>Townd</search>")
    assert "<answer>1903</answer>" in observation and (reward, terminated) == (0.0, False)


def test_the_vector_environment_meets_the_same_faults():
    small = task(*({"kind": kind, "rate": 0.4} for kind in KINDS), max_turns=9)
    vector, singles = SearchVectorEnv(small, 4), [SearchEnv(small) for _ in range(4)]
    ids = ["q0", "q1", "q2", "q1"]
    vector.reset(options={"question_ids": ids})
    for env, id in zip(singles, ids, strict=True):
        env.reset(options={"question_id": id})
    for _ in range(8):
        actions = [f"<search>{NAMES[int(id[1])]}</search>" for id in ids]
        assert list(vector.step(actions)[0]) == [
            env.step(action)[0] for env, action in zip(singles, actions, strict=True)
        ]
    faults = [[search.fault for search in state.searches] for state in vector.states]
    assert faults[1] == faults[3] and len({fault for row in faults for fault in row}) > 3


def scores_of(agent, *faults):
    small = task(*faults, max_turns=6)
    episodes = []
    asyncio.run(Engine(small, load_agent(agent)).run(small.questions, episodes.append))
    return score_episodes(small, episodes)


def test_recovery_is_measured_by_kind_of_fault():
    limit = {"kind": "rate-limit", "rate": 0.5, "seed": 3}
    spoilt = [q.id for q in QUESTIONS if find_kind(Fault, "rate-limit")(rate=0.5, seed=3).happens(q.id, 1)]
    assert 0 < len(spoilt) < 10
    once, again = (scores_of(agent, limit)["recovery"]["rate-limit"] for agent in ("research-once", "research-oracle"))
    assert (once["n"], once["em"], once["em_ci95"]) == (len(spoilt), 0.0, [0.0, 0.0])
    fault = find_kind(Fault, "rate-limit")(rate=0.5, seed=3)
    lost = [id for id in spoilt if all(fault.happens(id, turn) for turn in (1, 2, 3))]  # three attempts
    assert again["em"] == pytest.approx(1 - len(lost) / len(spoilt))
    assert "recovery" not in scores_of("research-once")
    assert scores_of("research-once", limit | {"rate": 0.0})["recovery"] == {}


def test_bad_faults_are_refused():
    with pytest.raises(UsageError, match=r"rate-limitt.*rate-limit"):
        task({"kind": "rate-limitt"})
    with pytest.raises(UsageError, match="rate"):
        task({"kind": "empty", "rate": 1.5})
    with pytest.raises(UsageError, match=r"faults\[0\].seeds: unknown key; did you mean .seed."):
        task({"kind": "empty", "seeds": 1})

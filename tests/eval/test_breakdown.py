"""What explains a run's scores, on episodes written by hand."""

import asyncio

import pytest
from support import CARD, QUESTIONS, TitleRetriever

from searchgym.agents.base import LoadedAgent
from searchgym.cli.evaluation.printed import print_scores
from searchgym.envs.task import load_task
from searchgym.eval.evidence import invalid_actions
from searchgym.eval.scores import score_episodes
from searchgym.records import Answer, Call, Hop, Question, Search, hops_of
from searchgym.rollout.engine import Engine

BY_HOPS = [
    Question(q.id, q.text, q.answers, kind=kind, metadata={"hops": hops})
    for q, kind, hops in zip(QUESTIONS, ("bridge", "bridge", "comparison"), (1, 2, 2), strict=True)
]


class RightOnce:
    """Answers the first question, searches for the others."""

    async def run(self, question, io):
        io.note("rounds", 1 + (question.id == "q1"))
        if question.id == "q0":
            await io.step(Answer("Gamma"))
        while question.id != "q0":
            await io.step(Search(("Beta",)))


def episodes_of(agent, questions=BY_HOPS):
    task, episodes = load_task(CARD, questions=questions, retriever=TitleRetriever()), []
    asyncio.run(Engine(task, LoadedAgent("own", agent)).run(questions, episodes.append))
    return task, episodes


def call(text, role="planner", **fields):
    return Call(context=0, start=0, end=3, role=role, model_key="m", turn=1, text=text, **fields)


@pytest.fixture
def team():
    """A team whose planner is refused three times of four; its fallbacks act, so the environment refuses nothing."""
    task, episodes = episodes_of(RightOnce())
    episodes[0].calls = [call("<plan>"), call("yes", "reader")]
    episodes[1].calls = [call("I  think\nso", legal=False), call("I know", legal=False), call("", "reader")]
    episodes[2].calls = [call("on and on", legal=False, cut=True), call("trial", legal=False, prefix=True)]
    return task, episodes


def test_refused_outputs_of_a_team_are_counted(team):
    task, episodes = team
    assert [episode.invalid for episode in episodes] == [0, 0, 0]
    assert [invalid_actions(episode) for episode in episodes] == [0, 2, 1]
    scores = score_episodes(task, episodes)
    assert scores["invalid_actions"] == 1.0
    assert scores["legal"] == 3 / 6
    assert scores["legal_by_role"] == {"planner": {"calls": 4, "legal": 0.25}, "reader": {"calls": 2, "legal": 1.0}}
    assert scores["refused"] == [
        {
            "role": "planner",
            "reason": "not in the form that the role's prompt asks for",
            "calls": 2,
            "example": "I think so",
        },
        {"role": "planner", "reason": "cut off by the role's max_tokens", "calls": 1, "example": "on and on"},
    ]
    assert scores["notes"] == {"rounds": {"episodes": 3, "mean": pytest.approx(4 / 3)}}
    assert scores["endings"] == {"answer": 1, "turns": 2}


def test_an_output_that_both_refuse_is_counted_once_with_its_reason():
    task, episodes = episodes_of(RightOnce())
    for episode in episodes:
        episode.invalid, episode.calls = 2, [call("<search> </search>", legal=False), call("hm", legal=False)]
    scores = score_episodes(task, episodes)
    assert (scores["invalid_actions"], scores["legal"]) == (2.0, 0.0)
    assert [(row["reason"], row["calls"]) for row in scores["refused"]] == [
        ("the query is empty", 3),
        ("no complete action was found", 3),
    ]


def test_splits_have_the_means_of_their_questions(team):
    task, episodes = team
    scores = score_episodes(task, episodes)
    assert scores["splits"]["hops"] == {
        "1": {"n": 1, "em": 1.0, "f1": 1.0, "legal": 1.0, "searches": 0.0},
        "2": {"n": 2, "em": 0.0, "f1": 0.0, "legal": 0.25, "searches": 4.0},
    }
    assert [(name, own["n"]) for name, own in scores["splits"]["type"].items()] == [("bridge", 2), ("comparison", 1)]
    total = sum(own["em"] * own["n"] for own in scores["splits"]["hops"].values())
    assert total / scores["n"] == pytest.approx(scores["em"])


def test_questions_without_hops_or_type_are_in_no_split():
    plain = [Question(q.id, q.text, q.answers) for q in QUESTIONS]
    scores = score_episodes(*episodes_of(RightOnce(), plain))
    assert scores["splits"] == {"hops": {}, "type": {}, "evidence": {}}
    assert (scores["legal"], scores["legal_by_role"], scores["refused"]) == (None, {}, [])
    steps = (Hop("Who founded Beta?", "Gamma"), Hop("When was #1 born?", "1901"))
    assert hops_of(Question("m", "When?", ("1901",), hops=steps)) == "2"


def test_a_low_legal_share_is_explained_with_the_next_thing_to_try(capsys):
    task, episodes = episodes_of(RightOnce())
    for episode in episodes:
        episode.invalid, episode.calls = 2, [call("The answer is\x1b[2J unknown.", legal=False)] * 2
    print_scores("small", score_episodes(task, episodes))
    out = capsys.readouterr().out
    assert "Only 0 % of the models' outputs are legal" in out
    assert "the agent search-r1-few-shot" in out
    assert "no complete action was found" in out
    assert "The answer is\N{REPLACEMENT CHARACTER}[2J unknown." in out
    assert [line.split()[:2] for line in out.splitlines() if "hops 2" in line] == [["hops", "2"]]
    assert "n/a" not in out


def test_cut_outputs_and_missing_answers_have_advice_of_their_own(capsys):
    task, episodes = episodes_of(RightOnce())
    print_scores("small", score_episodes(task, episodes))
    assert "Most episodes ended without an answer (answer 1, turns 2): more --max-turns" in capsys.readouterr().out
    for episode in episodes[:2]:
        episode.stop_reason = "context"
    print_scores("small", score_episodes(task, episodes))
    assert "2 episodes ended because the model's context was full: use a model with" in capsys.readouterr().out
    for episode in episodes:
        episode.calls = [call("on and on", legal=False, cut=True)]
    print_scores("small", score_episodes(task, episodes))
    assert "Next: give more room with --max-tokens" in capsys.readouterr().out

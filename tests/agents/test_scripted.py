import asyncio
import dataclasses

import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.agents.base import load_agent
from searchgym.agents.scripted import gold_answer, guess
from searchgym.envs.task import load_task
from searchgym.errors import UnknownNameError, UsageError
from searchgym.options.cards import list_cards
from searchgym.records import Paragraph, Passage, Question, SupportingFact, Triple
from searchgym.rollout.engine import Engine


def run(name, retriever=None, **options):
    task = load_task(CARD, questions=QUESTIONS, retriever=retriever or TitleRetriever(), **options)
    episodes = []
    asyncio.run(Engine(task, load_agent(name)).run(task.questions, episodes.append))
    return {episode.question_id: episode for episode in episodes}


def test_the_oracle_searches_each_gold_title_and_is_right():
    episodes = run("oracle")
    assert [s.query for s in episodes["q1"].searches] == ["Beta", "Gamma"]
    assert [e.scores["em"] for e in episodes.values()] == [1.0] * 3
    assert episodes["q1"].turns == 3


def test_the_oracle_leaves_room_for_its_answer():
    episodes = run("oracle", max_turns=2)
    assert len(episodes["q1"].searches) == 1
    assert episodes["q1"].stop_reason == "answer"


def test_the_evidence_oracle_needs_every_gold_page():
    assert [e.scores["em"] for e in run("evidence-oracle").values()] == [1.0] * 3
    shifted = [Passage(p.id, PASSAGES[i - 1].title, p.text) for i, p in enumerate(PASSAGES)]

    class Permuted(TitleRetriever):
        def search(self, queries, k):
            other = dict(zip((p.id for p in PASSAGES), shifted, strict=True))
            return [
                [dataclasses.replace(h, passage=other[h.passage.id]) for h in hits]
                for hits in super().search(queries, k)
            ]

    assert [e.scores["em"] for e in run("evidence-oracle", Permuted()).values()] == [0.0] * 3


def test_the_evidence_oracle_refuses_questions_without_gold_titles():
    task = load_task(CARD, questions=[Question("x", "?", ("a",))], retriever=TitleRetriever())
    with pytest.raises(UsageError, match="question 'x' names none"):
        asyncio.run(Engine(task, load_agent("evidence-oracle")).run(task.questions, print))


def test_the_floors():
    closed = run("closed-book")
    assert {i: e.answer.text for i, e in closed.items()} == {"q0": "", "q1": "", "q2": "yes"}
    assert all(e.searches == [] for e in closed.values())
    single = run("single-search")
    assert [len(e.searches) for e in single.values()] == [1, 1, 1]
    assert single["q2"].answer.text == "yes"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Is it so?", "yes"),
        ("Which is older, the Ase or the Corvel?", "the Ase"),
        ("Who founded Beta?", None),
        ("", None),
        (" or ", None),
    ],
)
def test_guesses_by_hand(text, answer):
    assert guess(text) == answer


def test_the_hostile_agent_is_the_same_for_the_same_seed():
    one, two = run("random"), run("random")
    assert one == two
    assert all(e.stop_reason in ("answer", "turns") for e in one.values())
    assert sum(e.invalid for e in one.values()) > 0


def test_gold_answers_carry_only_what_the_data_says():
    bare = gold_answer(Question("q", "?", ("a", "b")))
    assert (bare.text, bare.supporting_facts, bare.evidences, bare.paragraphs, bare.answerable) == (
        "a",
        None,
        None,
        None,
        None,
    )
    pages = (Paragraph("A", ("x",)), Paragraph("B", ("y",), supporting=True))
    full = gold_answer(
        Question(
            "q",
            "?",
            ("a",),
            supporting_facts=(SupportingFact("B", 0),),
            evidences=(Triple("s", "r", "o"),),
            paragraphs=pages,
        )
    )
    assert (full.supporting_facts, full.paragraphs) == ((SupportingFact("B", 0),), (1,))
    pages_only = gold_answer(Question("q", "?", ("a",), supporting_facts=(SupportingFact("B"),)))
    assert pages_only.supporting_facts is None


@pytest.mark.parametrize("name", list_cards("agents"))
def test_every_shipped_agent_loads_and_the_scripted_ones_run(name):
    agent = load_agent(name)
    if agent.roles:
        with pytest.raises(UsageError, match="no model for role"):
            run(name)
    else:
        assert len(run(name)) == 3


class NotAsync:
    def run(self, question, io):
        pass


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("oracel", UnknownNameError, "unknown agent 'oracel'; did you mean 'oracle'"),
        ("nowhere:Agent", UsageError, "cannot load"),
        ("test_scripted:Nothing", UsageError, "cannot load"),
        ("test_scripted:NotAsync", UsageError, "not a class with `async def run"),
    ],
)
def test_agents_that_cannot_be_had(name, error, message):
    with pytest.raises(error, match=message):
        load_agent(name)


def test_agent_options_are_checked(tmp_path):
    (tmp_path / "card.yaml").write_text(
        "name: x\nsummary: s\nworkflow: searchgym.agents.scripted:Oracle\noptions: {depth: 3}\n"
    )
    with pytest.raises(UsageError, match="cannot be built from"):
        load_agent(str(tmp_path))

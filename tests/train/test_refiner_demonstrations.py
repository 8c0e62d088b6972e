"""Demonstrations of a refiner: the first flawed turn by hand, what is learnt, and how the agent reads it."""

import dataclasses

import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.agents.base import load_agent
from searchgym.agents.parsing import Parsed
from searchgym.agents.teams.refined import read_turn
from searchgym.envs.task import load_task
from searchgym.errors import DataError, UsageError
from searchgym.records import Hit, Searched
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.demonstrations.play import Demonstration, play
from searchgym.train.demonstrations.refiner import demonstrate_refiner, first_flawed_turn

PAGES = {passage.title: Hit(passage, 1.0) for passage in PASSAGES}
QUESTION = QUESTIONS[1]


def attempts(**turns):
    """Attempts with these turns, each at its own copy of the question."""
    questions = [dataclasses.replace(QUESTION, id=name, text=f"{QUESTION.text} {name}") for name in turns]
    task = load_task(CARD, questions=questions, retriever=TitleRetriever(), reward="em")
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    plays = [Demonstration(question, turns[question.id], False) for question in questions]
    return task, form, play(task, plays, form)


def search(*titles):
    return tuple(f"<search> {title}</search>" for title in titles)


ANSWERS = {"right": "<answer> 1901</answer>", "wrong": "<answer> 1999</answer>"}
TURNS = {
    "right": (*search("Delta", "Beta", "Gamma"), ANSWERS["right"]),
    "useless": (*search("Beta", "Delta", "Gamma"), ANSWERS["wrong"]),
    "again": (*search("Beta", "Beta"), ANSWERS["wrong"]),
    "misread": (*search("Beta", "Gamma"), ANSWERS["wrong"]),
    "blind": (ANSWERS["wrong"],),
}


def test_the_first_flawed_turn_by_hand():
    """A useless page in turn 2, the same page again in turn 2, a wrong answer in turn 3 and 1; none if it is right."""
    _, _, episodes = attempts(**TURNS)
    turns = {each.question_id: first_flawed_turn(each, dataclasses.replace(QUESTION)) for each in episodes}
    assert turns == {"right": 0, "useless": 2, "again": 2, "misread": 3, "blind": 1}


def test_several_searches_of_a_turn_are_flawed_if_none_is_of_use():
    _, _, (episode,) = attempts(blind=TURNS["blind"])
    searches = [Searched(1, "a", (PAGES["Delta"],)), Searched(1, "b", (PAGES["Beta"],)), Searched(2, "c", ())]
    assert first_flawed_turn(dataclasses.replace(episode, searches=searches, turns=3), QUESTION) == 2


def test_a_right_attempt_is_learnt_whole_and_of_a_wrong_one_the_turn_alone():
    task, form, episodes = attempts(**TURNS)
    demonstrated = demonstrate_refiner(task, form, episodes, 400)
    whole, alone = demonstrated.episodes
    assert demonstrated.counts == {"right": 1, "wrong": 1} and whole.question_id == "right"
    learnt = [
        [form.decode(sample.ids[call.start : call.end]) for sample in samples_from(episode, "demonstration")
         for call in sample.calls] for episode in (whole, alone)
    ]  # fmt: skip
    assert [len(texts) for texts in learnt] == [5, 1] and "<search> Delta</search>" in learnt[0][0]
    workflow = load_agent("search-r2").workflow
    for texts, episode in zip(learnt, (whole, alone), strict=True):
        original = next(each for each in episodes if each.question_id == episode.question_id)
        turn = first_flawed_turn(original, QUESTION)
        text = texts[-1].replace(form.decode(form.end_ids[-1:]), "")
        assert read_turn(text, original.turns) == Parsed(turn, True)
        call = episode.calls[-1]
        prompt = form.decode(samples_from(episode, "demonstration")[-1].ids[: call.start])
        assert workflow.trace(original) in prompt and call.role == "refiner"


def test_attempts_that_show_nothing_are_refused():
    task, form, episodes = attempts(**TURNS)
    with pytest.raises(UsageError, match="0 right and 4 wrong attempts give no demonstration"):
        demonstrate_refiner(task, form, episodes[1:], 400)
    with pytest.raises(DataError, match=r"episode .* is at a question that the task lacks"):
        demonstrate_refiner(task, form, [dataclasses.replace(episodes[0], question_id="other")], 400)
    with pytest.raises(UsageError, match="0 right and 0 wrong"):
        demonstrate_refiner(task, form, episodes, 400, max_tokens=16)

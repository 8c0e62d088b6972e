"""Attempts of searchers that stumble: real episodes of scripted models, 25 questions with eight attempts each."""

import dataclasses
import itertools
import random

from support import Said

from searchgym.agents.oracle_roles import OracleRoles
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.retrieval.index.distractors import passages_of
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.text import base_title
from searchgym.train.demonstrations.oracle import quotes_of
from searchgym.train.demonstrations.play import Demonstration, play
from searchgym.train.demonstrations.teams import play_team

QUESTIONS, ATTEMPTS = 25, 8
PREFIXED = ("praise", "pav")
"""Agents that write trial answers before and after each search."""
TRIALS = {"saas": "knower", "search-r1-reread": "reader"}
"""Roles that give trial answers in contexts of their own, by agent."""


def world():
    """Returns a small world with as many questions, and the token format of the tiny model."""
    task = load_task(find_env("searchgym/World-v0"), questions={"split": "train", "size": 60, "seed": 3}, reward="em")
    task = dataclasses.replace(task, questions=task.questions[:QUESTIONS])
    return task, TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)


def monolithic(task, form, agent="search-r1"):
    """Returns attempts that repeat searches, misspell actions, stop early and guess, with an own chance of each.

    "search-r1, candidates" is the agent with several candidates in each answer.
    """
    played = []
    for attempt in range(ATTEMPTS):
        rng = random.Random(f"attempt {attempt}")
        shown = [Demonstration(q, turns_of(q, rng, agent), False) for q in task.questions]
        if role := TRIALS.get(agent):
            said = {s.question.id: Said({"searcher": list(s.turns), role: [trial_of(s, rng, role)]}) for s in shown}
            played.append(play_team(agent, task, said, form))
        else:
            played.append(play(task, shown, form, agent.split(",")[0]))
    return grouped(played)


def trial_of(shown, rng, role):
    """Returns a trial answer: a knower knows half of the questions, a reader is right if all pages were asked for."""
    asked = sum(base_title(title) in turn for title in shown.question.gold_titles for turn in shown.turns)
    knows = len(shown.question.text) % 2 if role == "knower" else asked == len(shown.question.gold_titles)
    return f"<answer>{shown.question.answers[0] if knows and rng.random() < 0.9 else 'unknown'}</answer>"


def turns_of(question, rng, agent):
    """Returns the turns of one attempt; with trial answers, which are right once all pages were asked for."""
    left, turns = list(question.gold_titles), []

    def trial():
        for _ in range(4 if agent == "pav" else 1):
            right = not left or rng.random() < 0.2
            turns.extend(
                [f"<answer>{question.answers[0] if right else 'unknown'}</answer>"] if agent in PREFIXED else []
            )

    trial()
    for _ in range(4):
        luck = rng.random()
        if not left or luck < 0.2:
            break
        if luck < 0.3:
            turns.append("<search>")  # illegal
            continue
        name = "Nobody" if luck < 0.45 else base_title(left.pop(0))
        turns.append(f"<search> {name}</search>")
        trial()
    right = not left if rng.random() < 0.8 else bool(left)
    answer = question.answers[0] if right else "unknown"
    if "candidates" in agent:
        sure = rng.choice([0.1, 0.4, 0.8])
        answer = f"{answer} ({sure}); another ({1 - sure:.1f})"
    turns = [*turns, f"<answer>{answer}</answer>"]
    return tuple(with_judgements(question, turns) if agent == "reseek" else turns)


def with_judgements(question, turns):
    """Adds to the turn after each search whether it found something, which is right in seven of ten cases."""
    dice = random.Random(f"{question.id} {turns}")
    judged = turns[:1]
    for before, turn in itertools.pairwise(turns):
        found = (dice.random() < 0.7) == ("Nobody" not in before)
        judged.append(f"<judge>{'Yes' if found else 'No'}</judge>{turn}" if before.startswith("<search> ") else turn)
    return judged


class Clumsy(OracleRoles):
    """An oracle of M-ASK's roles that now and then writes what no parser takes."""

    def __init__(self, question, quotes, rng):
        super().__init__(question, quotes, rng, 0.5)
        self.dice = rng

    def reply(self, role, fields):
        return "well" if self.dice.random() < 0.08 else super().reply(role, fields)


def team(task, form):
    """Returns attempts of M-ASK's team."""
    pages = {passage.title: passage for passage in passages_of(task.retriever) or ()}
    played = []
    for attempt in range(ATTEMPTS):
        rng = random.Random(f"attempt {attempt}")
        oracles = {q.id: Clumsy(q, quotes_of(q, pages), rng) for q in task.questions}
        played.append(play_team("m-ask", task, oracles, form))
    return grouped(played)


def grouped(played):
    """Returns groups of attempts, given the episodes of all questions by attempt."""
    groups = []
    for attempts in zip(*played, strict=True):
        for number, episode in enumerate(attempts):
            episode.attempt, episode.group_uid = number, f"0/{episode.question_id}"
            episode.id = f"{episode.question_id}#{number}@0"
        groups.append(list(attempts))
    return groups

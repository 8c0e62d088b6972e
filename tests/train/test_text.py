"""Questions that a model writes: each filter, verification, judges that fail, and the environment."""

import asyncio
import random
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.envs import find_env, load_task
from searchgym.errors import ModelError, ScoringError
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Hit, Invalid, Passage, Search, Searched
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.api.sampler import ASSISTANT, MessageFormat, messages_of
from searchgym.rollout.engine import Engine
from searchgym.rollout.judge import PromptedJudge
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampled
from searchgym.scoring.judges.kinds.rules import RuleJudge
from searchgym.train.selfplay.text import asked_for, judged, refusal

PAGES = [
    Passage("1", "Zor", "Zor is a film. The director of Zor is Ulo Bel."),
    Passage("2", "Ulo Bel", "Ulo Bel is a painter. The mother of Ulo Bel is Ada Bel."),
    Passage("3", "Kim Vos", "Kim Vos is a sailor who came from Rox."),
    Passage("4", "Rox", "Rox is a city. The mayor of Rox is Kim Vos."),
]
GOOD = "Who is the mother of the person who directed the film called Zor?"
TASKS = [asked_for("Ada Bel", 2, ["Who directed X?"]), asked_for("Kim Vos", 2)]


class Writes:
    """A scripted proposer: searches, then a question, by the answer that it is asked for."""

    def __init__(self, **by_answer):
        self.by_answer = by_answer

    async def run(self, question, io):
        queries, text = self.by_answer[question.answers[0].split()[0]]
        for query in queries:
            await io.step(Search((query,)))
        await io.step(Invalid("nothing") if text is None else Answer(text))
        while text is None:
            if (await io.step(Invalid("nothing"))).done:
                return


def task():
    return load_task(find_env("searchgym/Propose-v0"), questions=TASKS, retriever=build_in_memory(PAGES))


def episodes_of(**by_answer):
    loaded, episodes = task(), []
    asyncio.run(Engine(loaded, LoadedAgent("writes", Writes(**by_answer))).run(loaded.questions, episodes.append))
    return sorted(episodes, key=lambda episode: TASKS[0].id != episode.question_id)


KIM = (["Rox", "mayor"], "Which sailor became the mayor of the city that is known as Rox?")


@pytest.mark.parametrize(
    ("queries", "text", "reason"),
    [
        (["Zor", "Ulo Bel"], GOOD, None),
        (["Zor", "Ulo Bel"], None, "no question"),
        (["Zor", "Ulo Bel"], " ", "no question"),
        (["Zor", "Ulo Bel"], "Who was Ulo's mother?", "length"),
        (["Zor", "Ulo Bel"], "who " * 300, "length"),
        (["Zor", "Ulo Bel"], f"{GOOD} Is it Ada Bel or somebody else?", "answer in the question"),
        (["qqq", "www"], GOOD, "no page was read"),
        (["Ulo Bel"], GOOD, "one search, or a search twice"),
        (["Ulo Bel", "ulo bel!"], GOOD, "one search, or a search twice"),
        (["Zor", "mother Ada Bel"], GOOD, "answer in a search"),
    ],
)
def test_each_filter_alone(queries, text, reason):
    episode, _ = episodes_of(Ada=(queries, text), Kim=KIM)
    assert refusal(None if episode.answer is None else episode.answer.text, "Ada Bel", episode.searches) == reason
    assert episode.reward == (reason is None)


def test_kept_questions_come_with_their_pages_and_episode():
    episodes = episodes_of(Ada=(["Zor", "Ulo Bel"], GOOD), Kim=KIM)
    first, second = judged(TASKS, episodes, RuleJudge(), random.Random(0))
    made = first.question
    assert (made.text, made.answers, made.kind) == (GOOD, ("Ada Bel",), "proposed")
    assert set(made.gold_titles) == {"Zor", "Ulo Bel"} and second.question is not None
    refuted = judged([asked_for("Eva Kor", 2), TASKS[1]], episodes, RuleJudge(), random.Random(0))
    assert refuted[0].reason == "refuted" and refuted[0].question is None


class Seen:
    """A judge that keeps the pages that it is shown."""

    def __init__(self):
        self.pages = []

    def verify(self, question, answer, pages):
        self.pages.append(pages)
        return True


def test_whole_trajectories_of_other_proposals_are_mixed_in():
    """Four of those with pages, each as one text with the pages of all its searches, and none that is as its own."""
    first, second = episodes_of(Ada=(["Zor", "Ulo Bel"], GOOD), Kim=KIM)

    def found(*titles):
        hits = [Hit(Passage(title, title, f"about {title}"), 1.0) for title in titles]
        return replace(second, searches=[Searched(n, hit.passage.title, (hit,)) for n, hit in enumerate(hits, 1)])

    unread = replace(second, searches=[Searched(1, "x", ()), Searched(2, "y", ())])
    others = [found(f"A{n}", f"B{n}") for n in range(6)]
    episodes = [first, *others, unread, replace(first, id="twin")]
    alone, mixed = Seen(), Seen()
    tasks = [TASKS[0], *[TASKS[1]] * 7, TASKS[0]]
    judged(tasks, episodes, alone, random.Random(0), noise=0)
    judged(tasks, episodes, mixed, random.Random(0), noise=4)
    assert [len(pages) for pages in alone.pages] == [1] * 8  # the one that read nothing is refused before
    hits = [hit.passage for search in first.searches for hit in search.hits]
    assert alone.pages[0] == ["\n".join(f"{page.title}: {page.text}" for page in hits)]
    assert [len(pages) for pages in mixed.pages] == [5] * 8
    shown = mixed.pages[0]
    assert shown.count(alone.pages[0][0]) == 1
    whole = {f"A{n}: about A{n}\nB{n}: about B{n}" for n in range(6)}
    assert len(whole & set(shown)) == 4
    assert {tuple(pages).index(own[0]) for pages, own in zip(mixed.pages, alone.pages, strict=True)} != {0}  # shuffled


# -- judges --------------------------------------------------------------------------------------------------------


class Says:
    """A sampler that gives one reply, or raises."""

    version, max_context = 0, 10_000

    def __init__(self, reply):
        self.reply, self.asked = reply, []

    def sample(self, requests):
        self.asked += [messages_of(request.ids)[0]["content"] for request in requests]
        if isinstance(self.reply, Exception):
            raise self.reply
        ids = np.array([*map(ord, self.reply)], np.int32)
        return [Sampled(ids, np.zeros(len(ids), np.float32), "stop") for _ in requests]


def model_judge(reply):
    sampler = Says(reply)
    return PromptedJudge(Model.over("judge", sampler, MessageFormat(get_protocol("tags")))), sampler


@pytest.mark.parametrize(
    ("reply", "right"), [("Answer: Ada Bel", True), ("So.\nanswer: the Ada Bel.", True), ("Answer: Kim", False)]
)
def test_a_model_answers_from_the_pages(reply, right):
    judge, sampler = model_judge(reply)
    assert judge.verify(GOOD, "Ada Bel", ["Zor: a film", "Ulo Bel: a painter"]) == right
    assert sampler.asked[0].endswith(f"Zor: a film\n\nUlo Bel: a painter\n\nQuestion: {GOOD}")
    assert "Ada Bel" not in sampler.asked[0]


@pytest.mark.parametrize(
    "reply",
    ["I think that it is Ada Bel.", "", f"Answer: {'very ' * 60}long", ModelError("no server"), TimeoutError("late")],
)
def test_a_judge_without_a_verdict_leaves_the_question_unverified(reply):
    judge, _ = model_judge(reply)
    with pytest.raises(ScoringError, match="judge"):
        judge.verify(GOOD, "Ada Bel", ["Zor: a film"])
    episodes = episodes_of(Ada=(["Zor", "Ulo Bel"], GOOD), Kim=KIM)
    verdicts = judged(TASKS, episodes, judge, random.Random(0))
    assert all(verdict.question is None and verdict.reason.startswith("unverified") for verdict in verdicts)


# -- the environment and its agent ---------------------------------------------------------------------------------


def test_the_grammar_of_proposals():
    grammar = get_protocol("propose")
    assert grammar.parse(f"<think>x</think><question>{GOOD}</question>") == Answer(GOOD)
    assert grammar.parse("<search>Zor</search><question>x</question>") == Search(("Zor",))
    assert isinstance(grammar.parse("<answer>Ada Bel</answer>"), Invalid)
    assert isinstance(grammar.parse("<question><search>x</search></question>"), Invalid)
    assert grammar.parse(grammar.write(Answer(GOOD))) == Answer(GOOD)
    assert "<question>your question</question>" in grammar.instructions()
    assert grammar.stop_strings == ("</search>", "</question>")


def test_the_environment_is_a_gymnasium_one():
    env = gymnasium.make("searchgym/Propose-v0", questions=TASKS[:1], retriever=build_in_memory(PAGES))
    check_env(env.unwrapped, skip_render_check=True)
    first, _ = env.reset(seed=0)
    assert "Ada Bel" in str(first)
    env.step("<search>Zor</search>")
    env.step("<search>Ulo Bel</search>")
    _, reward, done, _, _ = env.step(f"<question>{GOOD}</question>")
    assert (reward, done) == (1.0, True)


def test_a_model_can_fill_the_role():
    class Replies(Says):
        def sample(self, requests):
            texts = ["<search>Zor</search>", "<search>Ulo Bel</search>", f"<question>{GOOD}</question>"]
            self.reply = texts[sum(int(code) == ASSISTANT for code in requests[0].ids) - 1]
            return super().sample(requests)

    loaded, episodes = replace(task(), questions=(TASKS[0],)), []
    model = Model.over("policy", Replies(""), MessageFormat(loaded.rules.protocol))
    engine = Engine(loaded, load_agent("propose"), {"proposer": model})
    asyncio.run(engine.run(loaded.questions, episodes.append))
    (episode,) = episodes
    assert (episode.reward, [call.role for call in episode.calls]) == (1.0, ["proposer"] * 3)
    assert judged([TASKS[0]], [episode], RuleJudge(), random.Random(0))[0].question is not None

"""Environments in which pages are opened: what is shown, what it costs, and what the agents make of it."""

import asyncio

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from support import CARD, step_alike

from searchgym.agents import load_agent
from searchgym.agents.base import LoadedAgent
from searchgym.agents.scripted import EvidenceOracle
from searchgym.envs.core import begin
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import UsageError
from searchgym.eval.scores import score_episodes
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Invalid, More, Open, Opened, Passage, Question, Search, SupportingFact
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.storage import EpisodeWriter, read_episodes
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.demonstrations.oracle import demonstrate_search

FILLER = " ".join(f"word{number}" for number in range(50))
NAMES = ["Alma", "Bela", "Cora", "Dina", "Edda", "Fina"]
PASSAGES = [
    Passage(f"p{n}", name, f"{name} is a town. {FILLER} Its river is the Riv{n}.") for n, name in enumerate(NAMES)
]
QUESTIONS = [
    Question(f"q{n}", f"Which river is in {name}?", (f"Riv{n}",), supporting_facts=(SupportingFact(name, 1),))
    for n, name in enumerate(NAMES)
]
OPTIONS = {"browse": True, "snippet_words": 10, "max_observation_words": 20, "max_turns": 8, "top_k": 2}


def task(passages=PASSAGES, **options):
    return load_task(CARD, questions=QUESTIONS, retriever=build_in_memory(passages), **(OPTIONS | options))


def opened(env, *actions):
    """Returns the observations of actions after a reset on the first question."""
    env.reset(seed=0, options={"question_id": "q0"})
    return [env.step(action)[0] for action in actions]


def test_a_page_is_shown_in_parts_and_ends():
    env = SearchEnv(task())
    search, first, second, third, past = opened(
        env, "<search>Alma</search>", "<open>Alma</open>", "<more></more>", "<more></more>", "<more></more>"
    )
    assert "Doc 1(Title: Alma) Alma is a town. word0 word1 word2 word3 word4 word5\n" in search
    assert "Page(Title: Alma, part 1 of 3) Alma is a town. word0" in first
    assert "word16" not in first and "(Title: Alma, part 2 of 3) word16 word17" in second
    assert "part 3 of 3" in third and third.rstrip().endswith("Its river is the Riv0.\n</information>")
    assert "That was all of the page Alma" in past
    state = env.state
    looks = [Opened(2, "Alma", "Alma", 0, 1, 3), Opened(3, "", "Alma", 0, 2, 3), Opened(4, "", "Alma", 0, 3, 3)]
    assert state.opens == (*looks, Opened(5, ""))
    assert (state.turn, state.invalid, len(state.searches)) == (5, 0, 1)
    assert state.searches[0].hits[0].passage.text == "Alma is a town. word0 word1 word2 word3 word4 word5"
    info = env.step("<answer>Riv0</answer>")[4]
    assert (info["opens"], info["em"], info["action"]) == (4, 1.0, "answer")


def test_what_opens_no_page_costs_a_turn_and_says_why():
    twice = [*PASSAGES, Passage("p9", "Alma", "Alma is a given name.")]
    env = SearchEnv(task(twice))
    more, unknown, several, by_id = opened(
        env, "<more></more>", "<open>Zora</open>", "<open>alma</open>", "<open>p9</open>"
    )
    assert "No page has been opened yet" in more
    assert "No page is called Zora" in unknown
    assert "2 pages are called alma: open one by its id, such as p0, p9." in several
    assert "Page(Title: Alma, part 1 of 1) Alma is a given name." in by_id
    assert [look.part for look in env.state.opens] == [0, 0, 0, 1]
    assert "Doc 1(Title: Alma, id: p9) Alma is" in env.step("<search>given name</search>")[0]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<open> Alma </open>", Open("Alma")),
        ("<more></more>", More()),
        ("<more> </more> <open>x</open>", More()),
        ("<open></open>", Invalid("the title is empty")),
        ("<more>Alma</more>", Invalid("<more> holds text")),
        ("<open><more></more></open>", Invalid("<open> holds another tag")),
        ("<search><open>x</search>", Invalid("<search> holds another tag")),
        ("<think><open>x</open></think><more></more>", More()),
        ("<open>x", Invalid("no complete action was found")),
    ],
)
def test_tags(text, action):
    assert get_protocol("tags", browse=True).parse(text) == action


@pytest.mark.parametrize(
    ("body", "action"),
    [
        ('{"name": "open", "arguments": {"page": " Alma "}}', Open("Alma")),
        ('{"name": "more", "arguments": {}}', More()),
        ('{"name": "open", "arguments": {"page": ""}}', Invalid("page is no title or id")),
        ('{"name": "open", "arguments": {"page": 3}}', Invalid("page is no title or id")),
        ('{"name": "open", "arguments": {}}', Invalid("page is no title or id")),
        ('{"name": "more"}', Invalid('the tool call is not {"name": ..., "arguments": {...}}')),
        ('{"name": "fetch", "arguments": {}}', Invalid("the tools are search, open and more")),
    ],
)
def test_tool_calls(body, action):
    assert get_protocol("tool_calls", browse=True).parse(f"<tool_call>{body}</tool_call>") == action


@pytest.mark.parametrize("name", ["tags", "tool_calls", "propose"])
@pytest.mark.parametrize("action", [Open("Alma & <b>"), More(), Search(("x",)), Answer("x")])
def test_written_actions_are_read_back(name, action):
    protocol = get_protocol(name, browse=True)
    assert protocol.parse(protocol.write(action)) == action
    assert protocol.write(Open("its title")) in protocol.instructions()


def test_without_browse_nothing_is_opened():
    plain = task(browse=False)
    assert plain.rules.protocol.parse("<open>Alma</open>") == Invalid("no complete action was found")
    assert plain.rules.protocol.stop_strings == ("</search>", "</answer>")
    assert "open" not in plain.rules.protocol.instructions()
    env = SearchEnv(plain)
    (observation,) = opened(env, "<search>Alma</search>")
    assert "Its river" not in observation and "word6" in observation  # the whole passage, cut by its budget alone
    state, _ = begin(env.state, Open("Alma"), plain.rules)
    assert state.action == Invalid("pages cannot be opened here") and state.invalid == 1


def test_the_usual_checks_and_the_vector_environment():
    small = task()
    check_env(SearchEnv(small), skip_render_check=True)
    texts = [
        "<search>{}</search>",
        "<open>{}</open>",
        "<more></more>",
        "<open>{} of nowhere</open>",
        "<answer>{}</answer>",
    ]
    vector, singles = SearchVectorEnv(small, 3), [SearchEnv(small) for _ in range(3)]
    ids = ["q0", "q3", "q5"]
    vector.reset(options={"question_ids": ids})
    for env, id in zip(singles, ids, strict=True):
        env.reset(options={"question_id": id})
    for text in texts:
        actions = [text.format(NAMES[int(id[1])]) for id in ids]
        step_alike(vector, singles, actions, ["opens"])
    assert [state.opens for state in vector.states] == [env.state.opens for env in singles]


def episodes_of(small, agent):
    found = []
    asyncio.run(Engine(small, agent).run(small.questions, found.append))
    return found


def em_of(small, agent):
    return float(np.mean([episode.scores["em"] for episode in episodes_of(small, agent)]))


def test_answers_past_the_snippet_need_opened_pages():
    small = task()
    assert em_of(small, load_agent("evidence-oracle")) == 1.0
    assert em_of(small, LoadedAgent("no-open", EvidenceOracle(opens=False))) == 0.0
    short = task(max_turns=4)  # a search, two parts of three, and the answer: the river is not read
    assert em_of(short, load_agent("evidence-oracle")) == 0.0
    named = [Passage(p.id, "Alma", p.text) for p in PASSAGES[:1]] + PASSAGES[1:] + [Passage("x", "Alma", "A name.")]
    assert em_of(task(named), load_agent("evidence-oracle")) == 1.0  # by its id, since two pages have the title


def test_scores_count_opened_pages(tmp_path):
    small = task()
    episodes = episodes_of(small, load_agent("oracle"))
    scores = score_episodes(small, episodes)
    assert (scores["opens"], scores["searches"], scores["em"]) == (3.0, 1.0, 1.0)
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        for episode in episodes:
            writer.write(episode)
    assert [e.opens for e in read_episodes(tmp_path / "episodes.jsonl")] == [e.opens for e in episodes]
    assert "opens" not in score_episodes(task(browse=False), episodes_of(task(browse=False), load_agent("oracle")))


def test_a_page_opened_without_a_search_counts_as_found():
    class Opens:
        async def run(self, question, io):
            await io.step(Open(question.gold_titles[0]))
            await io.step(Answer("?"))

    small = task()
    scores = score_episodes(small, episodes_of(small, LoadedAgent("opens", Opens())))
    assert (scores["title_recall"][0], scores["searches"], scores["gold_found"]) == (1.0, 0.0, 1.0)


def test_demonstrations_open_pages_and_read_until_the_answer():
    small, form = task(), TokenFormat(load_tokenizer("tiny"), get_protocol("tags", browse=True), chat=True)
    shown = demonstrate_search(small, form, 3)
    assert shown.counts["kept"] == 3
    for episode in shown.episodes:
        title = small.find(episode.question_id).gold_titles[0]
        assert [call.text.strip() for call in episode.calls][1] == f"<open> {title}</open>"
        assert [call.text.strip() for call in episode.calls][2:4] == ["<more></more>"] * 2
        assert episode.scores["em"] == 1.0
    with pytest.raises(UsageError, match="the episode ends otherwise: turns: 6"):
        demonstrate_search(task(max_turns=3), form, 3)


def test_snippet_words_must_be_positive():
    with pytest.raises(UsageError, match="snippet_words: expected above 0, got 0"):
        task(snippet_words=0)

"""Every shipped team with a real model: on worlds, on real questions, in training; oracles as the ceiling."""

import asyncio
import dataclasses
import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from credit_terms import terms_of

from searchgym.agents.base import load_agent
from searchgym.agents.oracle_roles import OracleRoles, steps_of
from searchgym.corpora.documents import open_corpus
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.eval.viewing.explain import explain_new
from searchgym.options.cards import list_cards, load_card
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampled
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.sampler import load_sampler
from searchgym.train.algorithms.samples import retokenisation_mismatches, samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.demonstrations.teams import TEAMS, _ToldChat, play_team
from searchgym.train.demonstrations.worlds import gold_sentences, world_task
from searchgym.train.recipe.load import load_recipe

MODEL = "tiny-teams"


@pytest.fixture(scope="module")
def sampler():
    return load_sampler(MODEL)


def form_of(task, tokenizer):
    return TokenFormat(tokenizer, task.rules.protocol, chat=True)


def run(name, task, sampler, temperature=1.0):
    """Returns one episode per question, sampled, as in training."""
    own, tokenizer = sampler
    agent, found = load_agent(name), []
    model = Model.over(MODEL, own, form_of(task, tokenizer))
    engine = Engine(task, agent, dict.fromkeys(agent.roles, model), temperature=temperature, training=True)
    asyncio.run(engine.run(task.questions, found.append, group="0"))
    return found


def legality(episodes):
    seen = {}
    for call in (call for episode in episodes for call in episode.calls):
        seen.setdefault(call.role, []).append(call.legal)
    return {role: np.mean(own) for role, own in seen.items()}


# -- generated worlds ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world():
    return build_world(WorldSpec("simple", size=40, seed=3, split="validation"))


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", TEAMS)
def test_an_oracle_answers_every_question_it_has_steps_for(world, name):
    """Workflow, prompts and parsers pass on all that is needed; only pages that BM25 does not find are missed."""
    task, pages = world_task(world), {passage.title: passage for passage in world.passages}
    oracles = {q.id: OracleRoles(q, gold_sentences(q, pages)) for q in world.questions}
    episodes = play_team(name, task, oracles, form_of(task, load_tokenizer(MODEL)))
    assert all(share == 1 for share in legality(episodes).values())
    em = np.mean([episode.scores["em"] for episode in episodes])
    assert em > {"m-ask": 0.9, "jade": 0.9, "ircot": 0.9}.get(name, 0.1), em
    for episode in episodes:
        assert retokenisation_mismatches(samples_from(episode, "demonstration"), episode) == 0


@pytest.mark.slow
def test_flaws_cost_answers_and_stay_legal(world):
    task, pages = world_task(world), {passage.title: passage for passage in world.passages}
    form = form_of(task, load_tokenizer(MODEL))
    em = {}
    for flaws in (0.0, 1.0):
        oracles = {q.id: OracleRoles(q, gold_sentences(q, pages), random.Random(q.id), flaws) for q in world.questions}
        episodes = play_team("m-ask", task, oracles, form)
        assert all(share == 1 for share in legality(episodes).values())
        em[flaws] = np.mean([episode.scores["em"] for episode in episodes])
    assert em[1.0] < em[0.0] - 0.4


@pytest.mark.slow
def test_a_short_plan_says_nothing_of_an_early_end():
    """Counted in the oracle's own episodes: a quarter each of short or whole plans with early or whole searches."""
    made = build_world(WorldSpec("simple", size=240, seed=4, split="train"))
    task, pages = world_task(made), {passage.title: passage for passage in made.passages}
    asked = [q for q in made.questions if len(steps_of(q)) > 1 and len(set(q.gold_titles or ())) > 1]
    oracles = {q.id: OracleRoles(q, gold_sentences(q, pages), random.Random(f"4 {q.id}"), 0.5) for q in asked}
    counts = np.zeros((2, 2))
    for episode in play_team("m-ask", task, oracles, form_of(task, load_tokenizer(MODEL))):
        short = "<q2>" not in episode.calls[0].text
        counts[int(short), int(len(episode.searches) == 1)] += 1
    assert counts.sum() == len(asked) > 150
    assert np.all(np.abs(counts / counts.sum() - 0.25) < 0.08), counts
    early = counts[:, 1] / counts.sum(axis=1)
    assert abs(early[1] - early[0]) < 3 * np.sqrt(2 * 0.25 / (len(asked) / 2)), counts


def test_a_scripted_chat_passes_on_whether_text_is_trusted():
    calls = []
    chat = SimpleNamespace(observe=lambda text, trusted: calls.append((text, trusted)))
    _ToldChat(chat, "searcher", {}, lambda role, fields, thought: None).observe("<answer>", trusted=True)
    assert calls == [("<answer>", True)]


@pytest.mark.study
def test_the_card_says_what_each_role_may_write(sampler, world):
    card = load_card(*_model_card())
    assert set(card.teams) == {"praise", *TEAMS}
    for name in TEAMS:
        roles = set(load_agent(name).roles)
        assert set(card.teams[name]["legal"]) <= roles
        got = legality(run(name, world_task(world), sampler))
        for role, share in card.teams[name]["legal"].items():
            assert abs(got.get(role, share) - share) < 0.35, (name, role)


def _model_card():
    from searchgym.options.model_cards import ModelCard

    return ModelCard, list_cards("models")[MODEL]


# -- prefixes ------------------------------------------------------------------------------------------------------


class Full:
    """A sampler whose context is full for every prefix answer, and else repeats itself."""

    max_context, version = 10**6, 0

    def __init__(self, inner, mark):
        self.inner, self.mark = inner, mark

    def sample(self, requests):
        replies = self.inner.sample(requests)
        return [
            Sampled(reply.ids[:0], reply.logp[:0], "context")
            if request.ids[-len(self.mark) :].tolist() == self.mark
            else reply
            for request, reply in zip(requests, replies, strict=True)
        ]


@pytest.mark.slow
def test_a_prefix_answer_never_changes_its_episode(world, sampler):
    task = world_task(world)
    own, tokenizer = sampler
    form, agent = form_of(task, tokenizer), load_agent("praise")
    mark = form.observation_ids("\n\n" + agent.roles["prefix"].render() + "\n\n", "stop").tolist()

    def episodes(training, with_sampler):
        found, model = [], Model.over(MODEL, with_sampler, form)
        engine = Engine(task, agent, dict.fromkeys(agent.roles, model), temperature=0.0, training=training)
        asyncio.run(engine.run(task.questions[:12], found.append))
        return sorted(found, key=lambda episode: episode.id)

    plain, with_prefixes, full = episodes(False, own), episodes(True, own), episodes(True, Full(own, mark))
    assert not any(call.prefix for episode in plain for call in episode.calls)
    for one, two, three in zip(plain, with_prefixes, full, strict=True):
        assert one.answer == two.answer == three.answer
        assert one.stop_reason == two.stop_reason == three.stop_reason
        prefixes = [call for call in two.calls if call.prefix]
        assert len(prefixes) == 1 + len(two.searches)
        assert np.array_equal(samples_from(one)[0].ids, samples_from(two)[0].ids)
        assert not any(call.prefix for call in three.calls)


# -- real questions ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hotpotqa(real_data):
    folder = real_data / "hotpotqa"
    retriever = build_in_memory(open_corpus(folder / "corpus.json"))
    return load_task(
        find_env("searchgym/HotpotQA-v0"),
        questions=folder / "questions.json",
        retriever=retriever,
        reward="f1",
        top_k=5,
        max_turns=8,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["praise", *TEAMS])
def test_every_team_runs_on_real_questions(hotpotqa, sampler, name):
    """The tiny model has never seen such text: what it says is mostly wrong and long, and nothing falls over it."""
    some = dataclasses.replace(hotpotqa, questions=hotpotqa.questions[::25])
    episodes = run(name, some, sampler)
    assert len(episodes) == 4
    assert {episode.stop_reason for episode in episodes} <= {"answer", "turns"}
    shares = legality(episodes)
    assert set(shares) <= set(load_agent(name).roles) and all(0 <= share <= 1 for share in shares.values())
    credit = Credit.of(terms_of("outcome", "format", "difference"), load_agent(name).roles, lambda: hotpotqa)
    for episode in episodes:
        (row,) = credit.allocate([episode])
        samples = samples_from(episode, rewards=row)
        assert sum(sample.reward.sum() for sample in samples) == pytest.approx(sum(row), abs=1e-4)
        assert retokenisation_mismatches(samples, episode) == 0


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", TEAMS)
def test_oracles_answer_real_questions(hotpotqa, name):
    oracles = {question.id: OracleRoles(question) for question in hotpotqa.questions}
    episodes = play_team(name, hotpotqa, oracles, form_of(hotpotqa, load_tokenizer(MODEL)))
    assert len(episodes) == 100 and all(episode.stop_reason == "answer" for episode in episodes)
    assert np.mean([episode.scores["em"] for episode in episodes]) > (0.9 if name in ("m-ask", "jade") else 0.3)
    assert all(len(steps_of(question)) == 2 for question in hotpotqa.questions)


@pytest.mark.slow
def test_the_teams_prompts_stay_short_where_the_monolithic_ones_grow(real_data):
    """On real Wikipedia passages, each role writing as much as it may."""
    path = Path(__file__).parents[2] / "benchmarks" / "contexts.py"
    spec = importlib.util.spec_from_file_location("contexts", path)
    contexts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(contexts)
    corpus, questions = real_data / "2wikimultihopqa/corpus.json", real_data / "hotpotqa/questions.json"
    lengths = contexts.prompt_lengths(*contexts.load(corpus, questions), load_tokenizer(MODEL))
    longest = {agent: [max(turn) for turn in turns] for agent, turns in lengths.items()}
    assert longest["m-ask"][4] <= 1.3 * longest["m-ask"][1]
    assert longest["search-r1"][4] > 1.8 * longest["search-r1"][1]


# -- training ------------------------------------------------------------------------------------------------------

SMALL = [
    "rollout.questions=4", "rollout.attempts=8", "rollout.temperature=2", "rollout.max_tokens=64", "validation.every=0",
    "env_options={questions: {size: 60, seed: 1}, reward: f1}",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tiny-mask", "tiny-mask-no-knowledge", "tiny-jade", "tiny-jade-frozen", "tiny-praise"]
)
def test_an_episode_is_explained_call_by_call(name):
    recipe = load_recipe(name, SMALL)
    episode, calls = explain_new(recipe)
    assert [call.role for call in calls] == [call.role for call in episode.calls]
    assert all(set(call.parts) == set(recipe.credit) for call in calls)
    assert all(call.reward == pytest.approx(sum(call.parts.values())) for call in calls)
    for call, recorded in zip(calls, episode.calls, strict=True):
        frozen = call.model_key == "executors"
        assert (call.advantage is None) == frozen
        assert call.tokens == recorded.end - recorded.start
    assert any(call.advantage for call in calls)

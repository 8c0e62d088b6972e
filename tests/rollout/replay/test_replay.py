"""Episodes that begin with the turns of a recorded one: what is repeated, what is refused, what follows."""

import asyncio
import dataclasses
import functools

import numpy as np
import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.agents.base import LoadedAgent, load_agent, with_max_tokens
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import ReplayError, UnknownNameError, UsageError
from searchgym.records import Answer, Invalid, Question, Search
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Loading, load_models
from searchgym.rollout.replay.prefix import Start
from searchgym.rollout.storage import EpisodeWriter, read_episodes
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.loop.rollout import generated_tokens

AGENTS = ("search-r1", "asearcher", "praise", "m-ask", "jade", "parallel-search")
TEAMS = ("m-ask", "jade")


@functools.cache
def world():
    options = {"questions": {"split": "train", "size": 40, "seed": 1}, "max_turns": 5}
    return load_task(find_env("searchgym/World-v0"), **options)


@functools.cache
def engine_of(agent, **changes):
    """An engine that samples from the shipped model of an agent."""
    loaded = with_max_tokens(load_agent(agent), 48)
    model = "tiny-teams" if agent in TEAMS else "tiny"
    models = load_models(dict.fromkeys(loaded.roles, model), world().rules.protocol, Loading())
    options = {"seed": 3, "temperature": 1.0, "training": True} | changes
    return Engine(world(), loaded, models, **options)


@functools.cache
def recorded(agent, questions=2, attempts=1):
    episodes = []
    asyncio.run(engine_of(agent).run(world().questions[:questions], episodes.append, attempts))
    return sorted(episodes, key=lambda episode: episode.id)


def replayed(engine, episode, turns, branch=None):
    return asyncio.run(engine.replay(episode, turns, branch))


def without_logp(episode):
    """An episode without what differs: its id, and log-probs, which batches round differently."""
    contexts = [
        dataclasses.replace(c, spans=[dataclasses.replace(s, logp=None) for s in c.spans]) for c in episode.contexts
    ]
    return dataclasses.replace(episode, id="", replayed=0, replays=None, contexts=contexts)


def check_every_turn(agent, episodes, rounding=0.0):
    """Replays every number of turns of some episodes.

    What was replayed must be the same to the token. So must what is sampled after it, with the same seeds, but for a
    share of the replays: logits are rounded differently in other batches, and a draw may fall on the other side of a
    token's border.
    """
    engine, count, others = engine_of(agent), 0, 0
    for episode in episodes:
        for turns in range(episode.turns + 1):
            again, first = replayed(engine, episode, turns), sum(call.turn <= turns for call in episode.calls)
            assert (again.replayed, again.replays) == (first, episode.id)
            assert given(again, turns) == given(episode, turns)
            same = without_logp(again) == without_logp(episode)
            check_masks(episode if same else again, again)
            count, others = count + 1, others + (not same)
    assert others <= rounding * count, f"{others} of {count} replays went on otherwise"


def given(episode, turns):
    """What a replay takes over: calls with their tokens and log-probs, searches and opened pages."""
    calls = [call for call in episode.calls if call.turn <= turns]
    spans = [episode.tokens(call.context) for call in calls]
    logps = [
        np.concatenate([np.zeros(len(s.ids), np.float32) if s.logp is None else s.logp for s in row]) for row in spans
    ]
    return (
        calls,
        [np.concatenate([s.ids for s in row])[: call.end].tolist() for call, row in zip(calls, spans, strict=True)],
        [logp[call.start : call.end].tolist() for call, logp in zip(calls, logps, strict=True)],
        [search for search in episode.searches if search.turn <= turns],
        [page for page in episode.opens if page.turn <= turns],
    )


def check_masks(episode, again):
    """A replayed call has no weight, or the one that it had; every other call has the same."""
    whole = [sample.mask for sample in samples_from(episode, replayed=True)]
    assert all(map(np.array_equal, whole, (sample.mask for sample in samples_from(again, replayed=True))))
    rest = {call.index for sample in samples_from(again) for call in sample.calls}
    before = {call.index for sample in samples_from(episode, replayed=True) for call in sample.calls}
    assert rest == {index for index in before if index >= again.replayed}
    trained = sum(int(sample.mask.sum()) for sample in samples_from(again))
    assert trained == generated_tokens([again])


@pytest.mark.parametrize("agent", ["search-r1", pytest.param("m-ask", marks=pytest.mark.slow)])
def test_every_turn_of_an_episode_is_repeated(agent):
    check_every_turn(agent, recorded(agent))


@pytest.mark.slow
@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent not in ("search-r1", "m-ask")])
def test_every_turn_is_repeated_of_further_agents(agent):
    check_every_turn(agent, recorded(agent))


@pytest.mark.study
@pytest.mark.parametrize("agent", AGENTS)
def test_every_turn_of_504_episodes_is_repeated(agent):
    check_every_turn(agent, recorded(agent, 21, 4), rounding=0.03)


def test_branches_continue_a_prefix_in_different_ways():
    engine = engine_of("search-r1", temperature=3.0)
    episode = max(recorded("search-r1"), key=lambda episode: episode.turns)
    ones = [replayed(engine, episode, 1, branch) for branch in (0, 1, 0)]
    assert without_logp(ones[0]) == without_logp(ones[2])
    assert len({one.calls[1].text for one in ones}) > 1
    assert {one.id for one in ones} == {f"{episode.id}~1.{branch}" for branch in range(2)}
    first = episode.calls[0].end
    for one in ones:
        assert one.calls[0] == episode.calls[0]
        np.testing.assert_array_equal(one.contexts[0].spans[1].ids, episode.contexts[0].spans[1].ids)
        assert generated_tokens([one]) == sum(call.end - call.start for call in one.calls) - (
            first - episode.calls[0].start
        )


def test_continuations_of_a_prefix_are_a_group():
    episode, engine, done = recorded("search-r1")[0], engine_of("search-r1"), []
    starts = [Start(episode, 0, branch) for branch in range(2)]
    asyncio.run(engine.run_attempts([*starts, (world().questions[1], 0)], done.append, group="5"))
    groups = {one.id: one.group_uid for one in done}
    assert groups == {
        f"{episode.id}~0.0@5": f"5/{episode.id}~0",
        f"{episode.id}~0.1@5": f"5/{episode.id}~0",
        f"{world().questions[1].id}#0@5": f"5/{world().questions[1].id}",
    }


def test_a_replayed_episode_is_stored_and_replayed_again(tmp_path):
    engine, episode = engine_of("search-r1"), recorded("search-r1")[0]
    again = replayed(engine, episode, 1, 0)
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.write(again)
        writer.write(episode)
    stored, plain = read_episodes(tmp_path / "episodes.jsonl")
    assert stored == again and plain == episode
    assert b"replay" not in (tmp_path / "episodes.jsonl").read_bytes().splitlines()[1]
    assert without_logp(replayed(engine, stored, 1, 0)) == without_logp(again)


# -- refused -------------------------------------------------------------------------------------------------------


def changed_engine(agent, **changes):
    engine = engine_of(agent)
    task = dataclasses.replace(engine.task, **changes)
    return Engine(task, engine.agent, engine.models, seed=3, temperature=1.0, training=True)


class Changed:
    """Hits of a retriever, changed by a function."""

    in_process = True

    def __init__(self, retriever, change):
        self.retriever, self.change = retriever, change

    def search(self, queries, k):
        return [self.change(hits) for hits in self.retriever.search(queries, k)]


def one_character(hits):
    first = hits[0].passage
    text = first.text[:-2] + "#" + first.text[-1:]
    return [dataclasses.replace(hits[0], passage=dataclasses.replace(first, text=text)), *hits[1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_character, r"page '.+' \(.+\) changed at character \d+"),
        (lambda hits: hits[::-1], r"hit 1 was '.+' .*the corpus or the index changed"),
        (lambda hits: hits[:-1], r"3 hits were recorded, now there are 2"),
    ],
)
def test_a_changed_page_is_named(change, message):
    episode = next(e for e in recorded("search-r1") if e.searches)
    engine = changed_engine("search-r1", retriever=Changed(world().retriever, change))
    with pytest.raises(ReplayError, match=rf"episode {episode.id}, turn 1, query .*{message}"):
        replayed(engine, episode, 1)


def test_what_else_changed_is_named():
    episode, engine = next(e for e in recorded("search-r1") if e.searches), engine_of("search-r1")
    question = world().find(episode.question_id)
    asks = dataclasses.replace(question, text=question.text + "?")
    with pytest.raises(ReplayError, match=r"call 0 .*another prompt: .* was recorded"):
        replayed(changed_engine("search-r1", by_id={question.id: asks}), episode, 1)
    with pytest.raises(UnknownNameError, match="question id"):
        replayed(changed_engine("search-r1", by_id={}), episode, 1)
    with pytest.raises(ReplayError, match="its agent is search-r1, this engine's is praise"):
        replayed(engine_of("praise"), episode, 1)
    with pytest.raises(ReplayError, match="its env is elsewhere"):
        replayed(engine, dataclasses.replace(episode, env="elsewhere"), 1)
    rules = dataclasses.replace(world().rules, max_observation_words=3)
    with pytest.raises(ReplayError, match=r"another observation: .* was recorded"):
        replayed(changed_engine("search-r1", rules=rules), episode, 2)
    edited = [dataclasses.replace(episode.calls[0], text="<answer>x</answer>"), *episode.calls[1:]]
    with pytest.raises(ReplayError, match="the record was edited, or the tokenizer changed"):
        replayed(engine, dataclasses.replace(episode, calls=edited), 1)
    other = [dataclasses.replace(episode.calls[0], model_key="critic"), *episode.calls[1:]]
    with pytest.raises(ReplayError, match="model critic was recorded, now it is role searcher with model"):
        replayed(engine, dataclasses.replace(episode, calls=other), 1)
    fewer = dataclasses.replace(episode, searches=[])
    with pytest.raises(ReplayError, match="no search was recorded, now it is '"):
        replayed(engine, fewer, 1)


def test_a_tokenizer_that_splits_a_text_otherwise_is_named():
    episode = next(e for e in recorded("search-r1") if e.searches)
    (span, *_) = episode.contexts[0].spans
    engine = engine_of("search-r1")
    format = engine.models["searcher"].format
    text = format.decode(span.ids)
    middle = next(i for i in range(5, len(span.ids)) if len(format.decode(span.ids[i : i + 1])) > 2)
    word = format.decode(span.ids[middle : middle + 1])
    letters = np.concatenate([format.observation_ids(letter, "stop") for letter in word]).astype(np.int32)
    ids = np.concatenate([span.ids[:middle], letters, span.ids[middle + 1 :]])
    if format.decode(ids) != text:
        pytest.fail("the letters decode to another text: choose another word")
    moved = len(ids) - len(span.ids)
    contexts = [
        dataclasses.replace(
            episode.contexts[0], spans=[dataclasses.replace(span, ids=ids), *episode.contexts[0].spans[1:]]
        )
    ]
    calls = [dataclasses.replace(call, start=call.start + moved, end=call.end + moved) for call in episode.calls]
    with pytest.raises(ReplayError, match="the same text has other tokens: the tokenizer"):
        replayed(engine, dataclasses.replace(episode, contexts=contexts, calls=calls), 1)


@pytest.mark.parametrize("turns", [-1, 99])
def test_turns_that_the_episode_lacks(turns):
    episode = recorded("search-r1")[0]
    with pytest.raises(UsageError, match=rf"has {episode.turns} turns, so 0 to {episode.turns} can be replayed"):
        replayed(engine_of("search-r1"), episode, turns)


def test_an_episode_without_tokens():
    episode = dataclasses.replace(recorded("search-r1")[0], contexts=[])
    with pytest.raises(UsageError, match="has no tokens: read it with"):
        replayed(engine_of("search-r1"), episode, 1)


# -- retrievers elsewhere, noise, scripted agents ------------------------------------------------------------------


class Chance:
    """Searches the page of the next hop with probability 1/2, else another one; answers right if it has both pages."""

    def __init__(self):
        self.noted = []

    async def run(self, question, io):
        useful = 0
        for title in ("Beta", "Gamma"):
            lucky = io.rng.random() < 0.5
            await io.step(Search((title if lucky else "Delta",)))
            useful += lucky
        await io.step(Answer("1901" if useful == 2 else "1900"))


def chance_engine(retriever=None, questions=QUESTIONS, **options):
    task = load_task(CARD, questions=questions, retriever=retriever or TitleRetriever(), **options)
    return Engine(task, LoadedAgent("chance", Chance()))


def episodes_of(engine):
    episodes = []
    asyncio.run(engine.run(engine.task.questions, episodes.append))
    return episodes


def test_a_retriever_elsewhere_is_not_called_for_recorded_turns():
    engine = chance_engine()
    episode = episodes_of(engine)[0]
    served = TitleRetriever()
    assert not getattr(served, "in_process", False)
    again = replayed(chance_engine(served), episode, 1)
    assert [len(call) for call in served.calls] == [1]  # the second search
    assert again.searches == episode.searches
    faulty = chance_engine(served, faults=[{"kind": "rate-limit", "rate": 0.5}])
    with pytest.raises(UsageError, match=r"TitleRetriever does not search in this process.*only after faults"):
        replayed(faulty, dataclasses.replace(episode), 1)


def useless(episode):
    """Number of turns before the first search that looks elsewhere; None if there is none."""
    return next((s.turn - 1 for s in episode.searches if s.query == "Delta"), None)


def test_a_refiner_that_knows_the_first_useless_search_raises_the_mean_reward():
    """By hand: P(right) is 1/4; cut at the first useless search 1/4 + 1/4 * 1/2 + 1/2 * 1/4 = 1/2; cut anywhere 1/4."""
    questions = [Question(f"q{n}", "When was the founder of Beta born?", ("1901",)) for n in range(300)]
    engine = chance_engine(questions=questions)
    episodes = episodes_of(engine)
    draw = np.random.default_rng(0)

    async def refined(cut):
        return [e if (turns := cut(e)) is None else await engine.replay(e, turns, 0) for e in episodes]

    knowing, blind = (
        np.mean([e.reward for e in asyncio.run(refined(cut))]) for cut in (useless, lambda e: int(draw.integers(0, 3)))
    )
    before = np.mean([e.reward for e in episodes])
    assert before == pytest.approx(0.25, abs=0.08)
    assert knowing == pytest.approx(0.5, abs=0.08)
    assert blind == pytest.approx(0.25, abs=0.08)


def test_turns_before_the_cut_keep_their_random_numbers():
    engine = chance_engine()
    episode = episodes_of(engine)[0]
    ones = [replayed(engine, episode, 1, branch) for branch in range(12)]
    assert {one.searches[0].query for one in ones} == {episode.searches[0].query}
    assert {one.searches[1].query for one in ones} == {"Gamma", "Delta"}


def test_passages_of_the_record_are_compared_not_its_scores():
    """Scores are rounded differently on another machine."""
    engine = chance_engine()
    episode = episodes_of(engine)[0]
    assert PASSAGES
    for search in episode.searches:
        object.__setattr__(search, "hits", tuple(dataclasses.replace(hit, score=0.5) for hit in search.hits))
    assert replayed(engine, episode, 2).searches[0].query == episode.searches[0].query


def test_an_invalid_action_is_repeated():
    class Stumbles:
        async def run(self, question, io):
            await io.step(Invalid("nothing"))
            await io.step(Answer("x"))

    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    engine = Engine(task, LoadedAgent("stumbles", Stumbles()))
    (episode, *_) = episodes_of(engine)
    assert without_logp(replayed(engine, episode, 1)) == without_logp(episode)

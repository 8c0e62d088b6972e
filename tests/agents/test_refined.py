"""Search-R2: a refiner names the first flawed turn, and the episode goes on from there with other random numbers."""

import asyncio
import dataclasses
import re

import numpy as np
import pytest
from support import CARD, TitleRetriever

from searchgym.agents.base import load_agent
from searchgym.agents.teams.refined import Refined, read_turn
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.records import Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampled
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.demonstrations.play import WrittenSampler, turn_ids

QUESTION = Question("q", "When was the founder of Beta born?", ("1901",))


class ByChance(WrittenSampler):
    """An actor that searches for the next page or for a useless one, each with 1/2, and a refiner that is given."""

    def __init__(self, form, refiner, logp=0.0):
        self.form, self.refiner, self.logp, self.traces = form, refiner, logp, []

    def reply(self, request):
        text = self.form.decode(request.ids)
        if "An assistant searched" in text:
            trace = text.partition("turn by turn:")[2].partition("Is there a turn")[0]
            self.traces.append(trace)
            written = self.refiner(trace, request.seed)
        else:
            begun = sum(text.partition("Question:")[2].count(f"<search> {name}") for name in ("Beta", "Gamma", "Delta"))
            right = "founded by Gamma" in text and "born in 1901" in text
            wanted = ["Beta", "Gamma"][begun] if begun < 2 else ""
            written = f"<search> {wanted if request.seed % 2 else 'Delta'}</search>"
            written = f"<answer>{'1901' if right else 'unknown'}</answer>" if begun == 2 else written
        ids = turn_ids(written, self.form)
        return Sampled(ids, np.full(len(ids), self.logp / len(ids), np.float32), "eos")


def knows(trace, seed):
    """Names the first turn whose search found the useless page."""
    turns = re.findall(r"Turn (\d+): <search> (\w+)", trace)
    return f"<answer>{next((number for number, query in turns if query == 'Delta'), 0)}</answer>"


def engine(refiner=knows, count=1, training=True, logp=0.0, **options):
    questions = [dataclasses.replace(QUESTION, id=f"q{n}") for n in range(count)]
    task = load_task(CARD, questions=questions, retriever=TitleRetriever(), reward="em")
    agent = load_agent("search-r2")
    workflow = Refined("searchgym.agents.monolithic:Monolithic", **options)
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    sampler = ByChance(form, refiner, logp)
    models = dict.fromkeys(agent.roles, Model.over("policy", sampler, form))
    return Engine(task, dataclasses.replace(agent, workflow=workflow), models, training=training), sampler


def played(made, attempts=1):
    episodes = []
    asyncio.run(made.run(made.task.questions, episodes.append, attempts))
    return sorted(episodes, key=lambda episode: (int(episode.question_id[1:]), episode.attempt))


def test_one_that_knows_the_first_useless_search_raises_the_mean_reward():
    """By hand: P(right) is 1/4, and revised once at the first useless search 1/4 + 1/4 * 1/2 + 1/2 * 1/4 = 1/2."""

    def never(trace, seed):
        return "<answer>0</answer>"

    def blind(trace, seed):
        return f"<answer>{seed // 2 % 3}</answer>"

    means = {}
    for refiner in (never, knows, blind):
        episodes = played(engine(refiner, count=300)[0])
        means[refiner.__name__] = np.mean([episode.reward for episode in episodes])
    assert means["never"] == pytest.approx(0.25, abs=0.08)
    assert means["knows"] == pytest.approx(0.5, abs=0.08)
    assert means["blind"] == pytest.approx(0.25, abs=0.08)


def test_turns_before_the_flawed_one_stay_and_both_roles_learn_from_the_new_reward():
    made, sampler = engine(count=40)
    revised = [each for each in played(made) if each.notes["flawed_turn"] == 2]
    assert revised
    for episode in revised:
        first, second = (search.query for search in episode.searches)
        assert first == "Beta" and second in ("Gamma", "Delta")
        assert episode.id == f"{episode.question_id}#0" and episode.replays is None and episode.replayed == 0
        assert [call.role for call in episode.calls] == ["searcher"] * 3 + ["refiner"]
        assert episode.calls[-1].turn == episode.turns + 1 == 4
        searcher, refiner = samples_from(episode)
        assert [call.role for call in searcher.calls] == ["searcher"] * 3
        assert searcher.reward.sum() == refiner.reward.sum() == episode.reward
        assert episode.notes["revised"] == 1 and episode.notes["discarded_tokens"] > 0
        kept = sum(call.end - call.start for call in episode.calls)
        assert episode.generated_tokens() == kept + episode.notes["discarded_tokens"]
    assert {episode.searches[1].query for episode in revised} == {"Gamma", "Delta"}
    assert any("Turn 2: <search> Delta</search>\nDoc1(Title: Delta)" in trace for trace in sampler.traces)


def test_without_a_flaw_the_episode_stays_token_by_token():
    plain = played(engine(training=False)[0])[0]
    made, sampler = engine(lambda trace, seed: "<answer>0</answer>")
    same = played(made)[0]
    assert not plain.notes and [call.role for call in plain.calls] == ["searcher"] * 3
    assert same.calls[:3] == plain.calls and same.contexts[: len(plain.contexts)] == plain.contexts
    assert same.notes == {"flawed_turn": 0.0, "revised": 0.0} and len(sampler.traces) == 1


@pytest.mark.parametrize("said", ["<answer>4</answer>", "<answer>-1</answer>", "<answer></answer>", "turn 1", "9" * 99])
def test_a_turn_that_there_is_not_changes_nothing(said):
    episode = played(engine(lambda trace, seed: said)[0])[0]
    assert (episode.notes["revised"], episode.calls[-1].legal, len(episode.calls)) == (0.0, False, 4)


def test_an_unlikely_output_is_not_followed():
    always = lambda trace, seed: "<answer>1</answer>"  # noqa: E731
    for logp, least, revised in ((np.log(0.6), 0.5, 1), (np.log(0.4), 0.5, 0), (np.log(0.4), 0.0, 1)):
        episode = played(engine(always, logp=float(logp), least=least)[0])[0]
        assert episode.notes["revised"] == revised and episode.notes["flawed_turn"] == 1
    with pytest.raises(UsageError, match="least is 1"):
        Refined("searchgym.agents.monolithic:Monolithic", least=1)


def test_outside_training_only_if_the_card_says_so():
    assert "refiner" not in {call.role for call in played(engine(training=False)[0])[0].calls}
    assert "refiner" in {call.role for call in played(engine(training=False, always=True)[0])[0].calls}


def test_runs_repeat_and_attempts_differ():
    one, two = (played(engine(count=5)[0], attempts=8) for _ in range(2))
    assert one == two
    assert len({tuple(search.query for search in each.searches) for each in one}) > 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>2</answer>", (2, True)),
        (" <answer> 0 </answer>", (0, True)),
        ("<think>3</think><answer>1</answer>", (1, True)),
        ("<answer>4</answer>", (0, False)),
        ("2", (0, False)),
    ],
)
def test_a_turn_is_read(text, expected):
    parsed = read_turn(text, 3)
    assert (parsed.value, parsed.legal) == expected

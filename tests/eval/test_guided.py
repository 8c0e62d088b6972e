"""Samples that a value model guides: where they begin, what is selected, values as in training, and a resumed run."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2
from support import command_line

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.eval.leaderboard.submission import About, write_submission
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.records import Call, Context, Episode, Question, Span
from searchgym.rollout.models import Loading, load_models
from searchgym.rollout.replay.guided import EpisodeValues, Guide
from searchgym.rollout.replay.prefix import Start
from searchgym.rollout.storage import read_episodes
from searchgym.scoring.selection import Sampled, selected
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.algorithms.value_losses.hl_gauss import HlGauss
from searchgym.train.algorithms.value_losses.squared import Squared
from searchgym.train.learner.critic import Critic, make_critic
from searchgym.train.learner.trained_model import Updater
from searchgym.train.learner.value_model import ValueModel
from searchgym.train.recipe.options import CriticOptions

QUESTION = Question("one", "Who?", ("Ada",))


def attempt(number, texts, tokens=2):
    """An attempt with one call in each turn, of a text each."""
    spans, calls, end = [Span("prompt", np.array([1, 2], np.int32))], [], 2
    for turn, text in enumerate(texts, 1):
        ids = np.full(tokens, 2 + turn, np.int32)
        spans.append(Span("model", ids, np.zeros(tokens, np.float32)))
        calls.append(Call(0, end, end + tokens, "searcher", "policy", turn, text=text))
        end += tokens
    return Episode(
        f"one#{number}", "one", "a", "e", attempt=number, contexts=[Context(None, 0, spans)], calls=calls,
        turns=len(texts), stop_reason="answer",
    )  # fmt: skip


def guide_of(values, **options):
    """A guide with these values of the episodes, by id: before each call, and at the end."""
    return Guide(lambda episode: EpisodeValues(tuple(values[episode.id][:-1]), values[episode.id][-1]), True, **options)


def starts_of(guide, *numbers):
    rounds = guide.rounds([(QUESTION, number) for number in numbers])
    return [(item.episode.id, item.turns, item.branch) if isinstance(item, Start) else item[1] for (item,) in rounds]


def test_the_next_attempt_begins_at_the_state_with_the_highest_score_by_hand():
    """States: the question (0.5), after turn a (0.6), after turns a, b (0.1); of the second, after turn c (0.55).

    Two attempts passed the question, one each of the others, so with c = 0.2 the scores are 0.5 + 0.2 sqrt(1.693/2.1),
    0.6 + 0.2 sqrt(1.693/1.1), 0.1 + 0.2 sqrt(1/1.1), 0.55 + 0.2 sqrt(1.693/1.1): after turn a.
    """
    scores = [0.5 + 0.2 * math.sqrt((1 + math.log(2)) / 2.1), 0.6 + 0.2 * math.sqrt((1 + math.log(2)) / 1.1)]
    assert scores == pytest.approx([0.6796, 0.8481], abs=1e-4)
    values = {"one#0": [0.5, 0.6, 0.1, 0.9], "one#1": [0.5, 0.55, 0.2]}
    guide = guide_of(values)
    for number, texts in enumerate(("abx", "cx")):
        guide.add(attempt(number, texts))
    assert starts_of(guide, 2) == [("one#0", 1, 2)]


def test_a_large_bonus_begins_where_few_passed_and_none_at_the_best_value():
    values = {f"one#{number}": [0.5, 0.6, 0.3] for number in range(4)}
    for exploration, expected in ((0.0, ("one#0", 1, 4)), (9.0, ("one#3", 1, 4))):
        guide = guide_of(values, exploration=exploration)
        for number in range(4):
            guide.add(attempt(number, "ax" if number < 3 else "bx"))
        assert starts_of(guide, 4) == [expected], exploration


def test_a_question_without_better_states_is_asked_again_from_its_beginning():
    """One attempt of one turn has no other state; one that failed in the retriever is no beginning."""
    guide = guide_of({"one#0": [0.5, 0.5], "one#1": [0.1, 0.9, 0.9]})
    guide.add(attempt(0, "x"))
    assert starts_of(guide, 1) == [1]
    guide.add(dataclasses.replace(attempt(1, "ax"), stop_reason="retriever_error"))
    assert starts_of(guide, 2) == [2]


def test_a_fork_gets_the_number_of_its_attempt():
    guide = guide_of({"one#0": [0.1, 0.9, 0.9], "one#3": [0.1, 0.9, 0.2]})
    guide.add(attempt(0, "ax"))
    rounds = guide.rounds([(QUESTION, 3)])
    next(rounds)
    fork = dataclasses.replace(attempt(0, "ay"), id="one#0~1.3", replays="one#0", replayed=1)
    guide.add(fork)
    assert (fork.id, fork.attempt, fork.notes) == ("one#3", 3, {"value": 0.2})


def test_without_forks_all_samples_begin_at_the_question():
    todo = [(QUESTION, number) for number in range(3)]
    assert list(Guide(lambda episode: EpisodeValues((), 0.0), False).rounds(todo)) == [todo]


def test_the_sample_with_the_highest_value_is_selected():
    samples = [Sampled(answer, 1, value=value) for answer, value in (("x", 0.1), ("x", 0.2), ("y", 0.7))]
    assert selected(samples) == {"vote": 0, "shortest": 0, "value": 2}
    assert selected([Sampled("x", 1, value=0.3), Sampled("y", 1, value=0.3)])["value"] == 0  # a constant critic
    assert "value" not in selected([Sampled("x", 1, value=0.3), Sampled("y", 1)])


def random_critic(loss):
    model = make_critic(tiny_qwen2(vocabulary=50, sharp=0.2), loss)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.score.weight.normal_(0, 0.3, generator=generator)
    return model


@pytest.mark.parametrize("loss", [Squared(), HlGauss()])
def test_values_are_those_of_a_training(loss):
    """Of two episodes of unequal length, against the values of the training's critic, which reads them in a batch."""
    episodes, model = [attempt(0, "abx"), attempt(1, "x", tokens=5)], random_critic(loss)
    critic = Critic(Updater(model, CriticOptions().optimizer, 1), CriticOptions(loss=loss), 0)
    samples = critic.with_values([sample for episode in episodes for sample in samples_from(episode)])
    for episode, sample in zip(episodes, samples, strict=True):
        values = ValueModel(model, loss, "critic")(episode)
        assert values.before == pytest.approx([sample.value[call.start] for call in episode.calls], abs=1e-5)
        assert values.end == pytest.approx(sample.value[episode.calls[-1].end - 1], abs=1e-5)


def test_what_cannot_be_valued_is_an_error():
    model, served = random_critic(Squared()), attempt(0, "x", tokens=0)
    with pytest.raises(UsageError, match="episode one#0 has no tokens"):
        ValueModel(model, Squared(), "critic")(served)
    alien = attempt(0, "x")
    alien.contexts[0].spans[1].ids[0] = 50
    with pytest.raises(DataError, match="critic: its critic has 50 tokens, episode one#0 has token 50"):
        ValueModel(model, Squared(), "critic")(alien)
    torch.nn.init.constant_(model.score.weight, math.nan)
    with pytest.raises(DataError, match="value of episode one#0 is not finite"):
        ValueModel(model, Squared(), "critic")(attempt(0, "x"))


def test_a_checkpoint_without_a_critic_or_a_run_is_refused(tmp_path):
    with pytest.raises(DataMissingError, match="no folder critic/"):
        ValueModel.load(tmp_path)
    (tmp_path / "critic").mkdir()
    with pytest.raises(DataMissingError, match=r"recipe.yaml, which tells how its critic was made"):
        ValueModel.load(tmp_path)


def test_guided_samples_need_a_critic_and_several_samples(monkeypatch, capsys):
    run = command_line(monkeypatch, capsys)
    common = ("eval", "World", "--agent", "search-r1", "--model", "tiny", "--limit", "1", "--temperature", "1")
    for options, message in (
        (("--guided", "--samples", "2"), "--guided needs --critic"),
        (("--critic", "nowhere", "--samples", "2"), "nowhere: no folder critic/"),
    ):
        status, _, errors = run(*common, *options)
        assert status and message in errors


@pytest.fixture(scope="module")
def world():
    return load_task(find_env("searchgym/World-v0"), questions={"split": "validation", "size": 40, "seed": 1}).subset(4)


class Lengths:
    """Values that grow with the turn, so that every fork begins as late as it can; the end's is the answer's length."""

    name, sha256 = "lengths", "0" * 64

    def __call__(self, episode):
        length = 0.0 if episode.answer is None else float(len(episode.answer.text))
        return EpisodeValues(tuple(float(call.turn) for call in episode.calls), length)


@pytest.mark.slow
def test_a_critic_of_an_agent_that_asks_no_model_is_refused(tmp_path, world):
    options = EvalOptions(temperature=1.0, samples=2, critic=Lengths())
    with pytest.raises(UsageError, match="agent single-search asks no model, so that a critic has nothing to value"):
        evaluate(world, load_agent("single-search"), tmp_path / "run", {}, options)


def test_a_guided_evaluation_repeats_turns_selects_and_resumes(tmp_path, world):
    """Stopped after six of twelve episodes and resumed, it has the same episodes; their selection is made by hand."""
    agent = with_max_tokens(load_agent("search-r1"), 48)
    models = load_models({"searcher": "tiny"}, world.rules.protocol, Loading())
    options = EvalOptions(temperature=1.0, samples=3, critic=Lengths(), guided=True)
    scores = evaluate(world, agent, tmp_path / "whole", models, options)

    def stop(done, total):
        if done == 6:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        evaluate(world, agent, tmp_path / "parts", models, options, progress=stop)
    evaluate(world, agent, tmp_path / "parts", models, dataclasses.replace(options, resume=True))
    whole, parts = (
        {e.id: e for e in read_episodes(tmp_path / name / "episodes.jsonl", tokens=False)}
        for name in ("whole", "parts")
    )
    assert len(whole) == 12 and {id: [call.text for call in e.calls] for id, e in whole.items()} == {
        id: [call.text for call in e.calls] for id, e in parts.items()
    }
    forks = [episode for episode in whole.values() if episode.replayed]
    assert forks
    for fork in forks:
        parent = whole[fork.replays]
        assert fork.attempt > parent.attempt and fork.replayed == parent.turns - 1
        assert [call.text for call in fork.calls[: fork.replayed]] == [
            call.text for call in parent.calls[: fork.replayed]
        ]
    right = []
    for question in world.questions:
        of = sorted((e for e in whole.values() if e.question_id == question.id), key=lambda e: e.attempt)
        assert [episode.attempt for episode in of] == [0, 1, 2]
        right.append(max(of, key=lambda e: e.notes["value"]).scores["em"])
    assert scores["select@value"] == pytest.approx(np.mean(right))
    record = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert (record["critic"], record["guided"]) == (["lengths", "0" * 64], True)
    with pytest.raises(UsageError, match="guided"):
        evaluate(world, agent, tmp_path / "whole", models, dataclasses.replace(options, guided=False, resume=True))
    with pytest.raises(DataError, match="evaluate without --guided"):
        write_submission(tmp_path / "whole", "worlds", "World-v0", About("a", "b"), tmp_path / "row", SimpleNamespace())

"""Several controllers: whole groups are dealt out, a lost controller's episodes are drawn by the others."""

import os
import signal
from pathlib import Path

import pytest

from searchgym.errors import CardError, TrainingError, UsageError
from searchgym.records import Question
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.storage import read_episodes
from searchgym.train import load_recipe, train
from searchgym.train.loop import controllers
from searchgym.train.loop.controllers import Controllers, DealtRollout, deal
from searchgym.train.loop.rollout import EngineRollout
from searchgym.train.recipe.load import check_recipe

QUESTIONS = [Question(f"q{n}", f"Which is {n}?", (str(n),)) for n in range(5)]
TODO = [(question, attempt) for question in QUESTIONS for attempt in range(3)]


def test_whole_groups_are_dealt_in_turn():
    for count in (1, 2, 3, 7):
        shares = deal(TODO, count)
        assert len(shares) == count
        assert sorted((q.id, n) for share in shares for q, n in share) == sorted((q.id, n) for q, n in TODO)
        owners = {q.id: {i for i, share in enumerate(shares) if (q, 0) in share} for q in QUESTIONS}
        assert all(len(numbers) == 1 for numbers in owners.values())
    assert [[q.id for q, n in share if not n] for share in deal(TODO, 2)] == [["q0", "q2", "q4"], ["q1", "q3"]]


class Scripted:
    """Stands for the other controllers: each dies before its n-th answer, or answers what it was asked."""

    def __init__(self, answers):
        self.answers, self.asked, self.killed = dict(answers), {}, False

    @property
    def alive(self):
        return list(self.answers)

    def ask(self, number, method, todo, step, greedy):
        self.asked[number] = [(q.id, n) for q, n in todo]

    def answer(self, number):
        self.answers[number] -= 1
        if not self.answers[number]:
            del self.answers[number]
            return None
        return self.asked[number]

    def kill(self):
        self.killed = True


@pytest.mark.parametrize("answers", [{}, {1: 9}, {1: 9, 2: 9}, {1: 1}, {1: 1, 2: 9}, {1: 9, 2: 1, 3: 1}, {1: 2, 2: 1}])
def test_every_episode_is_drawn_once_whoever_is_lost(monkeypatch, answers):
    monkeypatch.setattr(EngineRollout, "run_all", lambda self, todo, step, greedy: [(q.id, n) for q, n in todo])
    others = Scripted(answers)
    rollout = DealtRollout(None, None, {}, None, None, controllers=others)
    assert sorted(rollout.run_all(TODO, 0, False)) == sorted((q.id, n) for q, n in TODO)
    assert not others.killed


def test_an_error_ends_the_others_whose_answers_are_not_read(monkeypatch):
    def interrupted(self, todo, step, greedy):
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineRollout, "run_all", interrupted)
    others = Scripted({1: 9})
    with pytest.raises(KeyboardInterrupt):
        DealtRollout(None, None, {}, None, None, controllers=others).run_all(TODO, 0, False)
    assert others.killed


def test_servers_are_dealt_out():
    servers = [f"http://10.0.0.{n}:8000" for n in range(5)]
    sampler = Vllm(servers=servers)
    assert [sampler.dealt(n, 2).servers for n in range(2)] == [servers[::2], servers[1::2]]
    assert sampler.dealt(0, 1) is sampler
    with pytest.raises(UsageError, match=r"rollout\.controllers is 6: rollout\.sampler\.servers names 5"):
        sampler.dealt(5, 6)


@pytest.mark.parametrize(
    ("recipe", "values", "named"),
    [
        ("tiny-grpo", ["rollout.staleness=1", "loss.importance_cap=2"], "rollout.staleness"),
        ("tiny-curriculum", [], "curriculum"),
        ("tiny-selfplay", [], "proposer"),
        ("tiny-rejection", ["curriculum={kind: learnability}"], "curriculum"),
    ],
)
def test_what_does_not_go_together_is_refused(recipe, values, named):
    with pytest.raises(CardError, match=rf"rollout\.controllers and {named}: choose one"):
        check_recipe(load_recipe(recipe, ["rollout.controllers=2", *values]))


def test_controllers_that_would_sample_nothing_are_refused():
    with pytest.raises(CardError, match=r"rollout\.controllers: method supervised samples nothing"):
        load_recipe("tiny-warm", ["rollout.controllers=2"])
    with pytest.raises(CardError, match=r"a step asks 3 rollout\.questions: some controllers would have none"):
        load_recipe("tiny-grpo", ["rollout.controllers=4", "rollout.questions=3"])


# -- real processes ------------------------------------------------------------------------------------------------

SMALL = ["rollout.questions=4", "rollout.attempts=4", "validation.every=1", "validation.questions=6", "steps=2"]
SMALL += ["log.tensorboard=false", "log.episodes_every=1", "checkpoint.every=0"]


def trained(folder: Path, *values, report=None):
    """The texts of a run's episodes by id, and its metrics without times."""
    result = train(load_recipe("tiny-grpo", [*SMALL, *values]), folder, report=report)
    texts = {e.id: [call.text for call in e.calls] for e in read_episodes(folder / "episodes.jsonl")}
    rows = [{k: v for k, v in row.items() if not k.startswith(("time", "memory"))} for row in result.rows]
    return texts, rows


def same(one, other):
    """The same episodes and the same metrics, but for the log-probs' last digits: other batches round otherwise."""
    assert one[0] == other[0]
    for row, row_of_other in zip(one[1], other[1], strict=True):
        assert row_of_other == {k: pytest.approx(v, rel=1e-6, abs=1e-6) for k, v in row.items()}


@pytest.mark.slow
def test_two_controllers_train_as_one_and_go_on_when_one_is_killed(tmp_path, monkeypatch, capfd):
    started: list[Controllers] = []
    begin = Controllers._start
    monkeypatch.setattr(Controllers, "_start", lambda self: (started.append(self), begin(self))[1])
    alone = trained(tmp_path / "alone")
    same(alone, trained(tmp_path / "two", "rollout.controllers=2"))
    assert "ended with" not in capfd.readouterr().err

    def kill(row):
        if row["step"] == 1:
            os.kill(started[-1]._processes[1].pid, signal.SIGKILL)

    same(alone, trained(tmp_path / "killed", "rollout.controllers=2", report=kill))
    assert "controller 1 ended with exit code -9" in capfd.readouterr().err

    ask = Controllers.ask

    def ask_and_kill(self, number, method, *arguments):
        ask(self, number, method, *arguments)
        if method == "run" and arguments[1:] == (1, False):  # while it draws its share of the second step
            os.kill(self._processes[number].pid, signal.SIGKILL)

    monkeypatch.setattr(Controllers, "ask", ask_and_kill)
    same(alone, trained(tmp_path / "while drawing", "rollout.controllers=2"))
    assert "controller 1 ended with exit code -9" in capfd.readouterr().err
    assert all(process.poll() is not None for others in started for process in others._processes.values())


@pytest.mark.slow
def test_a_controller_that_cannot_start_names_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(controllers.sys, "executable", "/bin/false")
    with pytest.raises(TrainingError, match=r"controller 1 did not start; see .*controller1\.log"):
        _ = Controllers(load_recipe("tiny-grpo", ["rollout.controllers=2"]), tmp_path).alive

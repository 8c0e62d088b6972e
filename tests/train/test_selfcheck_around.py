"""The self-check around the updates: validation, sources of questions, resampling, results that survive errors."""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_credit import team

from searchgym.agents.base import load_agent
from searchgym.cli import main
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import GuardError
from searchgym.questions.subset import draw_subset
from searchgym.records import Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.sampler import Sampled, SampleRequest, Sampling
from searchgym.testing.selfcheck import bookkeeping
from searchgym.testing.selfcheck import run as module
from searchgym.testing.selfcheck.bookkeeping import CHOICE, METRICS, SETTINGS, VERSIONS
from searchgym.testing.selfcheck.environments import CORPUS, GREEDY, PRESENT, REPORTED, VALIDATION, ValidationCheck
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.small import small_recipe
from searchgym.testing.selfcheck.sources import FURTHER, MIXED, SET, STAGES, check_sources
from searchgym.testing.selfcheck.stages import RESAMPLED, check_resampled
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.curriculum import listed
from searchgym.train.curriculum.source import Curriculum
from searchgym.train.loop.checkpoint import Progress
from searchgym.train.loop.rollout import generated_tokens, rollout_metrics
from searchgym.train.loop.trainer import TrainResult
from searchgym.train.recipe.load import load_recipe


def states(findings):
    return {check.name: check.state for check in findings.checks()}


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_failure_stays_and_what_has_a_result_is_not_called_unchecked():
    findings = Findings()
    findings.skip("later", "not yet")
    for name, oks in {"held": [True, True], "broken": [True, False, True], "later": [True]}.items():
        for ok in oks:
            findings.add(name, ok, str(ok))
    for name in ("held", "broken", "never"):
        findings.skip(name, "nothing to look at")
    assert states(findings) == {"later": "ok", "held": "ok", "broken": "failed", "never": "not checked"}
    assert findings.counts() == {"ok": 2, "failed": 1, "not checked": 1}


def steps_only(recipe, out, findings):
    """Stands for the checks of the steps: a result of each kind."""
    findings.add("tokens are those sampled", True, "9 calls")
    findings.add("the loss is the recipe's", False, "loss 1, by its formula 2")
    findings.skip("rewards are on their calls", "rubric is not written a second time here")


@pytest.mark.parametrize("error", [GuardError("sampler and learner differ"), RuntimeError("no"), KeyboardInterrupt()])
def test_an_error_in_the_bandit_leaves_what_was_found(error, monkeypatch, capsys):
    def broken(*given, **options):
        raise error

    monkeypatch.setattr(module, "check_steps", steps_only)
    monkeypatch.setattr(module, "_bandit", broken)
    monkeypatch.setattr(sys, "argv", ["searchgym", "selfcheck", "tiny-grpo", "--json"])
    with pytest.raises((SystemExit, KeyboardInterrupt)) as end:
        main()
    printed = json.loads(capsys.readouterr().out)
    found = {check["name"]: check["state"] for check in printed["checks"]}
    assert found["tokens are those sampled"] == "ok"
    assert found["the loss is the recipe's"] == "failed"
    assert found["rewards are on their calls"] == "not checked"
    assert printed["counts"]["failed"] == sum(state == "failed" for state in found.values())
    if isinstance(error, Exception):
        assert end.value.code == 1
        assert found["a bandit is learnt"] == found["a resumed run ends at the same bits"] == "failed"
        assert found["the best checkpoint is that of the best score"] == "not checked"
        assert not any("searchgym selfcheck" in check["said"] for check in printed["checks"])


def test_the_table_ends_with_counts_and_unchecked_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(module, "check_steps", lambda recipe, out, findings: findings.skip("a", "why"))
    monkeypatch.setattr(module, "check_bandit", lambda recipe, out, findings: findings.add("b", True, "seen"))
    monkeypatch.setattr(sys, "argv", ["searchgym", "selfcheck", "tiny-grpo"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    shown = capsys.readouterr().out
    assert shown.rstrip().endswith("1 ok, 0 FAILED, 3 not checked")
    assert shown.count("not checked") == 4  # three rows and the count


def test_log_probs_that_differ_in_the_bandit_fail_it_by_a_figure(monkeypatch, tmp_path):
    """The guard, whose message sends to the self-check, is off there."""
    rows = [{"validation/em": 0.0}, {"validation/em": 1.0, "learner/sampler_difference": 0.3}]
    recipe = load_recipe("tiny-grpo")
    assert module.bandit_recipe(recipe, 6).guard.bounds == {"learner/sampler_difference": None}
    assert small_recipe(recipe).guard.bounds == {"learner/sampler_difference": None}
    runs = SimpleNamespace(run=lambda: SimpleNamespace(rows=rows, checkpoint=tmp_path, best=None))
    monkeypatch.setattr(module, "_bandit", lambda *given, **options: runs)
    findings = Findings()
    module.check_bandit(recipe, tmp_path, findings)
    (check, *_) = findings.checks()
    assert (check.state, "0.3 nats apart" in check.detail) == ("failed", True)


def test_every_value_that_is_changed_is_named():
    recipe = load_recipe(
        "tiny-grpo", ["rollout.staleness=2", "loss.importance_cap=2", "optimizer.minibatches=8", "rollout.resample=3"]
    )
    said = module.changed(recipe, small_recipe(recipe))
    for change in (
        "rollout.staleness 2 -> 0", "optimizer.minibatches 8 -> 2", "rollout.resample 3 -> 2", "steps 20 -> 3",
        "validation.every 10 -> 3", "checkpoint.every 10 -> 0", "rollout.questions 16 -> 3",
    ):  # fmt: skip
        assert change in said
    assert "seed" not in said
    assert "critic" not in said  # there is none
    assert "learner.backend deepspeed (ranks 2, zero 3) -> torch" in module.changed(
        load_recipe("qwen2.5-7b-ppo", ["learner.backend.ranks=2"]), module.short_recipe(load_recipe("qwen2.5-7b-ppo"))
    )


# -- the best checkpoint ----------------------------------------------------------------------------------------------


def result(folder, best, kept=True):
    """A run of six steps with a best checkpoint, whose weights are kept."""
    for step in {6, best} if kept else {6}:
        (folder / f"step-{step:06d}").mkdir(parents=True)
        (folder / f"step-{step:06d}" / "model.safetensors").touch()
    (folder / "best").symlink_to(f"step-{best:06d}")
    return TrainResult(Progress(), [], folder / "step-000006", folder / f"step-{best:06d}")


@pytest.mark.parametrize(
    ("whole", "parts", "kept", "state"),
    [
        (3, 3, True, "ok"),
        (4, 4, True, "failed"),
        (3, 4, True, "failed"),
        (0, 0, True, "failed"),
        (3, 3, False, "failed"),
    ],
)
def test_the_best_checkpoint_is_the_first_of_the_best_score(whole, parts, kept, state, tmp_path):
    findings = Findings()
    made = result(tmp_path / "whole", whole, kept), result(tmp_path / "parts", parts)
    module._check_best(load_recipe("tiny-grpo").validation, *made, findings)
    assert states(findings) == {module.BEST: state}


@pytest.mark.parametrize(
    ("value", "why"), [("validation.metric=turns", "no score"), ("validation.every=0", "no validation")]
)
def test_a_best_checkpoint_that_cannot_be_made_up_is_not_checked(value, why, tmp_path):
    findings, run = Findings(), result(tmp_path, 3)
    module._check_best(load_recipe("tiny-grpo", [value]).validation, run, run, findings)
    (check,) = findings.checks()
    assert (check.state, why in check.detail) == ("not checked", True)


# -- sources of questions ---------------------------------------------------------------------------------------------

KINDS = ["one", "two", "three"]
ASKED = tuple(Question(f"q{n}", f"Which is {n}?", ("a",), kind=KINDS[n % 3]) for n in range(50))
MIXES = [
    "curriculum.by=kind", "steps=40",
    "curriculum.stages=[{mix: {one: 1}}, {mix: {one: 1, two: 1}}, {mix: {one: 1, two: 1, three: 1}}]",
]  # fmt: skip
BY_STEPS = ["curriculum.kind=steps", *MIXES]
STAGED = [
    "curriculum.kind=pass-rate", *MIXES, "curriculum.up=0.75", "curriculum.down=0.25", "curriculum.window=2",
]  # fmt: skip


def sourced(*overrides, recipe="tiny-grpo"):
    recipe = load_recipe(recipe, ["rollout.questions=8", *overrides])
    task = SimpleNamespace(questions=ASKED, rules=SimpleNamespace(top_k=3))
    findings = Findings()
    check_sources(findings, recipe, task, None, lambda *given: [])
    assert not any("Error" in check.detail for check in findings.checks())
    return states(findings)


@pytest.mark.parametrize("batch", [1, 7, 8, 25, 30, 50])
def test_a_list_that_is_drawn_by_epochs_passes(batch):
    assert sourced(f"rollout.questions={batch}") == {SET: "ok"}


@pytest.mark.parametrize("stages", [STAGED, BY_STEPS])
def test_a_curriculum_passes(stages):
    assert sourced(*stages) == {STAGES: "ok", MIXED: "ok"}


def test_demonstrations_are_a_set_too(tmp_path):
    (tmp_path / "shown.jsonl").touch()
    options = [f"method.demonstrations={tmp_path / 'shown.jsonl'}", "method.batch=8"]
    assert sourced(*options, recipe="smol-search") == {SET: "ok"}


def test_a_proposer_is_not_checked():
    assert sourced(recipe="tiny-selfplay") == {SET: "not checked"}


def test_noise_of_stages_is_not_checked_and_said():
    noisy = "curriculum.stages=[{mix: {one: 1}}, {noise: 0.1}]"
    assert list(sourced(*STAGED, noisy).values()) == ["ok", "ok", "not checked"]


def _halved(right, count, batch, step, seed):
    return right(count // 2, batch, step, seed)


def _without_the_last(right, count, batch, step, seed):
    return right(count - 1, batch, step, seed)


def _in_one_order(right, count, batch, step, seed):
    return right(count, batch, step % (count // batch), seed)


def _in_the_files_order(right, count, batch, step, seed):
    place = step % (count // batch)
    return list(range(place * batch, (place + 1) * batch))


def _with_repeats(right, count, batch, step, seed):
    return np.random.default_rng([seed, step]).permutation(count)[:batch].tolist()


@pytest.mark.parametrize(
    "fault",
    [_halved, _without_the_last, _in_one_order, _in_the_files_order, _with_repeats],
    ids=lambda own: own.__name__,
)
def test_questions_that_are_not_all_drawn_by_epochs(fault, monkeypatch):
    right = listed.batch_of
    monkeypatch.setattr(listed, "batch_of", lambda *given: fault(right, *given))
    assert sourced() == {SET: "failed"}


def _late(right, self, step):
    return right(self, max(step - 1, 0))


def _above_the_bound_only(right, self, rate):
    right(self, rate if rate < 1 else 0.74)


def _window_kept(right, self, rate):
    kept = [*self._window, rate][-self._options.window :]
    right(self, rate)
    self._window = self._window or kept


def _never_down(right, self, rate):
    stage = self._stage
    right(self, rate)
    self._stage = max(stage, self._stage)


def _mix_of_the_set(right, self, stage):
    return {value: float(len(own)) for value, own in self._groups.items()}


def _failed_retrievals_count(right, self, step, questions, episodes):
    return right(self, step, questions, [dataclasses.replace(e, stop_reason="answer") for e in episodes])


def _not_resumed(right, self, state):
    right(self, state | {"drawn": {}})


@pytest.mark.parametrize(
    ("name", "fault", "stages", "check"),
    [
        ("stage_at", _late, BY_STEPS, STAGES),
        ("_advance", _above_the_bound_only, STAGED, STAGES),
        ("_advance", _window_kept, STAGED, STAGES),
        ("_advance", _never_down, STAGED, STAGES),
        ("learn", _failed_retrievals_count, STAGED, STAGES),
        ("restore", _not_resumed, STAGED, STAGES),
        ("_weights", _mix_of_the_set, STAGED, MIXED),
    ],
)
def test_a_curriculum_with_a_fault(name, fault, stages, check, monkeypatch):
    right = getattr(Curriculum, name)
    monkeypatch.setattr(Curriculum, name, lambda self, *given: fault(right, self, *given))
    assert sourced(*stages)[check] == "failed"


# -- resampling -------------------------------------------------------------------------------------------------------


def resampled(*rounds, limit=2, without=()):
    """The state of the check for rounds of questions, of which those named have equal rewards in their group."""
    drawn = [[Question(name, "?", ("a",)) for name in own] for own in rounds]
    samples = [
        dataclasses.replace(sample, question_id=question.id, group_uid=question.id, episode_id=f"{question.id}#{n}")
        for own in drawn
        for question in own
        for n in range(2)
        for sample in samples_from(team([{"role": "searcher"}], reward=float(n and question.id not in without)))
    ]
    findings = Findings()
    step = SimpleNamespace(rounds=drawn, samples=samples, listed=range(100))
    check_resampled(findings, step, load_recipe("tiny-grpo", [f"rollout.resample={limit}"]))
    return states(findings).get(RESAMPLED, "nothing to replace")


def test_groups_without_signal_are_replaced_one_by_one():
    assert resampled("abc", without="") == "nothing to replace"
    assert resampled("abc", "d", without="c") == "ok"
    assert resampled("abc", "de", without="bc") == "ok"
    assert resampled("abc", "d", "e", without="cd") == "ok"
    assert resampled("abc", "d", without="cd", limit=1) == "ok"  # the rounds are used up
    for rounds, without in [
        (("abc",), "c"),  # not replaced
        (("abc", "de"), "c"),  # by too many
        (("abc", "d"), "cd"),  # a round too few
        (("abc", "d", "e"), "c"),  # a round too many
        (("abc", "a"), "c"),  # by one of the step
    ]:
        assert resampled(*rounds, without=without) == "failed"


# -- validation -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo():
    """The environment of a recipe's validation, and that of its training: more hits, and another reward."""
    card = find_env("searchgym/Demo-v0")
    return load_task(card, top_k=1, reward="f1"), load_task(card, top_k=3)


def chosen_of(task, count=6):
    """The questions that a validation draws."""
    return draw_subset(task.questions, count)


def validating(demo, task, questions, *, wanted=6, twice=None):
    """The check after a validation, or two, by an agent that searches once."""
    options = [
        f"validation.questions={wanted}",
        "validation.every=3",
        "steps=3",
        "validation.env_options={top_k: 1, reward: f1}",
    ]
    recipe = load_recipe("tiny-grpo", ["env=searchgym/Demo-v0", "env_options={}", *options])
    findings = Findings()
    check = ValidationCheck(recipe, {}, findings)
    for own in (questions, twice or questions):
        episodes = []
        asyncio.run(Engine(task, load_agent("single-search")).run(own, episodes.append))
        check.validated(own, sorted(episodes, key=lambda e: [q.id for q in own].index(e.question_id)), {})
    return check, findings, episodes


def test_validation_in_its_own_environment_passes(demo):
    right, _ = demo
    _, findings, _ = validating(demo, right, chosen_of(right))
    assert states(findings) == {VALIDATION: "ok", CORPUS: "ok", CHOICE: "ok"}


def test_validation_in_the_training_environment(demo):
    _, training = demo
    _, findings, _ = validating(demo, training, training.questions[:6])
    assert states(findings)[CORPUS] == "failed"  # three hits where there is one


def test_validation_by_another_reward(demo):
    right, training = demo
    mixed = dataclasses.replace(right, reward=lambda state: 0.125)
    found = states(validating(demo, mixed, chosen_of(right))[1])
    assert found == {VALIDATION: "failed", CORPUS: "ok", CHOICE: "ok"}
    assert training


def test_validation_on_the_first_questions_of_the_file(demo):
    right, _ = demo
    assert states(validating(demo, right, right.questions[:6])[1])[CHOICE] == "failed"


@pytest.mark.parametrize("count", [1, 7, 20, 50])
def test_a_choice_by_kinds_and_hashes_passes(count):
    asked = [dataclasses.replace(q, metadata={"hops": n % 2}) for n, q in enumerate(ASKED)]
    asked += [Question(f"r{n}", "?", ("a",)) for n in range(5)]
    findings, chosen = Findings(), draw_subset(asked, count)
    bookkeeping.check_choice(findings, chosen, asked)
    assert states(findings) == {CHOICE: "ok"}
    swapped = [next(q for q in asked if q not in chosen and q.kind == chosen[0].kind), *chosen[1:]]
    bookkeeping.check_choice(findings, swapped, asked)
    assert states(findings) == {CHOICE: "failed"}


def test_questions_with_twins_are_not_checked():
    twins = [Question("q", "?", ("a",)), Question("q#unanswerable", "?", ("a",))]
    findings = Findings()
    bookkeeping.check_choice(findings, twins, twins)
    assert states(findings) == {CHOICE: "not checked"}


def test_validation_on_other_questions(demo):
    right, _ = demo
    foreign = tuple(dataclasses.replace(question, id=f"x{question.id}") for question in chosen_of(right))
    assert states(validating(demo, right, foreign)[1])[VALIDATION] == "failed"
    assert states(validating(demo, right, right.questions[:5])[1])[VALIDATION] == "failed"  # too few
    assert states(validating(demo, right, right.questions[:6], twice=chosen_of(right)[::-1])[1])[VALIDATION] == "failed"


def rows_of(episodes, **changes):
    means = {f"validation/{name}": float(np.mean([e.scores[name] for e in episodes])) for name in episodes[0].scores}
    return means | {"validation/reward": float(np.mean([e.reward for e in episodes]))} | changes


@pytest.mark.parametrize(
    ("changes", "best", "state"),
    [
        ({}, 0, "ok"),
        ({}, 3, "failed"),
        (None, 0, "failed"),  # the last validation is missing
        ({"validation/em": 0.33}, 0, "failed"),
        ({"validation/reward": 2.0}, 0, "failed"),
    ],
)
def test_validations_metrics_are_the_means_of_its_episodes(changes, best, state, demo):
    right, _ = demo
    check, findings, episodes = validating(demo, right, chosen_of(right))
    last = {} if changes is None else rows_of(episodes, **changes)
    rows = [{"step": 0} | rows_of(episodes), {"step": 1}, {"step": 3} | last]
    check.reported(TrainResult(Progress(best_step=best), rows, Path(), None))
    assert states(findings)[REPORTED] == state


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([(0.0, 0.0, 0.1)] * 3, "ok"),
        ([(0.0, 0.1, 0.0), (0.4, 0.3, 0.0)], "failed"),  # drawn at the recipe's temperature
        ([(0.0, 0.0, 0.1), (0.4, 0.0, 0.3)], "failed"),  # drawn at 1
        ([(0.4, 0.5, 0.7)], None),  # by other weights
        ([], None),
    ],
)
def test_tokens_of_validation_are_the_likeliest(rows, state):
    findings = Findings()
    keys = {"policy": SimpleNamespace(likeliest=lambda exchanges: rows)}
    ValidationCheck(load_recipe("tiny-grpo"), keys, findings)._greedy({})
    assert states(findings).get(GREEDY) == state
    assert states(findings).get(PRESENT) == ("failed" if rows and state is None else "ok" if rows else None)


# -- bookkeeping ------------------------------------------------------------------------------------------------------


def requests_of(temperature=1.0, top_p=1.0, max_tokens=8, reply=3):
    sampling = Sampling(max_tokens, temperature, top_p)
    return [(SampleRequest(np.ones(1, np.int32), sampling), Sampled(np.ones(reply), np.ones(reply), "eos"))]


@pytest.mark.parametrize(
    ("changes", "greedy", "state"),
    [
        ({}, False, "ok"),
        ({"temperature": 0.0}, True, "ok"),
        ({"temperature": 0.0}, False, "failed"),
        ({}, True, "failed"),
        ({"top_p": 0.9}, False, "failed"),
        ({"max_tokens": 9}, False, "failed"),
        ({"reply": 9}, False, "failed"),
    ],
)
def test_settings_of_requests(changes, greedy, state):
    findings, recipe = Findings(), load_recipe("tiny-grpo", ["rollout.max_tokens=8"])
    bookkeeping.check_settings(findings, [], recipe, greedy=greedy)
    bookkeeping.check_settings(findings, requests_of(**changes), recipe, greedy=greedy)
    assert states(findings) == {SETTINGS: state}


@pytest.mark.parametrize(("version", "age", "state"), [(4, 0, "ok"), (3, 0, "failed"), (4, 1, "failed")])
def test_versions_of_samples(version, age, state):
    samples = [SimpleNamespace(model_key="policy", policy_version=version), SimpleNamespace(model_key="other")]
    findings = Findings()
    bookkeeping.check_versions(findings, samples, {"policy": 4}, {"rollout/staleness": float(age)})
    assert states(findings) == {VERSIONS: state}


def test_metrics_of_a_step_are_those_of_its_episodes():
    """By the trainer's code and by the second formulas; then one that is off, one that is missing, and a lost step."""
    roles = [{"role": "searcher", "legal": False}, {"role": "searcher"}]
    episodes = [team(roles[n % 2 :], reward=n / 3) for n in range(5)]
    for n, episode in enumerate(episodes):
        episode.scores, episode.turns, episode.stop_reason = {"em": n % 2}, n, ["answer", "context", "turns"][n % 3]
    expected = bookkeeping.step_metrics(episodes)
    row = {f"rollout/{name}": value for name, value in rollout_metrics(episodes).items()}
    row |= {"step": 1, "rollout/tokens": float(generated_tokens(episodes))}
    assert expected["rollout/reward"] == pytest.approx(2 / 3) and expected["rollout/illegal"] == 3 / 8
    for rows, state in [
        ([row], "ok"),
        ([row | {"rollout/reward": 0.6}], "failed"),
        ([{name: row[name] for name in row if name != "rollout/em"}], "failed"),
        ([row | {"step": 2}], "failed"),
    ]:
        findings = Findings()
        bookkeeping.check_metrics(findings, rows, {1: expected})
        assert states(findings) == {METRICS: state}


def _in_file_order(right, self, step, round, count, used):
    return [q for q in self._questions if q.id not in {other.id for other in used}][:count]


def _used_again(right, self, step, round, count, used):
    return list(used)[:count]


def _too_few(right, self, step, round, count, used):
    return right(self, step, round, count, used)[1:]


def _of_any_stage(right, self, step, round, count, used):
    return [q for group in self._groups.values() for q in group if q not in used][::-1][:count]


@pytest.mark.parametrize(
    ("source", "fault", "more"),
    [
        (listed.ListedQuestions, _in_file_order, []),
        (listed.ListedQuestions, _used_again, []),
        (listed.ListedQuestions, _too_few, []),
        (Curriculum, _used_again, BY_STEPS),
        (Curriculum, _of_any_stage, STAGED),
    ],
)
def test_further_questions_of_a_step(source, fault, more, monkeypatch):
    more = [*more, "rollout.resample=2"]
    assert sourced(*more)[FURTHER] == "ok"
    right = source.more
    monkeypatch.setattr(source, "more", lambda self, *given: fault(right, self, *given))
    assert sourced(*more)[FURTHER] == "failed"

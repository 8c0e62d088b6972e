import dataclasses
import json
import os
import signal
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_models import tiny_tokenizer
from support import small_files
from toy_training import QUESTIONS, BanditRollout, exact, toy_model, toy_recipe, toy_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from searchgym.corpora.files import iter_jsonl
from searchgym.errors import DataError, GuardError, RunExistsError, ScoringError, TrainingError, UsageError
from searchgym.records import Question
from searchgym.rollout.storage import read_episodes
from searchgym.threads import interrupt_held_back
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.curriculum.listed import batch_of
from searchgym.train.loop.checkpoint import list_checkpoints, save_checkpoint
from searchgym.train.loop.folder import Rows, read_advantages
from searchgym.train.recipe.load import read_recipe


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def rows(out):
    return exact([row for _, row in iter_jsonl(out / "metrics.jsonl")])


class Interrupted(BanditRollout):
    """Raises in the training rollout of one step, as Ctrl-C would."""

    at = 4

    def __call__(self, questions, attempts, step, greedy):
        if step == self.at and not greedy:
            raise KeyboardInterrupt
        return super().__call__(questions, attempts, step, greedy)


def with_rollout(kind, **changes):
    model = toy_model()
    rollout = kind(model, **changes)
    return {"model": model, "rollout": rollout, "publish": rollout.publish}


# -- learning ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_bandit_is_learnt_and_the_folder_holds_everything(tmp_path):
    out = tmp_path / "run"
    recipe = toy_recipe(steps=20, log={"tensorboard": True, "curve": True})
    reported = []
    result = toy_trainer(out, recipe, report=reported.append).run()
    found = rows(out)
    assert found[0]["validation/em"] <= 0.25
    assert found[-1]["validation/em"] == 1.0
    assert np.mean([row["rollout/reward"] for row in found[16:]]) > 0.8
    assert [row["step"] for row in found] == list(range(21))
    assert exact(result.rows) == exact(reported) == found
    assert all("validation/em" in row for row in found[::2])
    assert not any("validation/em" in row for row in found[1::2])
    assert {row.get("retokenisation_mismatch", 0) for row in found} == {0}
    assert max(row.get("learner/max_sampler_difference", 0) for row in found) < 1e-5
    assert {row.get("rollout/staleness", 0) for row in found} == {0}
    assert read_recipe(out / "recipe.yaml") == recipe
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((out / "tensorboard").iterdir())
    episodes = list(read_episodes(out / "episodes.jsonl"))
    assert len(episodes) == 20 * 4 * 8
    assert sum(len(call.text) for e in episodes for call in e.calls) == 0
    advantages = read_advantages(out / "episodes.advantages.jsonl")
    groups = {}
    for episode in episodes:
        groups.setdefault(episode.group_uid, []).append(episode)
    for group in groups.values():
        rewards = np.array([e.reward for e in group])
        signal = rewards.std() > 0
        for episode, reward in zip(group, rewards, strict=True):
            own = advantages.get(f"{episode.id}/0")
            assert (own is not None) == signal
            if own is not None:
                assert own == pytest.approx([(reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)], rel=1e-6)
    assert result.progress.generated_tokens == 20 * 4 * 8 == found[-1]["generated_tokens"]


@pytest.mark.slow
def test_checkpoints_load_by_name_and_only_the_last_and_the_best_are_kept(tmp_path):
    trainer = toy_trainer(tmp_path / "run", toy_recipe(steps=20))
    result = trainer.run()
    folder = tmp_path / "run" / "checkpoints"
    best = result.progress.best_step
    assert best is not None and best < 20
    scores = {row["step"]: row["validation/em"] for row in result.rows if "validation/em" in row}
    assert best == min(step for step, score in scores.items() if score == max(scores.values()))
    assert list(list_checkpoints(folder)) == [best, 20]
    assert sorted(p.name for p in folder.iterdir()) == ["best", "last", f"step-{best:06d}", "step-000020"]
    assert equal(weights(folder / "last"), trainer.learner.weights())
    assert not equal(weights(folder / "best"), trainer.learner.weights())
    assert (result.checkpoint, result.best) == (folder / "step-000020", folder / f"step-{best:06d}")
    loaded = AutoTokenizer.from_pretrained(folder / "last")
    assert loaded.encode("Who founded Beta?") == trainer.tokenizer.encode("Who founded Beta?")


@pytest.mark.slow
def test_rejection_sampling_learns_from_right_answers_only(tmp_path):
    recipe = toy_recipe(method="rejection", steps=40)
    result = toy_trainer(tmp_path / "run", recipe).run()
    assert result.rows[-1]["validation/em"] == 1.0
    for row in result.rows[1:]:
        trained = row.get("learner/tokens_trained", 0)
        assert trained == round(row["rollout/em"] * 32) == round(row["rejection/kept"] * 32)


@pytest.mark.slow_cases
@pytest.mark.parametrize("estimator", ["rloo", "reinforce-pp", "reinforce-pp-baseline", "stratified", "tree"])
def test_every_estimator_learns_the_bandit(estimator, tmp_path):
    recipe = toy_recipe(steps=25, advantage={"estimator": estimator}, validation={"every": 0}, checkpoint={"every": 0})
    found = toy_trainer(tmp_path / "run", recipe).run().rows[1:]
    assert np.mean([row["rollout/reward"] for row in found[:3]]) < 0.4
    assert np.mean([row["rollout/reward"] for row in found[-4:]]) > 0.8
    assert {row["groups/groups"] for row in found} == {1 if estimator == "reinforce-pp" else 4}
    assert ("groups/strata" in found[0]) == (estimator == "stratified")
    assert ("groups/nodes" in found[0]) == (estimator == "tree")


def test_groups_without_signal_are_replaced_by_other_questions(tmp_path):
    class Counting(BanditRollout):
        def __call__(self, questions, attempts, step, greedy):
            asked.append([question.id for question in questions])
            return super().__call__(questions, attempts, step, greedy)

        def episode(self, question, attempt, step, arm, logp):
            self.reward = lambda question, arm: attempt % 2 if question.id in mixed else 1.0
            return super().episode(question, attempt, step, arm, logp)

    rollout = {"questions": 2, "resample": 2}
    base = {"steps": 1, "validation": {"every": 0}, "advantage": {"estimator": {"kind": "grpo", "std": "none"}}}
    asked, mixed = [], {"q0", "q1", "q2", "q3"}
    (row,) = (
        toy_trainer(tmp_path / "full", toy_recipe(**base, rollout=rollout), **with_rollout(Counting)).run().rows[1:]
    )
    assert (len(asked), row["rollout/resample_rounds"], row["rollout/groups_missing"]) == (1, 0, 0)
    first = asked[0]
    mixed = set(first[:1])  # nothing that could come in has signal
    asked = []
    result = toy_trainer(tmp_path / "one", toy_recipe(**base, rollout=rollout), **with_rollout(Counting)).run()
    row = result.rows[1]
    assert [len(ids) for ids in asked] == [2, 1, 1]
    assert sorted(id for ids in asked for id in ids) == ["q0", "q1", "q2", "q3"]
    assert (row["rollout/resample_rounds"], row["rollout/resampled"], row["rollout/groups_missing"]) == (2, 2, 1)
    assert (row["groups/groups"], row["groups/zero_variance"], row["learner/tokens_trained"]) == (4, 3, 8)
    assert result.progress.generated_tokens == row["rollout/tokens"] == 32
    again, asked = asked, []
    toy_trainer(tmp_path / "two", toy_recipe(**base, rollout=rollout), **with_rollout(Counting)).run()
    assert asked == again
    mixed = {"q0", "q1", "q2", "q3"} - set(first[1:])  # the first round brings what is missing
    asked = []
    row = toy_trainer(tmp_path / "three", toy_recipe(**base, rollout=rollout), **with_rollout(Counting)).run().rows[1]
    assert [len(ids) for ids in asked] == [2, 1]
    assert (row["rollout/groups_missing"], row["learner/tokens_trained"]) == (0, 16)


def test_overlong_episodes_leave_the_batch_and_are_counted(tmp_path):
    class Cut(BanditRollout):
        def __call__(self, questions, attempts, step, greedy):
            episodes = super().__call__(questions, attempts, step, greedy)
            for number, episode in enumerate(episodes):
                episode.reward = float(number % 2)
                if number < 3:
                    episode.stop_reason, episode.answer = "turns", None
                    episode.calls = [dataclasses.replace(episode.calls[0], cut=number < 2)]
                if number == 3:
                    episode.stop_reason = "context"
            return episodes

    recipe = toy_recipe(
        steps=1,
        validation={"every": 0},
        advantage={"drop_overlong": True, "estimator": {"kind": "grpo", "std": "none"}},
    )
    row = toy_trainer(tmp_path / "run", recipe, **with_rollout(Cut)).run().rows[1]
    assert row["rollout/overlong"] == pytest.approx(3 / 32)
    assert row["learner/tokens_trained"] == 29
    advantages = read_advantages(tmp_path / "run/episodes.advantages.jsonl")
    assert {abs(float(value[0])) for value in advantages.values()} == {0.5}  # compared with all eight
    assert row["advantage/mean"] == pytest.approx((14 - 15) * 0.5 / 29)
    assert (row["advantage/min"], row["advantage/max"]) == (-0.5, 0.5)
    assert row["advantage/positive"] == pytest.approx(14 / 29)


@pytest.mark.slow
def test_the_warm_start_learns_demonstrations(tmp_path):
    rollout = BanditRollout(toy_model())
    episodes = [rollout.episode(q, i, 0, int(q.answers[0]), 0.0) for q in QUESTIONS for i in range(3)]
    demonstrations = [sample for e in episodes for sample in samples_from(e, "demonstration")]
    recipe = toy_recipe(method={"kind": "supervised", "demonstrations": "toy", "batch": 4}, steps=12)
    result = toy_trainer(tmp_path / "run", recipe, demonstrations=demonstrations).run()
    assert result.rows[-1]["validation/em"] == 1.0
    assert result.rows[-1]["learner/loss"] < 0.3 < result.rows[1]["learner/loss"]
    assert not (tmp_path / "run" / "episodes.jsonl").read_bytes()


def test_rows_of_metrics_take_little_memory():
    rows, kept = [{"step": float(step), "loss": step / 7} for step in range(3)], Rows()
    for row in rows:
        kept.append(row)
    kept.append({"step": 3.0, "score": 0.5})
    assert [*kept][:3] == rows == kept[:3] and kept[-1] == {"step": 3.0, "score": 0.5}
    tracemalloc.start()
    for step in range(1000):
        kept.append({f"metric/{n}": step + n / 7 for n in range(40)})
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(kept) == 1004 and used < 500 * 1000  # as dictionaries 4,100 bytes each


def test_the_token_budget_ends_a_run(tmp_path):
    result = toy_trainer(tmp_path / "run", toy_recipe(steps=20, max_generated_tokens=70)).run()
    assert (result.progress.step, result.progress.generated_tokens) == (3, 96)
    assert "validation/em" in result.rows[-1]
    assert result.checkpoint.name == "step-000003"


@pytest.mark.slow
def test_the_learners_token_budget_ends_a_run(tmp_path):
    """Groups without signal are not read, so the budget is not the sampler's; it goes on counting after a resume."""
    recipe = toy_recipe(steps=20, max_read_tokens=250)
    result = toy_trainer(tmp_path / "run", recipe).run()
    read = [row.get("learner/tokens_read", 0.0) for row in result.rows]
    assert result.progress.step < 20 and sum(read[:-1]) < 250 <= sum(read) == result.progress.read_tokens
    assert [row["read_tokens"] for row in result.rows] == [sum(read[: i + 1]) for i in range(len(read))]
    again = toy_trainer(tmp_path / "run", recipe, resume=True).run()
    assert again.progress == result.progress


# -- exactness -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_runs_of_twenty_steps_are_equal_bit_for_bit(tmp_path):
    recipe = toy_recipe(
        steps=20, loss={"kl_coef": 0.01, "entropy_coef": 0.001}, optimizer={"minibatches": 2, "epochs": 2}
    )
    for name in "ab":
        toy_trainer(tmp_path / name, recipe).run()
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert equal(weights(tmp_path / "a/checkpoints/last"), weights(tmp_path / "b/checkpoints/last"))
    for name in ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl", "recipe.yaml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.slow_cases
@pytest.mark.parametrize("at", [0, 4, 5, 7])
def test_n_steps_and_a_resume_equal_an_uninterrupted_run(tmp_path, at):
    recipe = toy_recipe(loss={"kl_coef": 0.01}, optimizer={"schedule": "cosine", "warmup_steps": 2, "minibatches": 2})
    whole = toy_trainer(tmp_path / "whole", recipe).run()
    given = with_rollout(Interrupted)
    given["rollout"].at = at
    with pytest.raises(KeyboardInterrupt):
        toy_trainer(tmp_path / "parts", recipe, **given).run()
    assert (tmp_path / f"parts/checkpoints/step-{at:06d}").is_dir()
    resumed = toy_trainer(tmp_path / "parts", recipe, resume=True).run()
    assert resumed.progress == whole.progress
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert equal(weights(resumed.checkpoint), weights(whole.checkpoint))
    assert equal(weights(resumed.best), weights(whole.best))
    for name in ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_a_resume_is_exact_with_every_part_in_use(tmp_path):
    recipe = toy_recipe(
        steps=6,
        rollout={"questions": 2, "resample": 1},
        advantage={"estimator": {"kind": "stratified", "alpha": 0.7}, "drop_overlong": True},
        loss={
            "dual_clip": 2.0,
            "ratio": "sequence",
            "importance_cap": 2.0,
            "kl_coef": 0.01,
            "kl_in": "reward",
            "kl_estimator": "k1",
            "llds_coef": 0.2,
            "reduction": "constant",
            "constant_length": 2,
        },
        optimizer={"minibatches": 2},
    )
    whole = toy_trainer(tmp_path / "whole", recipe).run()
    given = with_rollout(Interrupted)
    given["rollout"].at = 3
    with pytest.raises(KeyboardInterrupt):
        toy_trainer(tmp_path / "parts", recipe, **given).run()
    resumed = toy_trainer(tmp_path / "parts", recipe, resume=True).run()
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert equal(weights(resumed.checkpoint), weights(whole.checkpoint))
    assert {"learner/llds", "learner/importance", "learner/ref_kl", "groups/strata"} <= set(whole.rows[-1])


@pytest.mark.slow
def test_kl_in_the_reward_changes_the_advantages_by_the_policy_s_distance(tmp_path):
    recipe = toy_recipe(
        steps=4,
        validation={"every": 0},
        advantage={"estimator": {"kind": "grpo", "std": "none"}},
        loss={"kl_coef": 0.5, "kl_in": "reward", "kl_estimator": "k1"},
    )
    trainer = toy_trainer(tmp_path / "run", recipe)
    trainer.run()
    reference = trainer.learner.policy.reference
    episodes = [e for e in read_episodes(tmp_path / "run/episodes.jsonl") if e.group_uid.startswith("3/")]
    advantages = read_advantages(tmp_path / "run/episodes.advantages.jsonl")
    groups = {}
    for episode in episodes:
        (sample,) = samples_from(episode)
        with torch.no_grad():
            logits = reference(torch.tensor(sample.ids[None].astype(np.int64))).logits[0, 0]
        k1 = sample.sampler_logp[1] - torch.log_softmax(logits, -1)[int(sample.ids[1])].item()
        groups.setdefault(episode.group_uid, []).append((episode, episode.reward - 0.5 * k1))
    checked = 0
    for group in groups.values():
        mean = np.mean([value for _, value in group])
        for episode, value in group:
            if f"{episode.id}/0" in advantages:
                assert advantages[f"{episode.id}/0"][0] == pytest.approx(value - mean, abs=1e-5)
                checked += 1
    assert checked >= 8


def test_the_kl_term_refers_to_the_weights_of_step_zero(tmp_path):
    recipe = toy_recipe(steps=3, loss={"kl_coef": 1e-6}, validation={"every": 0}, log={"episodes_every": 0})
    trainer = toy_trainer(tmp_path / "run", recipe)
    kl = [row["learner/ref_kl"] for row in trainer.run().rows[1:]]
    assert kl[0] == pytest.approx(0, abs=1e-9)
    assert kl[2] > kl[1] > 1e-4
    assert equal(trainer.learner.policy.reference.state_dict(), toy_model().state_dict())


@pytest.mark.slow
def test_a_resume_of_a_finished_run_changes_nothing(tmp_path):
    first = toy_trainer(tmp_path / "run").run()
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.suffix != ".png"}
    again = toy_trainer(tmp_path / "run", resume=True).run()
    assert again == first
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.suffix != ".png"}


@pytest.mark.slow
def test_a_resume_cuts_off_what_came_later_and_half_written_folders(tmp_path):
    toy_trainer(tmp_path / "whole").run()
    with pytest.raises(KeyboardInterrupt):
        toy_trainer(tmp_path / "parts", **with_rollout(Interrupted)).run()
    for name in ("metrics.jsonl", "episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl"):
        with (tmp_path / "parts" / name).open("ab") as file:
            file.write(b'{"half": ')
    rest = tmp_path / "parts/checkpoints/.step-000006.0badf00d.part"
    rest.mkdir()
    (rest / "model.safetensors").write_bytes(b"half")
    toy_trainer(tmp_path / "parts", resume=True).run()
    assert not rest.exists()
    for name in ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_items_of_a_step_are_distinct_and_every_epoch_is_a_new_order():
    steps = [batch_of(10, 3, step, seed=1) for step in range(30)]
    for epoch in range(10):
        seen = [i for step in steps[3 * epoch : 3 * epoch + 3] for i in step]
        assert len(seen) == len(set(seen)) == 9
    assert steps[:3] != steps[3:6]
    assert steps[7] == batch_of(10, 3, 7, seed=1) != batch_of(10, 3, 7, seed=2)


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_while_weights_change_waits_for_the_step(tmp_path):
    given = with_rollout(BanditRollout)

    def publish(version):
        if version == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        toy_trainer(tmp_path / "run", **(given | {"publish": publish})).run()
    assert [row["step"] for row in rows(tmp_path / "run")] == [0, 1, 2, 3]
    assert max(list_checkpoints(tmp_path / "run/checkpoints")) == 3
    assert equal(weights(tmp_path / "run/checkpoints/last"), given["model"].state_dict())


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(tmp_path):
    given = with_rollout(BanditRollout)

    def publish(version):
        given["rollout"].publish(version)
        if version == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        toy_trainer(tmp_path / "run", **(given | {"publish": publish})).run()
    assert max(list_checkpoints(tmp_path / "run/checkpoints")) == 2
    toy_trainer(tmp_path / "run", resume=True).run()
    toy_trainer(tmp_path / "whole").run()
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_an_interrupt_held_back_is_raised_at_the_end():
    done = []
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupt_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the block")
    assert done == ["the block"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_held_back_within_another_waits_for_the_outer_block():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_held_back():
        with interrupt_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the inner one")
        done.append("the outer one")
    assert done == ["the inner one", "the outer one"]


def test_a_second_interrupt_is_raised_at_once():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        with interrupt_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("not reached")
    assert done == []
    with pytest.raises(KeyboardInterrupt), interrupt_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("it holds again")
    assert done


def test_a_program_that_ignores_interrupts_goes_on_ignoring_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_held_back():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


# -- bad input -----------------------------------------------------------------------------------------------------


def test_all_rewards_equal_changes_no_weight_and_is_counted(tmp_path):
    model = toy_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rollout = BanditRollout(model, reward=lambda question, arm: 0.3)
    result = toy_trainer(tmp_path / "run", toy_recipe(steps=2), model=model, rollout=rollout).run()
    assert [row["groups/zero_variance"] for row in result.rows[1:]] == [4, 4]
    assert [row["learner/updates"] for row in result.rows[1:]] == [0, 0]
    assert equal(model.state_dict(), before)


def test_a_group_of_one_is_counted_and_learns_nothing(tmp_path):
    class Alone(BanditRollout):
        def __call__(self, questions, attempts, step, greedy):
            episodes = super().__call__(questions, attempts, step, greedy)
            return [dataclasses.replace(e, group_uid=e.id) for e in episodes]

    result = toy_trainer(tmp_path / "run", toy_recipe(steps=1), **with_rollout(Alone)).run()
    assert (result.rows[1]["groups/groups"], result.rows[1]["groups/small"]) == (32, 32)
    assert result.rows[1]["learner/updates"] == 0


def test_episodes_without_model_tokens_or_with_failed_searches_stay_out(tmp_path):
    class Broken(BanditRollout):
        def __call__(self, questions, attempts, step, greedy):
            episodes = super().__call__(questions, attempts, step, greedy)
            if not greedy:
                episodes[0] = dataclasses.replace(episodes[0], contexts=[], calls=[])
                episodes[1] = dataclasses.replace(episodes[1], stop_reason="retriever_error", error="down")
            return episodes

    recipe = toy_recipe(steps=1, advantage={"drop_zero_variance": False})
    result = toy_trainer(tmp_path / "run", recipe, **with_rollout(Broken)).run()
    assert result.rows[1]["rollout/without_tokens"] == 2
    assert result.rows[1]["rollout/retriever_error"] == pytest.approx(1 / 32)
    assert result.rows[1]["learner/tokens_trained"] == 30


def test_a_planted_retokenisation_shows_in_the_metrics(tmp_path, monkeypatch):
    def retokenised(episode, **given):
        own = samples_from(episode, **given)
        for sample in own:
            sample.ids[1] = (sample.ids[1] + 1) % 10
        return own

    monkeypatch.setattr("searchgym.train.loop.collect.samples_from", retokenised)
    with pytest.raises(GuardError, match="sampler and learner compute different policies"):
        toy_trainer(tmp_path / "stopped", toy_recipe(steps=1)).run()
    recipe = toy_recipe(steps=1, guard={"bounds": {"learner/sampler_difference": None}})
    result = toy_trainer(tmp_path / "run", recipe).run()
    assert result.rows[1]["retokenisation_mismatch"] == 32


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    given = with_rollout(BanditRollout)

    def publish(version):
        if version == 3:
            with torch.no_grad():
                given["model"].model.norm.weight[0] = torch.nan

    class Blind(BanditRollout):  # goes on with the weights it had
        def __call__(self, questions, attempts, step, greedy):
            return BanditRollout(toy_model())(questions, attempts, step, greedy)

    rollout = Blind(given["model"])
    with pytest.raises(TrainingError, match=r"the loss is nan on .*; last good checkpoint: .*step-000002$"):
        toy_trainer(tmp_path / "run", model=given["model"], rollout=rollout, publish=publish).run()
    for value in weights(tmp_path / "run/checkpoints/last").values():
        assert torch.isfinite(value).all()


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    given = with_rollout(BanditRollout)

    def publish(version):
        if version == 1:
            with torch.no_grad():
                given["model"].model.norm.weight[0] = torch.inf

    recipe = toy_recipe(validation={"every": 0}, checkpoint={"every": 1})
    with pytest.raises(TrainingError, match="holds a weight that is not finite; last good checkpoint: none"):
        toy_trainer(tmp_path / "run", recipe, **(given | {"publish": publish})).run()
    assert not list_checkpoints(tmp_path / "run/checkpoints")


@pytest.mark.slow
def test_a_folder_with_a_run_is_refused(tmp_path):
    toy_trainer(tmp_path / "run").run()
    with pytest.raises(RunExistsError, match="run holds a run: continue it with --resume, or choose another folder"):
        toy_trainer(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(RunExistsError, match="other holds files of something else: choose another folder"):
        toy_trainer(tmp_path / "other")
    with pytest.raises(UsageError, match="is a file: the output must be a folder"):
        toy_trainer(tmp_path / "other" / "notes.txt")
    with pytest.raises(UsageError, match="holds no run to resume"):
        toy_trainer(tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
def test_a_folder_in_use_is_refused(tmp_path):
    first = toy_trainer(tmp_path / "run")
    with pytest.raises(RunExistsError, match="run is in use by another process"):
        toy_trainer(tmp_path / "run", resume=True)
    first.run()


@pytest.mark.slow_cases
@pytest.mark.parametrize("file", ["optimizer.pt", "model.safetensors"])
def test_a_damaged_checkpoint_is_named(tmp_path, file):
    toy_trainer(tmp_path / "run").run()
    (tmp_path / "run/checkpoints/step-000008" / file).write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"step-000008: not a checkpoint of this model"):
        toy_trainer(tmp_path / "run", resume=True).run()


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_checkpoint(tmp_path):
    """Its library raises a plain exception."""
    learner = SimpleNamespace(save=lambda folder: None)
    with small_files(3000), pytest.raises(TrainingError, match=r"step-000001: the checkpoint cannot be written .*MiB"):
        save_checkpoint(tmp_path / "step-000001", learner, tiny_tokenizer(), {})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_leaves_the_ones_before(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    given = with_rollout(BanditRollout)

    def publish(version):
        given["rollout"].publish(version)
        if version == 4:
            monkeypatch.setattr(torch, "save", full)

    with pytest.raises(TrainingError, match=r"step-000004: .* cannot be written .*No space left.*; \d+ MiB free"):
        toy_trainer(tmp_path / "run", **(given | {"publish": publish})).run()
    monkeypatch.undo()
    assert max(list_checkpoints(tmp_path / "run/checkpoints")) == 2
    assert not list((tmp_path / "run/checkpoints").glob(".*.part"))
    toy_trainer(tmp_path / "run", resume=True).run()
    toy_trainer(tmp_path / "whole").run()
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "recipe", "message"),
    [
        ({"questions": QUESTIONS[:3]}, {}, "3 questions for 4 per step: add more, or make the step smaller"),
        ({"rollout": None}, {}, "needs a rollout"),
        (
            {},
            {"method": {"kind": "supervised", "demonstrations": "toy"}},
            "0 demonstrations for 64 per step",
        ),
    ],
)
def test_a_run_that_lacks_something_is_refused(tmp_path, changes, recipe, message):
    with pytest.raises(UsageError, match=message):
        toy_trainer(tmp_path / "run", toy_recipe(**recipe), **changes)
    assert not (tmp_path / "run").exists()


def test_validation_asks_each_kind_in_its_proportion(tmp_path):
    """A file that stands kind by kind: 20 of 60, 30 and 10 are 12, 6 and 2, with every seed of the recipe the same."""
    kinds = ["chain"] * 60 + ["cloze"] * 30 + ["sentence"] * 10
    whole = [Question(f"q{n}", "Who?", ("x",), kind=kind) for n, kind in enumerate(kinds)]
    first, second = (
        toy_trainer(tmp_path / str(seed), toy_recipe(validation={"questions": 20}, seed=seed), validation=whole)
        for seed in (0, 7)
    )
    with first.folder, second.folder:  # neither is run: this closes them
        assert Counter(q.kind for q in first.validation) == {"chain": 12, "cloze": 6, "sentence": 2}
        assert first.validation == second.validation


@pytest.mark.slow
def test_a_resumed_run_validates_on_the_questions_of_its_checkpoint(tmp_path, capsys):
    recipe = toy_recipe(steps=2, validation={"questions": 2})
    made = toy_trainer(tmp_path / "run", recipe)
    result = made.run()
    drawn = [question.id for question in made.validation]
    assert len(drawn) == 2 and drawn != [question.id for question in QUESTIONS[:2]]
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"training: {len(QUESTIONS)} questions: no kind {len(QUESTIONS)}",
        "validation: 2 questions: no kind 2",
    ]
    record = result.checkpoint / "trainer.json"
    state = json.loads(record.read_text())
    assert state["validation"] == drawn
    record.write_text(json.dumps(state | {"validation": drawn[::-1]}))
    again = toy_trainer(tmp_path / "run", recipe, resume=True)
    again.run()
    assert [question.id for question in again.validation] == drawn[::-1]


def test_a_validation_that_misses_a_question_is_refused(tmp_path):
    class Forgetful(BanditRollout):
        def __call__(self, questions, attempts, step, greedy):
            episodes = super().__call__(questions, attempts, step, greedy)
            return episodes[:-1] if greedy else episodes

    with pytest.raises(ScoringError, match="4 questions, 3 validation episodes; mismatched: q3"):
        toy_trainer(tmp_path / "run", **with_rollout(Forgetful)).run()


def test_a_rollout_that_misses_an_attempt_is_refused(tmp_path):
    class Forgetful(BanditRollout):
        def __call__(self, questions, attempts, step, greedy):
            episodes = super().__call__(questions, attempts, step, greedy)
            return episodes if greedy else episodes[:-1]

    with pytest.raises(UsageError, match="returned 31 episodes for 8 attempts at 4 questions"):
        toy_trainer(tmp_path / "run", **with_rollout(Forgetful)).run()


def test_a_metric_that_no_episode_has_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"validation\.metric is 'accuracy', the episodes have "):
        toy_trainer(tmp_path / "run", toy_recipe(validation={"metric": "accuracy"})).run()


def test_weights_and_biases_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UsageError, match="pip install wandb"):
        toy_trainer(tmp_path / "run", toy_recipe(log={"wandb": "project"})).run()


def test_weights_and_biases_gets_every_row(tmp_path, monkeypatch):
    logged = []

    class Fake:
        @staticmethod
        def init(**options):
            logged.append(options)
            return Fake

        @staticmethod
        def log(row, step):
            logged.append((step, row))

        @staticmethod
        def finish():
            logged.append("finished")

    monkeypatch.setitem(__import__("sys").modules, "wandb", Fake)
    result = toy_trainer(tmp_path / "run", toy_recipe(steps=2, log={"wandb": "project"})).run()
    first, *middle, last = logged
    assert (first["project"], first["config"]["steps"], first["resume"], last) == ("project", 2, "allow", "finished")
    assert middle == [(row["step"], {k: v for k, v in row.items() if k != "step"}) for row in result.rows]


@pytest.mark.slow
def test_episodes_are_written_only_in_the_steps_asked_for(tmp_path):
    toy_trainer(tmp_path / "run", toy_recipe(log={"episodes_every": 3})).run()
    steps = {int(e.id.split("@")[1]) + 1 for e in read_episodes(tmp_path / "run/episodes.jsonl")}
    assert steps == {3, 6}
    toy_trainer(tmp_path / "none", toy_recipe(log={"episodes_every": 0})).run()
    assert not (tmp_path / "none/episodes.jsonl").read_bytes()


@pytest.mark.slow
def test_trainer_state_is_plain(tmp_path):
    result = toy_trainer(tmp_path / "run").run()
    state = json.loads((result.checkpoint / "trainer.json").read_text())
    assert state["progress"] == dataclasses.asdict(result.progress)
    assert state["files"]["metrics.jsonl"] == (tmp_path / "run/metrics.jsonl").stat().st_size


def test_a_run_without_signal_has_no_advantages(tmp_path):
    """Its file is empty, which is no fault of the run."""
    (tmp_path / "episodes.advantages.jsonl").touch()
    assert read_advantages(tmp_path / "episodes.advantages.jsonl") == {}

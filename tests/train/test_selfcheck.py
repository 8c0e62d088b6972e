"""The self-check passes on shipped recipes and names each fault that is planted."""

import dataclasses

import numpy as np
import pytest
from made_models import tiny_qwen2, tiny_tokenizer

from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.train.algorithms.losses import token_logp
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.inspect import selfcheck as module
from searchgym.train.inspect.selfcheck import selfcheck
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.learner.trained_model import TrainedModel
from searchgym.train.recipe.load import load_recipe

SMALL = ["env_options={world: {split: train, size: 40, seed: 1}}", "rollout.questions=4"]


@pytest.fixture(scope="module")
def least(tmp_path_factory):
    """Overrides for a model of random weights and episodes of two turns: faults show in them just as well."""
    model = tmp_path_factory.mktemp("least") / "model"
    tiny_qwen2(max_position_embeddings=4096).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    return [
        f"model={model}",
        "rollout.questions=2",
        "env_options={world: {split: train, size: 40, seed: 1}, max_turns: 2, top_k: 1}",
    ]


def failed(tmp_path, *overrides, recipe="tiny-grpo"):
    """The names of the checks that do not pass."""
    checks = selfcheck(load_recipe(recipe, [*SMALL, *overrides]), tmp_path / "check")
    assert len(checks) == 9
    return [check.name for check in checks if not check.ok]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tiny-grpo", "tiny-rejection", "tiny-ppo"])
def test_shipped_recipes_pass(recipe, tmp_path):
    assert failed(tmp_path, recipe=recipe) == []


@pytest.mark.engine
@pytest.mark.parametrize("recipe", ["qwen2.5-3b-grpo", "qwen2.5-7b-ppo"])
def test_large_recipes_pass_with_a_small_model_and_two_ranks(recipe, tmp_path):
    """Their own ZeRO stages, weights in bfloat16. The other large recipes have the same methods."""
    small = ["model=tiny", "env=searchgym/World-v0", "validation.env_options={}", "learner.ranks=2"]
    assert failed(tmp_path, *small, recipe=recipe) == []


@pytest.fixture
def no_bandit(monkeypatch):
    """Leaves out what the planted fault does not touch."""
    monkeypatch.setattr(module, "_bandit_checks", lambda recipe, out: [module.Check("bandit", True, "")] * 2)


def planted(monkeypatch, change):
    """Samples are changed by a function on their way to the learner."""
    monkeypatch.setattr(module, "samples_from", lambda episode: [change(sample) for sample in samples_from(episode)])


def test_a_sampler_on_the_learners_gpu_rests_while_the_model_learns(monkeypatch, tmp_path, no_bandit, least):
    events, load = [], module.assemble

    def parts(*given):
        made = load(*given)
        learn, update = made.learner.learn, made.sampler.update
        monkeypatch.setattr(made.learner, "learn", lambda *args: events.append("learn") or learn(*args))
        monkeypatch.setattr(made.sampler, "update", lambda *args: events.append("wake") or update(*args))
        return made

    monkeypatch.setattr(module.Assembly, "rest", lambda self: events.append("rest"))
    monkeypatch.setattr(module, "assemble", parts)
    assert failed(tmp_path, *least) == []
    assert events == ["wake", "rest", "learn", "learn", "wake", "rest", "learn"]


def test_an_inverted_mask(monkeypatch, tmp_path, no_bandit, least):
    def invert(sample):
        mask = ~sample.mask
        mask[0] = False
        return dataclasses.replace(sample, mask=mask)

    planted(monkeypatch, invert)
    assert "masks cover what was sampled" in failed(tmp_path, *least)


def test_a_mask_shifted_by_one(monkeypatch, tmp_path, no_bandit, least):
    planted(monkeypatch, lambda sample: dataclasses.replace(sample, mask=np.roll(sample.mask, -1)))
    assert "masks cover what was sampled" in failed(tmp_path, *least)


def test_a_response_that_was_tokenised_again(monkeypatch, tmp_path, no_bandit, least):
    def merge(sample):
        ids = sample.ids.copy()
        ids[sample.calls[0].start] += 1
        return dataclasses.replace(sample, ids=ids)

    planted(monkeypatch, merge)
    assert "tokens are those sampled" in failed(tmp_path, *least)


def test_mixed_groups(monkeypatch, tmp_path, no_bandit, least):
    planted(monkeypatch, lambda sample: dataclasses.replace(sample, group_uid=f"g{sample.attempt}"))
    monkeypatch.setattr(module, "with_advantages", lambda samples, recipe, learner: (samples, {}))
    assert "groups are attempts at one question" in failed(tmp_path, *least)


def test_stale_weights(monkeypatch, tmp_path, no_bandit, least):
    monkeypatch.setattr(TransformersSampler, "update", lambda self, state, version: None)
    assert failed(tmp_path, *least) == ["they agree after an update, too"]


def test_a_denominator_of_each_micro_batch(monkeypatch, tmp_path, no_bandit, least):
    accumulate = TrainedModel._micro_batches

    def local(self, samples, values):
        for rows, batch, counts in accumulate(self, samples, values):
            if "weight" in batch.values:
                batch.values["weight"] *= 100 / len(batch.targets)
            yield rows, batch, counts

    monkeypatch.setattr(TrainedModel, "_micro_batches", local)
    assert failed(tmp_path, *least, "optimizer.micro_batch_tokens=4096") == ["one denominator for all micro-batches"]


def test_groups_that_must_be_large_are_sampled_as_large(tmp_path, no_bandit, least):
    assert failed(tmp_path, *least, "rollout.attempts=8", "advantage.min_group=6") == []


def test_no_gradient(monkeypatch, tmp_path, no_bandit, least):
    planted(monkeypatch, lambda sample: dataclasses.replace(sample, group_uid=sample.episode_id))
    assert "one denominator for all micro-batches" in failed(tmp_path, *least)


def test_a_temperature_that_the_trainer_ignores(monkeypatch, tmp_path, no_bandit, least):
    def ignore(logits, targets, temperature, entropy_gradient=False):
        return token_logp(logits, targets, 1.0, entropy_gradient)

    monkeypatch.setattr("searchgym.train.learner.policy.token_logp", ignore)
    assert failed(tmp_path, *least) == ["log-probs of sampler and trainer agree", "they agree after an update, too"]


def test_a_learning_rate_that_is_not_0(monkeypatch, tmp_path, no_bandit, least):
    monkeypatch.setattr("searchgym.train.learner.updater.lr_scale", lambda step, steps, options: 1.0)
    assert "learning rate 0 moves no weight" in failed(tmp_path, *least)


@pytest.mark.slow
def test_a_method_that_learns_nothing_and_does_not_resume(monkeypatch, tmp_path):
    monkeypatch.setattr("searchgym.train.learner.updater.lr_scale", lambda step, steps, options: 1e-6)
    monkeypatch.setattr("searchgym.train.learner.updater.Updater.load", lambda self, folder: None)
    assert failed(tmp_path)[-2:] == ["a bandit is learnt", "a resumed run ends at the same bits"]


@pytest.mark.slow
def test_a_critic_that_does_not_resume(monkeypatch, tmp_path):
    monkeypatch.setattr(LocalLearner, "load", lambda self, folder: self.policy.updater.load(folder))
    checks = module._bandit_checks(load_recipe("tiny-ppo"), tmp_path)
    assert [check.name for check in checks if not check.ok] == ["a resumed run ends at the same bits"]

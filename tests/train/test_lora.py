"""Adapters: what is trained, what leaves the learner, what the reference is, what a checkpoint holds."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2, tiny_tokenizer
from test_learner import random_samples
from toy_training import BanditRollout, exact, toy_model, toy_recipe, toy_trainer
from transformers import AutoModelForCausalLM

from searchgym.cli import main
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.rollout.loading import load_model
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.vllm.start import load_vllm
from searchgym.train.learner.learner import LocalLearner

LORA = {"rank": 4, "alpha": 8.0}


def recipe(**changes):
    return toy_recipe(**({"lora": LORA, "optimizer": {"lr": 1e-2, "micro_batch_tokens": 256}} | changes))


def model():
    return tiny_qwen2(vocabulary=50, sharp=0.2)


def trained(**changes):
    learner = LocalLearner(recipe(**changes), model())
    rows = [learner.learn(random_samples(5, seed=step), step) for step in range(3)]
    return learner, rows


@pytest.mark.slow
def test_only_the_adapter_is_trained_and_at_first_it_says_nothing():
    plain, samples = LocalLearner(recipe(lora={"rank": 0}), model()), random_samples(5)
    learner = LocalLearner(recipe(), model())
    for own, wanted in zip(learner.logp(samples), plain.logp(samples), strict=True):
        np.testing.assert_array_equal(own, wanted)
    before = {name: weight.clone() for name, weight in learner.policy.updater.model.named_parameters()}
    learner.learn(samples, 0)
    moved = {n for n, weight in learner.policy.updater.model.named_parameters() if not torch.equal(weight, before[n])}
    assert moved
    assert all(".lora_B." in name for name in moved)  # A's gradient is 0 while B is
    trainable = sum(p.numel() for p in learner.policy.updater.model.parameters() if p.requires_grad)
    state = learner.policy.updater.optimizer.state_dict()["state"]
    assert sum(moments["exp_avg"].numel() for moments in state.values()) == trainable


@pytest.mark.slow
def test_weights_leave_merged_under_the_models_own_names():
    learner, rows = trained()
    assert rows[-1]["updates"] == 1
    plain = model()
    weights = learner.weights()
    assert weights.keys() == plain.state_dict().keys()
    assert not torch.equal(weights["model.layers.0.mlp.up_proj.weight"], plain.model.layers[0].mlp.up_proj.weight)
    torch.testing.assert_close(weights["model.norm.weight"], plain.model.norm.weight)
    plain.load_state_dict(weights)
    samples, merged = random_samples(4, seed=9), LocalLearner(recipe(lora={"rank": 0}), plain)
    for own, wanted in zip(learner.logp(samples), merged.logp(samples), strict=True):
        np.testing.assert_allclose(own, wanted, atol=1e-5)


@pytest.mark.slow
def test_the_reference_is_the_model_without_its_adapter():
    loss = {"kl_coef": 0.1}
    learner, rows = trained(loss=loss)
    whole = LocalLearner(recipe(loss=loss, lora={"rank": 0}), model())
    samples = random_samples(4, seed=9)
    own = learner.policy.logp(samples, learner.policy.reference)
    for got, wanted in zip(own, whole.policy.logp(samples, whole.policy.reference), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert rows[-1]["ref_kl"] > 0
    again = learner.learn(random_samples(5, seed=7), 3)  # switched on again, gradients and all
    assert again["gradient_norm"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_kept_in_float32(dtype):
    learner = LocalLearner(recipe(), model().to(getattr(torch, dtype)))
    learner.learn(random_samples(5), 0)
    kinds = {p.dtype for p in learner.policy.updater.model.parameters() if p.requires_grad}
    assert kinds == {torch.float32}
    assert {t.dtype for t in learner.weights().values()} == {getattr(torch, dtype)}


@pytest.mark.slow
def test_an_adapter_beside_weights_in_bfloat16_comes_back_as_it_was_saved(tmp_path):
    """Not rounded to the type of its base."""
    learners = [LocalLearner(recipe(), model().to(torch.bfloat16)) for _ in range(2)]
    learners[0].learn(random_samples(5), 0)
    learners[0].save(tmp_path)
    learners[1].load(tmp_path)
    for own, other in zip(*(learner.policy.updater.model.parameters() for learner in learners), strict=True):
        assert torch.equal(own, other)
    rows = [learner.learn(random_samples(5, seed=1), 1) for learner in learners]
    assert rows[0]["loss"] == rows[1]["loss"]


@pytest.fixture
def saved(tmp_path):
    """An adapter after three steps, and the learner that holds it."""
    learner, _ = trained()
    learner.save(tmp_path)
    return tmp_path, learner


@pytest.mark.slow
def test_an_earlier_adapter_goes_on_where_it_ended(saved):
    folder, before = saved
    after = LocalLearner(recipe(), model(), adapter=folder)
    samples = random_samples(4, seed=9)
    for own, wanted in zip(after.logp(samples), before.logp(samples), strict=True):
        np.testing.assert_array_equal(own, wanted)
    fresh = LocalLearner(recipe(), model())
    assert not np.allclose(np.concatenate(after.logp(samples)), np.concatenate(fresh.logp(samples)))


@pytest.mark.slow
def test_a_continued_adapters_reference_is_the_model_handed_over(saved):
    folder, before = saved
    after = LocalLearner(recipe(loss={"kl_coef": 0.1}), model(), adapter=folder)
    first, later = (after.learn(random_samples(5, seed=step), step) for step in range(2))
    assert first["ref_kl"] == pytest.approx(0, abs=1e-6) and later["ref_kl"] > 1e-5
    samples = random_samples(4, seed=9)
    for own, wanted in zip(after.policy.logp(samples, after.policy.reference), before.logp(samples), strict=True):
        np.testing.assert_array_equal(own, wanted)  # also after the update


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora": LORA | {"rank": 8}}, r"adapter of .'rank': 4, 'alpha': 8.0.*the recipe's lora has .'rank': 8"),
        ({"lora": LORA | {"alpha": 4.0}}, "they must be equal"),
        ({"lora": LORA | {"targets": ["q_proj"]}}, "is in the earlier one alone: use its lora.targets"),
        ({"learner": {"frozen_layers": 1}}, "is in the earlier one alone: .*learner.frozen_layers"),
    ],
)
def test_an_adapter_of_another_form_is_not_continued(saved, changes, said):
    with pytest.raises(UsageError, match=said):
        LocalLearner(recipe(**changes), model(), adapter=saved[0])


@pytest.mark.slow_cases
@pytest.mark.parametrize("scale", [{"use_rslora": True}, {"alpha_pattern": {"q_proj": 2}}])
def test_an_adapter_with_another_scale_is_not_continued(saved, scale):
    """The scale would be lora_alpha / sqrt(r), or one for each matrix, and the trainer's is lora_alpha / r."""
    config = json.loads((saved[0] / "adapter_config.json").read_text())
    (saved[0] / "adapter_config.json").write_text(json.dumps(config | {"use_rslora": False, "rank_pattern": {}}))
    LocalLearner(recipe(), model(), adapter=saved[0])
    (saved[0] / "adapter_config.json").write_text(json.dumps(config | scale))
    with pytest.raises(UsageError, match=f"is an adapter with {next(iter(scale))}"):
        LocalLearner(recipe(), model(), adapter=saved[0])


@pytest.mark.slow
def test_an_adapter_without_weights_is_not_continued(saved):
    (saved[0] / "adapter_model.safetensors").unlink()
    with pytest.raises(DataMissingError, match="an adapter without its weights"):
        LocalLearner(recipe(), model(), adapter=saved[0])


@pytest.mark.slow_cases
@pytest.mark.parametrize("lora", [{"rank": 0}, LORA])
def test_frozen_layers_stay_as_they_are_and_those_above_learn(lora):
    learner, _ = trained(lora=lora, learner={"frozen_layers": 1})
    before, after = model().state_dict(), learner.weights()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(name.startswith(("model.layers.1.", "model.norm.")) for name in moved)
    assert any(".1.mlp.down_proj." in name for name in moved)


@pytest.mark.parametrize("lora", [{"rank": 0}, LORA])
def test_one_layer_at_least_learns(lora):
    with pytest.raises(UsageError, match=r"learner.frozen_layers is 2: the model has 2 layers"):
        LocalLearner(recipe(lora=lora, learner={"frozen_layers": 2}), model())


def test_targets_that_are_not_there():
    with pytest.raises(UsageError, match=r"lora.targets \['qq_proj'\] on Qwen2ForCausalLM"):
        LocalLearner(recipe(lora=LORA | {"targets": ["qq_proj"]}), model())


@pytest.mark.slow
def test_a_bandit_is_learnt_and_resumed_to_the_same_bits(tmp_path):
    base = toy_model()
    base.save_pretrained(tmp_path / "base")
    whole = run(tmp_path, "whole", 8)
    run(tmp_path, "cut", 4)
    resumed = run(tmp_path, "cut", 8, resume=True)
    assert whole.rows[-1]["validation/em"] > whole.rows[0]["validation/em"]
    assert exact(resumed.rows) == exact(whole.rows)
    files = [r.checkpoint / "adapter_model.safetensors" for r in (whole, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not (whole.checkpoint / "model.safetensors").exists()


@pytest.mark.slow
def test_what_is_saved_loads_as_one_model_and_names_what_is_wrong(tmp_path):
    base, saved = tmp_path / "base", tmp_path / "saved"
    for model in (tiny_qwen2(), tiny_tokenizer()):
        model.save_pretrained(base)
    learner = LocalLearner(recipe(), AutoModelForCausalLM.from_pretrained(base))
    learner.learn(random_samples(5), 0)
    saved.mkdir()
    learner.save(saved)
    loaded, _ = load_model(saved)
    by_transformers = AutoModelForCausalLM.from_pretrained(saved)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        own = loaded(input_ids=ids).logits
        torch.testing.assert_close(own, by_transformers(input_ids=ids).logits, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(own, tiny_qwen2()(input_ids=ids).logits, atol=1e-3)
    tiny_qwen2(hidden_size=16).save_pretrained(base)
    with pytest.raises(DataError, match="the adapter does not fit its base"):
        load_model(saved)
    with pytest.raises(
        DataError, match=r"the adapter does not fit its base .*lora_[AB].weight is 32 wide there, 16 here"
    ):
        load_vllm(saved, "float32", requests=1, options=Vllm())  # before an engine starts
    shutil.rmtree(base)
    with pytest.raises(DataMissingError, match=r"its base '.*base' cannot be loaded: .*no such folder"):
        load_model(saved)


@pytest.mark.slow
def test_a_recipe_without_lora_trains_a_merged_adapter_as_one_model(tmp_path):
    base, saved, out = tmp_path / "base", tmp_path / "saved", tmp_path / "out"
    for model in (tiny_qwen2(), tiny_tokenizer()):
        model.save_pretrained(base)
    learner = LocalLearner(recipe(), AutoModelForCausalLM.from_pretrained(base))
    learner.learn(random_samples(5), 0)
    saved.mkdir()
    learner.save(saved)
    merged, samples = load_model(saved)[0], random_samples(5, seed=3)
    whole = LocalLearner(recipe(lora={"rank": 0}), merged)
    for own, wanted in zip(whole.logp(samples), learner.logp(samples), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-5)
    before = {name: weight.clone() for name, weight in whole.weights().items()}
    assert whole.learn(samples, 0)["updates"] == 1
    assert all(not torch.equal(weight, before[name]) for name, weight in whole.weights().items())
    out.mkdir()
    whole.save(out)
    assert not (out / "adapter_config.json").exists()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in whole.weights().items())


@pytest.mark.slow
def test_an_export_is_one_plain_model(tmp_path, monkeypatch, capsys):
    base, saved = tmp_path / "base", tmp_path / "saved"
    for model in (tiny_qwen2(), tiny_tokenizer()):
        model.save_pretrained(base)
    learner = LocalLearner(recipe(), AutoModelForCausalLM.from_pretrained(base))
    learner.learn(random_samples(5), 0)
    saved.mkdir()
    learner.save(saved)
    monkeypatch.setattr(sys, "argv", ["searchgym", "model", "export", str(saved), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="0"):
        main()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    ids = torch.arange(10)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            plain(input_ids=ids).logits, learner.policy.updater.model(input_ids=ids).logits, atol=1e-4, rtol=1e-4
        )
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "already exists: give another folder" in capsys.readouterr().err


def run(tmp_path, name, steps, **options):
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    chosen = toy_recipe(lora=LORA, steps=8, checkpoint={"every": 4})
    rollout = BanditRollout(policy)
    made = {"model": policy, "rollout": rollout, "publish": rollout.publish}
    trainer = toy_trainer(tmp_path / name, chosen, **(made | options))
    if steps < 8:
        trainer.recipe = dataclasses.replace(chosen, steps=steps)
    return trainer.run()

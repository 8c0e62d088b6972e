import dataclasses
import math

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2

from searchgym.errors import TrainingError, UsageError
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import token_weights
from searchgym.train.algorithms.samples import Sample, SampleCall, with_all_targets
from searchgym.train.learner.batching import collate, pack, run_lengths, trained_logits
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater, lr_scale
from searchgym.train.recipe.options import OptimizerOptions


def model(seed=0):
    return tiny_qwen2(vocabulary=50, sharp=0.2, seed=seed)


def learner(weights=None, loss=None, reference=None, steps=10, temperature=1.0, **options):
    optimizer = OptimizerOptions(**({"lr": 1e-3, "max_grad_norm": 0.0} | options))
    return Policy(
        Updater(weights or model(), optimizer, steps),
        loss or LossOptions(),
        optimizer,
        temperature=temperature,
        reference=reference,
    )


def random_samples(count=9, seed=0, longest=150):
    """Sequences of unequal lengths with two model spans and an observation between them."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(count):
        length = int(rng.integers(12, longest))
        cuts = np.sort(rng.choice(np.arange(2, length - 1), 3, replace=False))
        place = np.arange(length)
        mask = ((place >= cuts[0]) & (place < cuts[1])) | (place >= cuts[2])
        samples.append(
            Sample(
                ids=rng.integers(0, 50, length, dtype=np.int32),
                mask=mask,
                reward=np.zeros(length, np.float32),
                advantage=np.where(mask, np.float32(rng.normal()), np.float32(0)),
                sampler_logp=np.where(mask, rng.normal(-3, 1, length), 0).astype(np.float32),
                calls=(SampleCall(0, int(cuts[0]), int(cuts[1]), "r", 1), SampleCall(1, int(cuts[2]), length, "r", 2)),
                model_key="policy",
                episode_id=f"e{i}",
                question_id="q",
                attempt=i,
                group_uid="g",
                policy_version=0,
            )
        )
    return samples


def values(samples, old=None, reduction="token-mean"):
    weights, denominator = token_weights(samples, reduction)
    found = {
        "advantage": [s.advantage[s.mask] for s in samples],
        "sampler_logp": [s.sampler_logp[s.mask] for s in samples],
        "weight": weights,
    }
    return (found if old is None else found | {"old_logp": old}), denominator


def gradients(own):
    return torch.cat([p.grad.flatten() for p in own.updater.model.parameters()])


def weights_of(own):
    return torch.cat([p.detach().flatten() for p in own.updater.model.parameters()])


def old_logp(samples, seed=1):
    """Log-probs of other weights: the ratios lie on both sides of the clip."""
    return learner(model(seed)).logp(samples)


# -- micro-batches -------------------------------------------------------------------------------------------------


def test_packing_is_complete_bounded_and_the_same_each_time():
    lengths = [200, 64, 65, 1, 300, 64, 63, 700, 128, 2]
    batches = pack(lengths, 256)
    assert batches == [[1, 3, 5, 6], [9], [2, 8], [0], [4], [7]]
    assert batches == pack(lengths, 256)
    for rows in batches:
        widths = {-(-lengths[i] // 64) for i in rows}
        assert len(widths) == 1
        assert len(rows) == 1 or len(rows) * 64 * widths.pop() <= 256
    assert pack([], 256) == []


def test_the_logits_kept_are_those_left_of_the_trained_tokens():
    samples, own = random_samples(4), model()
    batch = collate(samples, {}, [0, 1, 2, 3], torch.device("cpu"))
    assert batch.ids.shape[1] % 64 == 0
    with torch.no_grad():
        kept = trained_logits(own, batch)
        parts = [own(torch.tensor(s.ids[None].astype(np.int64))).logits[0, :-1][s.mask[1:]] for s in samples]
    torch.testing.assert_close(kept, torch.cat(parts), rtol=1e-5, atol=1e-5)
    assert batch.targets.tolist() == [int(i) for s in samples for i in s.ids[s.mask]]
    assert not own.get_output_embeddings()._forward_pre_hooks


def test_log_probs_against_the_plain_model_row_by_row():
    samples = random_samples(5)
    own = learner(temperature=0.6, micro_batch_tokens=256)
    for sample, logp in zip(samples, own.logp(samples), strict=True):
        with torch.no_grad():
            logits = own.updater.model(torch.tensor(sample.ids[None].astype(np.int64))).logits[0, :-1].double() / 0.6
        expected = torch.distributions.Categorical(logits=logits).log_prob(torch.tensor(sample.ids[1:]))
        np.testing.assert_allclose(logp, expected.numpy()[sample.mask[1:]], rtol=0, atol=2e-5)


@pytest.mark.slow_cases
@pytest.mark.parametrize("reduction", ["token-mean", "sequence-mean"])
def test_micro_batches_and_shards_add_up_to_the_whole_batch(reduction):
    samples, loss = random_samples(), LossOptions(kl_coef=0.05, entropy_coef=0.01, reduction=reduction)
    old = old_logp(samples)
    per_token, denominator = values(samples, old, reduction)
    per_token["ref_logp"] = old_logp(samples, seed=2)
    whole = learner(loss=loss, micro_batch_tokens=10**6)
    total = whole.trained_model.accumulate(samples, per_token, denominator, whole.policy_loss)
    assert total["clipped_low"] > 5
    assert total["clipped_high"] > 5
    for tokens in (64, 256, 512):
        cut = learner(loss=loss, micro_batch_tokens=tokens)
        statistics = cut.trained_model.accumulate(samples, per_token, denominator, cut.policy_loss)
        assert statistics["micro_batches"] > total["micro_batches"]
        assert statistics["loss"] == pytest.approx(total["loss"], abs=1e-6)
        torch.testing.assert_close(gradients(cut), gradients(whole), rtol=1e-5, atol=1e-6)
    ranks, sums = torch.zeros_like(gradients(whole)), 0.0
    for share in (range(2), range(2, 9)):  # unequal shares of samples, one denominator
        rank = learner(loss=loss)
        own = {name: [flat[i] for i in share] for name, flat in per_token.items()}
        sums += rank.trained_model.accumulate([samples[i] for i in share], own, denominator, rank.policy_loss)["loss"]
        ranks += gradients(rank)
    assert sums == pytest.approx(total["loss"], abs=1e-6)
    torch.testing.assert_close(ranks, gradients(whole), rtol=1e-5, atol=1e-6)


def test_the_token_mean_against_autograd_over_a_plain_forward_pass():
    samples = random_samples(6)
    old = old_logp(samples)
    own = learner(micro_batch_tokens=256)
    per_token, denominator = values(samples, old)
    got = own.trained_model.accumulate(samples, per_token, denominator, own.policy_loss)["loss"]
    plain = model().double()
    total = torch.zeros((), dtype=torch.float64)
    for sample, before in zip(samples, old, strict=True):
        logits = plain(torch.tensor(sample.ids[None].astype(np.int64))).logits[0, :-1]
        logp = torch.log_softmax(logits, -1)[torch.arange(len(sample.ids) - 1), torch.tensor(sample.ids[1:]).long()]
        ratio = torch.exp(logp[torch.tensor(sample.mask[1:])] - torch.tensor(before).double())
        advantage = float(sample.advantage[sample.mask][0])
        total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
    expected = total / sum(int(s.mask.sum()) for s in samples)
    expected.backward()
    reference = torch.cat([p.grad.flatten() for p in plain.parameters()]).float()
    assert got == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(gradients(own), reference, rtol=1e-4, atol=1e-6)


def test_random_numbers_outside_the_mask_change_no_bit():
    samples, rng = random_samples(), np.random.default_rng(5)
    noisy = [
        dataclasses.replace(
            s,
            advantage=np.where(s.mask, s.advantage, rng.normal(size=len(s.ids))).astype(np.float32),
            sampler_logp=np.where(s.mask, s.sampler_logp, rng.normal(size=len(s.ids))).astype(np.float32),
        )
        for s in samples
    ]
    first, second = learner(), learner()
    first.policy_step(samples, 0)
    second.policy_step(noisy, 0)
    assert torch.equal(weights_of(first), weights_of(second))


EVERYTHING = LossOptions(
    dual_clip=1.5,
    ratio="sequence",
    importance_cap=2.0,
    kl_coef=0.05,
    kl_estimator="k2",
    entropy_coef=0.01,
    llds_coef=0.2,
    reduction="constant",
    constant_length=40,
)


def test_the_runs_of_a_mask():
    assert run_lengths(np.array([1, 2, 4, 7, 8, 9])) == [2, 1, 3]
    assert run_lengths(np.array([0, 1])) == [2]
    assert run_lengths(np.zeros(0, np.int64)) == []


def test_micro_batches_add_up_with_every_part_of_the_loss():
    samples = random_samples()
    # Whole sequences lie on both sides of every clip.
    old = [own + np.float32(0.8 if i % 4 < 2 else -0.8) for i, own in enumerate(old_logp(samples))]
    ref = old_logp(samples, seed=2)
    weights, denominator = token_weights(samples, "constant", 40)
    assert denominator == 9 * 40
    per_token = values(samples, old)[0] | {"ref_logp": ref, "weight": weights}
    per_token["sampler_logp"] = [own + np.float32(np.log(4)) * (i % 2) for i, own in enumerate(old)]
    found = []
    for tokens in (10**6, 64, 256):
        own = learner(loss=EVERYTHING, micro_batch_tokens=tokens)
        found.append((own.trained_model.accumulate(samples, per_token, denominator, own.policy_loss), gradients(own)))
    (whole, gradient), *cuts = found
    assert min(whole[name] for name in ("clipped_low", "clipped_high", "clipped_dual", "llds_acting")) > 5
    assert whole["importance_capped"] == 0
    assert 0.5 < whole["importance"] / whole["tokens_trained"] < 0.8  # half the sequences weigh a quarter
    for total, other in cuts:
        assert total["micro_batches"] > whole["micro_batches"]
        assert total["loss"] == pytest.approx(whole["loss"], abs=1e-6)
        assert total["llds"] == pytest.approx(whole["llds"], rel=1e-4)
        torch.testing.assert_close(other, gradient, rtol=1e-5, atol=1e-6)


def test_random_numbers_outside_the_mask_change_no_bit_of_any_part():
    rng, reference = np.random.default_rng(5), model(seed=3)
    samples = [
        dataclasses.replace(s, old_logp=s.sampler_logp, ref_logp=s.sampler_logp - np.float32(0.1))
        for s in random_samples()
    ]
    names = ("advantage", "sampler_logp", "old_logp", "ref_logp", "reward")
    noisy = [
        dataclasses.replace(
            s,
            **{
                name: np.where(s.mask, getattr(s, name), rng.normal(size=len(s.ids)) * 1e6).astype(np.float32)
                for name in names
            },
        )
        for s in samples
    ]
    first, second = (learner(loss=EVERYTHING, reference=reference, minibatches=2) for _ in range(2))
    assert first.policy_step(samples, 0) == second.policy_step(noisy, 0)
    assert torch.equal(weights_of(first), weights_of(second))


def test_log_probs_computed_ahead_are_the_ones_that_are_used():
    samples, reference = random_samples(), model(seed=3)
    loss = LossOptions(kl_coef=0.1)
    own, other = (learner(loss=loss, reference=reference, minibatches=2) for _ in range(2))
    ahead = own.with_logp(samples)
    for sample, logp in zip(ahead, learner(reference).logp(samples), strict=True):
        assert np.array_equal(sample.ref_logp[sample.mask], logp)
        assert not sample.ref_logp[~sample.mask].any()
        assert not np.array_equal(sample.ref_logp, sample.old_logp)
    assert own.policy_step(ahead, 0) == other.policy_step(samples, 0)
    assert torch.equal(weights_of(own), weights_of(other))
    assert learner().with_logp(samples)[0].ref_logp is None
    shifted = [dataclasses.replace(s, old_logp=s.old_logp + np.float32(0.5)) for s in ahead]
    metrics = learner(loss=loss, reference=reference, minibatches=2, lr=0.0).policy_step(shifted, 0)
    assert metrics["ratio"] == pytest.approx(math.exp(-0.5), rel=1e-4)


@pytest.mark.parametrize("unit", ["call", "response"])
def test_llds_by_calls_and_by_responses(unit):
    samples = random_samples()
    old, own = old_logp(samples), learner(loss=LossOptions(llds_coef=0.2, llds_unit=unit), micro_batch_tokens=256)
    expected = 0.0
    for sample, before, now in zip(samples, old, own.logp(samples), strict=True):
        lengths = run_lengths(np.flatnonzero(sample.mask)) if unit == "call" else [len(now)]
        assert len(lengths) == (2 if unit == "call" else 1)
        for part in np.split(now - before, np.cumsum(lengths)[:-1]):
            if part.sum() < 0 and sample.advantage[sample.mask][0] >= 0:
                expected += np.maximum(-part, 0).sum()
    per_token, denominator = values(samples, old)
    assert own.trained_model.accumulate(samples, per_token, denominator, own.policy_loss)["llds"] == pytest.approx(
        expected, rel=1e-4
    )


def test_llds_acts_from_the_second_update_on():
    samples = random_samples()
    plain, once = learner(), learner(loss=LossOptions(llds_coef=0.2))
    assert once.policy_step(samples, 0)["llds"] == 0
    plain.policy_step(samples, 0)
    assert torch.equal(weights_of(plain), weights_of(once))
    liked = dataclasses.replace(samples[0], advantage=samples[0].mask.astype(np.float32) * np.float32(0.1))
    hated = dataclasses.replace(samples[0], advantage=samples[0].mask.astype(np.float32) * -3)  # the same tokens
    fallen = [
        learner(loss=LossOptions(llds_coef=coef), lr=3e-3, epochs=3).policy_step([liked, hated], 0)
        for coef in (1e-9, 20.0)
    ]
    assert fallen[0]["llds"] > fallen[1]["llds"] > 0


# -- steps ---------------------------------------------------------------------------------------------------------


def test_a_step_of_one_update_starts_at_ratio_one():
    samples = random_samples()
    metrics = learner(micro_batch_tokens=256).policy_step(samples, 0)
    advantage = np.concatenate([s.advantage[s.mask] for s in samples])
    assert metrics["loss"] == pytest.approx(-float(advantage.mean()), abs=1e-5)
    assert (metrics["ratio"], metrics["clipped_low"], metrics["clipped_high"], metrics["updates"]) == (1, 0, 0, 1)
    assert metrics["tokens_trained"] == sum(int(s.mask.sum()) for s in samples)
    assert metrics["tokens_read"] == sum(len(s.ids) for s in samples)
    logp = np.concatenate(learner().logp(samples))
    difference = np.abs(logp - np.concatenate([s.sampler_logp[s.mask] for s in samples]))
    assert metrics["sampler_difference"] == pytest.approx(float(difference.mean()), rel=1e-5)
    assert metrics["max_sampler_difference"] == pytest.approx(float(difference.max()), rel=1e-5)


def test_several_updates_use_the_log_probs_from_before_the_first():
    samples = random_samples()
    many = learner(minibatches=3, epochs=2, lr=3e-3)
    metrics = many.policy_step(samples, 4)
    assert (metrics["updates"], many.updater.version) == (6, 6)
    assert metrics["tokens_trained"] == 2 * sum(int(s.mask.sum()) for s in samples)
    assert metrics["clipped_low"] + metrics["clipped_high"] > 0
    assert metrics["old_kl"] > 0
    again = learner(minibatches=3, epochs=2, lr=3e-3)
    assert again.policy_step(samples, 4) == metrics
    assert torch.equal(weights_of(many), weights_of(again))
    other = learner(minibatches=3, epochs=2, lr=3e-3)
    other.policy_step(samples, 5)
    assert not torch.equal(weights_of(many), weights_of(other))


@pytest.mark.parametrize(("size", "updates"), [(1, 8), (3, 3), (4, 2), (8, 1), (32, 1)])
def test_minibatches_may_be_counted_in_sequences(size, updates):
    """As many updates as eight sequences ask for, which learn from all of them: verl's ``ppo_mini_batch_size``."""
    samples = random_samples(8)
    own = learner(minibatch_samples=size)
    metrics = own.policy_step(samples, 0)
    assert metrics["updates"] == updates
    assert metrics["tokens_trained"] == sum(int(s.mask.sum()) for s in samples)
    same = learner(minibatches=updates)
    same.policy_step(samples, 0)
    assert torch.equal(weights_of(own), weights_of(same))


def test_at_learning_rate_zero_no_weight_changes_and_two_epochs_agree():
    own = learner(lr=0.0, epochs=2)
    before = weights_of(own).clone()
    metrics = own.policy_step(random_samples(), 0)
    assert torch.equal(weights_of(own), before)
    assert metrics["ratio"] == pytest.approx(1, abs=1e-6)
    assert metrics["old_kl"] == pytest.approx(0, abs=1e-9)


def test_a_step_is_one_of_adamw_with_decay_on_matrices_only():
    samples, own = random_samples(), learner(lr=1e-2, weight_decay=0.1, max_grad_norm=0.5, betas=[0.8, 0.9])
    twin = model()
    decay = [p for p in twin.parameters() if p.ndim >= 2]
    rest = [p for p in twin.parameters() if p.ndim < 2]
    reference = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2, betas=(0.8, 0.9)
    )
    probe = learner()
    per_token, denominator = values(samples)
    probe.trained_model.accumulate(samples, per_token, denominator, probe.policy_loss)
    norm = gradients(probe).norm()
    for mine, theirs in zip(twin.parameters(), probe.updater.model.parameters(), strict=True):
        mine.grad = theirs.grad * (0.5 / norm)
    reference.step()
    metrics = own.policy_step(samples, 0)
    assert norm > 0.5
    assert metrics["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)
    torch.testing.assert_close(
        weights_of(own), torch.cat([p.detach().flatten() for p in twin.parameters()]), rtol=1e-5, atol=1e-5
    )


def test_without_signal_no_update_is_made():
    samples = [dataclasses.replace(s, advantage=np.zeros_like(s.advantage)) for s in random_samples()]
    own = learner(weight_decay=0.1)
    own.policy_step(random_samples(), 0)  # momentum that would move the weights
    before = weights_of(own).clone()
    assert own.policy_step(samples, 1)["updates"] == 0
    assert torch.equal(weights_of(own), before)
    assert own.updater.version == 1


@pytest.mark.slow
def test_the_reference_pulls_back():
    samples = [dataclasses.replace(s, advantage=np.zeros_like(s.advantage)) for s in random_samples()]
    reference = model(seed=3)
    own = learner(loss=LossOptions(kl_coef=1.0), reference=reference, lr=3e-3)
    kl = [own.policy_step(samples, step)["ref_kl"] for step in range(20)]
    assert kl[-1] < 0.5 * kl[0]


def test_supervised_loss_against_cross_entropy():
    samples = random_samples(5)
    for chosen in (samples, [with_all_targets(s) for s in samples]):
        metrics = learner(micro_batch_tokens=256).supervised_step(chosen, 0)
        plain, losses = model(), []
        for s in chosen:
            with torch.no_grad():
                logits = plain(torch.tensor(s.ids[None].astype(np.int64))).logits[0, :-1]
            every = torch.nn.functional.cross_entropy(logits, torch.tensor(s.ids[1:]).long(), reduction="none")
            losses += every[torch.tensor(s.mask[1:])].tolist()
        assert metrics["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert metrics["nll"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert metrics["tokens_trained"] == len(losses)


@pytest.mark.slow
def test_demonstrations_are_learnt_by_heart():
    samples, own = random_samples(4, longest=40), learner(lr=1e-2)
    losses = [own.supervised_step(samples, step)["loss"] for step in range(60)]
    assert losses[-1] < 0.05 < losses[0]


def test_matrix_products_in_bfloat16_stay_near_float32():
    samples = random_samples(4)
    exact, rough = learner(), learner(autocast="bfloat16")
    np.testing.assert_allclose(np.concatenate(rough.logp(samples)), np.concatenate(exact.logp(samples)), atol=0.1)
    assert rough.policy_step(samples, 0)["updates"] == 1
    assert {p.dtype for p in rough.updater.model.parameters()} == {torch.float32}


# -- guards --------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_before_the_weights_change():
    samples, own = random_samples(), learner(micro_batch_tokens=64)
    before = weights_of(own).clone()
    bad = samples[-1]
    samples[-1] = dataclasses.replace(bad, advantage=np.where(bad.mask, np.float32(np.inf), np.float32(0)))
    with pytest.raises(TrainingError, match=r"the loss is -inf on .*e8"):
        own.policy_step(samples, 0)
    assert torch.equal(weights_of(own), before)
    assert all(p.grad is None for p in own.updater.model.parameters())


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change():
    own = learner()
    before = weights_of(own).clone()
    next(own.updater.model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(TrainingError, match="the gradient's norm is nan in step 3: no update was made"):
        own.policy_step(random_samples(), 2)
    assert torch.equal(weights_of(own), before)
    assert all(p.grad is None for p in own.updater.model.parameters())


def test_weights_that_are_not_finite_are_named():
    own = learner()
    own.updater.check_weights()
    with torch.no_grad():
        own.updater.model.model.norm.weight[3] = math.inf
    with pytest.raises(TrainingError, match=r"model\.norm\.weight holds a weight that is not finite"):
        own.updater.check_weights()


def test_samples_without_a_trained_token_are_refused():
    empty = [dataclasses.replace(s, mask=np.zeros_like(s.mask)) for s in random_samples(2)]
    with pytest.raises(UsageError, match="2 samples have no token to train on"):
        learner().policy_step(empty, 0)


def test_the_learning_rate_by_hand():
    constant = OptimizerOptions(warmup_steps=4)
    assert [lr_scale(s, 10, constant) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = OptimizerOptions(warmup_steps=2, schedule="cosine", min_lr_ratio=0.1)
    rates = [lr_scale(s, 10, cosine) for s in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.1 + 0.9 * 0.5)  # half way
    assert rates[9] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * 7 / 8)))
    assert lr_scale(3, 3, OptimizerOptions(schedule="cosine", warmup_steps=3)) == 1.0


def test_state_makes_the_next_step_the_same(tmp_path):
    samples, first = random_samples(), learner(weight_decay=0.1)
    first.policy_step(samples, 0)
    second = learner(weight_decay=0.1)
    first.updater.save(tmp_path)
    second.updater.load(tmp_path)
    assert first.policy_step(samples, 1) == second.policy_step(samples, 1)
    assert torch.equal(weights_of(first), weights_of(second))
    assert first.updater.version == second.updater.version == 2

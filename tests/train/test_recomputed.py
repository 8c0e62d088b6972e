"""Activations that are computed again: the same gradients, and nothing computed twice that should be kept."""

from collections import Counter

import pytest
import torch
from made_models import tiny_qwen2
from test_learner import learner, random_samples
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import FalconConfig, FalconForCausalLM, OPTConfig, OPTForCausalLM

from searchgym.train.learner.compiled import with_layers
from searchgym.train.learner.recomputed import recomputing
from searchgym.train.recipe.options import LearnerOptions


class Counted(TorchDispatchMode):
    """Counts the operations that torch runs, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_selective_computes_no_product_twice_and_gives_the_same_bits(autocast):
    rows, counts, weights = {}, {}, {}
    for mode in ("none", "selective", "full"):
        own = learner(
            with_layers(tiny_qwen2(vocabulary=50), LearnerOptions(gradient_checkpointing=mode)), autocast=autocast
        )
        own.policy_step(random_samples(3), 0)  # the first step checks the head
        with Counted() as counted:
            rows[mode] = own.policy_step(random_samples(3), 0)
        counts[mode], weights[mode] = counted.counts, own.updater.weights()
    products = {mode: sum(n for name, n in of.items() if name.endswith("mm")) for mode, of in counts.items()}
    assert products["none"] == products["selective"] < products["full"]
    attention = {mode: sum(n for name, n in of.items() if "scaled_dot" in name) for mode, of in counts.items()}
    assert attention["none"] == attention["selective"] < attention["full"]
    assert counts["none"]["silu"] * 2 == counts["selective"]["silu"] == counts["full"]["silu"]
    for mode in ("selective", "full"):
        assert rows[mode] == rows["none"]
        assert all(torch.equal(weight, weights["none"][name]) for name, weight in weights[mode].items())


def opt(p=0.0):
    """A family with dropout in its layers and under names of its own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "ffn_dim": 32, "word_embed_proj_dim": 16, "vocab_size": 50}
    dropouts = {"dropout": p, "attention_dropout": p, "activation_dropout": p, "layerdrop": p}
    return OPTForCausalLM(OPTConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, **dropouts))


def falcon(p=0.0):
    """A family whose layers ask the config for it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2}
    return FalconForCausalLM(FalconConfig(**sizes, attention_dropout=p, hidden_dropout=p))


@pytest.mark.parametrize(("make", "dropout"), [(opt, "activation_dropout"), (falcon, "hidden_dropout")])
def test_recomputed_activations_change_no_gradient_and_bring_no_dropout(make, dropout):
    again = recomputing(make(0.4), "full")
    rows = [own.policy_step(random_samples(3), 0) for own in (learner(make()), learner(again))]
    assert again.is_gradient_checkpointing
    assert again.training
    assert getattr(again.config, dropout) == 0.4  # what is saved with the weights
    for name in ("loss", "gradient_norm", "entropy"):
        assert rows[1][name] == pytest.approx(rows[0][name], rel=1e-5)

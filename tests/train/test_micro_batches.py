"""Sizes of micro-batches by free memory, and the activations that the plan counts."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from searchgym.train.learner.lora import adapted
from searchgym.train.plan.activations import ALL, activation_bytes
from searchgym.train.plan.micro_batches import MARGIN, SIZES, sized
from searchgym.train.plan.plan import check_plan, plan
from searchgym.train.plan.shapes import Shape
from searchgym.train.recipe.extension import with_settings_of
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.options import LoraOptions

AUTO = "optimizer.micro_batch_tokens=auto"


@pytest.mark.parametrize("gib", [60.0, 79.0, 139.0])
def test_auto_is_the_most_that_fits(gib, capsys):
    recipe = load_recipe("qwen2.5-3b-ppo", [AUTO, "critic.optimizer.micro_batch_tokens=auto"])
    gpus = recipe.learner.backend.sharding.ranks
    memory = dict.fromkeys([f"cuda:{number}" for number in range(gpus)], gib)
    chosen = sized(recipe, gpus, memory)
    tokens = chosen.optimizer.micro_batch_tokens
    assert tokens == chosen.critic.optimizer.micro_batch_tokens
    limits = dict.fromkeys(memory, MARGIN * gib)
    assert check_plan(plan(chosen, gpus, gib), limits) == []
    more = load_recipe(
        "qwen2.5-3b-ppo", [f"{name}optimizer.micro_batch_tokens={2 * tokens}" for name in ("", "critic.")]
    )
    assert tokens == SIZES[0] or check_plan(plan(more, gpus, gib), limits)
    assert f"micro_batch_tokens: {tokens} (auto: " in capsys.readouterr().err


def test_free_memory_counts_and_a_cpu_has_a_fixed_number(monkeypatch):
    recipe = load_recipe("qwen2.5-0.5b-grpo", [AUTO])
    assert sized(recipe).optimizer.micro_batch_tokens == 2048
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen = []
    for free in (139, 20, 8):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free * 2**30, 139 * 2**30))
        chosen.append(sized(recipe).optimizer.micro_batch_tokens)
    assert chosen[0] > chosen[1] > chosen[2] == SIZES[-1]
    assert sized(load_recipe("qwen2.5-0.5b-grpo")).optimizer.micro_batch_tokens == 8192


def test_a_resumed_run_takes_the_recorded_number():
    before = load_recipe("tiny-ppo", ["optimizer.micro_batch_tokens=512", "critic.optimizer.micro_batch_tokens=256"])
    again = with_settings_of(load_recipe("tiny-ppo", [AUTO, "critic.optimizer.micro_batch_tokens=auto"]), before)
    assert (again.optimizer.micro_batch_tokens, again.critic.optimizer.micro_batch_tokens) == (512, 256)
    assert with_settings_of(load_recipe("tiny-ppo", ["optimizer.micro_batch_tokens=64"]), before).optimizer == (
        load_recipe("tiny-ppo", ["optimizer.micro_batch_tokens=64"]).optimizer
    )


@pytest.mark.parametrize(("numbers", "adapter"), ALL)
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_activations_are_those_that_torch_keeps(numbers, adapter, family):
    shape = Shape(0, hidden=64, intermediate=192, layers=1, kv_width=32, vocabulary=50, tied=True)
    kept = [kept_bytes(shape, layers, numbers, adapter, family) for layers in (1, 2)]
    assert kept[1] - kept[0] == pytest.approx(activation_bytes(shape, numbers, "none", adapter), rel=0.03)


def kept_bytes(shape, layers, numbers, adapter, family, tokens=512):
    """Bytes per token that a model keeps for the backward pass, without its weights and their rounded copies."""
    config = AutoConfig.for_model(
        family, hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=shape.vocabulary,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if numbers == "bfloat16" else torch.float32)
    adapted(model, LoraOptions(rank=1 if adapter else 0), 0, 0)
    shapes = {weight.shape for weight in model.parameters()} | {weight.t().shape for weight in model.parameters()}
    kept, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # so that no later tensor takes its place
        if tensor.shape not in shapes:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=numbers == "mixed"):
        model.model(input_ids=torch.randint(0, 50, (2, tokens // 2)), use_cache=False)
    return sum(kept.values()) / tokens

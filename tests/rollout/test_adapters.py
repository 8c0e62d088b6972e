"""Adapters of others: every weight has a place, every place a weight, and nothing but plain LoRA reaches peft."""

import json
import shutil
import sys
import warnings

import pytest
import torch
from made_models import save_tiny, tiny_qwen2
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from searchgym.errors import DataError, UsageError
from searchgym.rollout.foreign import adapters, configs
from searchgym.rollout.loading import load_model
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.vllm.start import load_vllm

A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B0 = A0.replace("lora_A", "lora_B")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("base") / "model")


def save_adapter(folder, base, **options):
    """An adapter with random matrices, as peft itself writes it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        settings = {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}
        adapted = get_peft_model(tiny_qwen2(), LoraConfig(**(settings | options)))
        for name, weight in adapted.named_parameters():
            if ".lora_" in name:
                torch.nn.init.normal_(weight, std=0.1)
    adapted.save_pretrained(folder)
    change_config(folder, base_model_name_or_path=str(base))
    return folder


def change_config(folder, **entries):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def change_weights(folder, change):
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({name: weight.contiguous() for name, weight in change(weights).items()}, file)


@pytest.fixture
def adapter(tmp_path, base):
    return save_adapter(tmp_path / "adapter", base)


@pytest.fixture(scope="module")
def made(tmp_path_factory, base):
    return save_adapter(tmp_path_factory.mktemp("made") / "adapter", base)


FORMS = {
    "plain": {},
    "one scale for each rank": {"use_rslora": True},
    "directions and magnitudes": {"use_dora": True},
    "ranks and scales by matrix": {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"layers.1.mlp.down_proj": 2}},
    "a pattern of matrices": {"target_modules": r".*\.(self_attn|mlp)\.(k|up)_proj"},
    "one layer": {"layers_to_transform": [1]},
    "all matrices": {"target_modules": "all-linear"},
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("form", FORMS)
def test_a_whole_adapter_is_merged_as_peft_does(form, tmp_path, base):
    folder = save_adapter(tmp_path / "adapter", base, **FORMS[form])
    wanted = PeftModel.from_pretrained(tiny_qwen2(), str(folder)).merge_and_unload().state_dict()
    model, _ = load_model(folder)
    got, plain = model.state_dict(), tiny_qwen2().state_dict()
    assert got.keys() == wanted.keys() == plain.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert not all(torch.equal(got[name], plain[name]) for name in wanted)


def without(weights, *parts):
    return {name: weight for name, weight in weights.items() if not all(part in name for part in parts)}


DAMAGE = {
    "no B": (lambda w: without(w, "lora_B"), "4 weights are missing, .*lora_B.weight among them"),
    "one of all": (lambda w: without(w, "layers.1", "down_proj", "lora_A"), "1 weights are missing"),
    "a layer": (lambda w: without(w, "layers.1"), "4 weights are missing"),
    "other names": (lambda w: {f"model.{n}": x for n, x in w.items()}, "8 weights are missing.*; 8 weights fit noth"),
    "another tensor": (lambda w: {"x": torch.zeros(1)}, "8 weights are missing, .*; 1 weights fit nothing, x among"),
    "one too many": (
        lambda w: w | {A0.replace("q_", "v_"): w[A0].clone()},
        "adapter: the adapter .* 1 weights fit noth",
    ),
    "a layer too many": (lambda w: w | {A0.replace(".0.", ".7."): w[A0].clone()}, "1 weights fit nothing"),
    "another rank": (lambda w: w | {A0: torch.zeros(4, 32)}, r"shape \(4, 32\), by .*json it is \(2, 32\)"),
    "another width": (lambda w: w | {B0: torch.zeros(16, 2)}, "lora_B.weight is 16 wide there, 32 here"),
    "one number": (lambda w: w | {A0: torch.zeros(())}, r"has the shape \(\)"),
    "not a number": (lambda w: w | {A0: w[A0] * torch.nan}, "lora_A.weight holds numbers that are not finite"),
    "infinite in half": (lambda w: w | {A0: torch.full((2, 32), 1e6).half()}, "holds numbers that are not finite"),
    "an infinite product": (lambda w: w | {n: torch.full_like(w[n], 1e30) for n in (A0, B0)}, "is not finite with it"),
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("damage", DAMAGE)
def test_an_adapter_that_does_not_fit_is_refused(damage, adapter):
    change, said = DAMAGE[damage]
    change_weights(adapter, change)
    with pytest.raises(DataError, match=said):
        load_model(adapter)


@pytest.mark.parametrize("damage", ["no B", "other names", "not a number"])
def test_a_sampler_on_vllm_refuses_it_before_an_engine_starts(damage, adapter):
    change, said = DAMAGE[damage]
    change_weights(adapter, change)
    for kind in ("separate", "merged"):
        with pytest.raises(DataError, match=said):
            load_vllm(adapter, "float32", requests=1, options=Vllm(adapters=kind))


def test_an_adapter_of_nothing_is_refused(adapter):
    change_weights(adapter, lambda weights: {})
    change_config(adapter, target_modules=["conv"])
    with pytest.raises(DataError, match="target_modules names no matrix of its base"):
        load_model(adapter)


PATTERN = "(.*.*.*.*.*.*.*.*.*.*)*Z"
ENTRIES = {
    "megatron_config": {"a": 1},
    "megatron_core": "megatron.evil",
    "auto_mapping": {"base_model_class": "x", "parent_library": "antigravity"},
    "layer_replication": [[0, 1]] * 20_000,
    "modules_to_save": ["lm_head"],
    "trainable_token_indices": [10**9],
    "corda_config": {"cache_file": "/etc/passwd"},
    "init_lora_weights": "pissa",
    "peft_type": "PROMPT_TUNING",
    "task_type": "SEQ_CLS",
    "bias": "all",
    "lora_bias": True,
    "r": 10**8,
    "lora_alpha": float("nan"),
    "lora_dropout": float("inf"),
    "target_modules": [PATTERN],
    "layers_to_transform": list(range(100_000)),
    "layers_pattern": [PATTERN],
    "exclude_modules": PATTERN,
    "rank_pattern": {PATTERN: 2},
    "alpha_pattern": {"q_proj": 1e300},
    # variants of the same kinds
    "target_parameters": ["experts"],
    "loftq_config": {"loftq_bits": 4},
    "something_new": "module:function",
    "use_rslora": 1,
    "fan_in_fan_out": "yes",
    "base_model_name_or_path": {"a": 1},
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_no_plain_adapter_has_is_refused_before_peft_sees_it(entry, tmp_path, made):
    folder = shutil.copytree(made, tmp_path / "adapter")
    (folder / "evil.py").write_text("")
    change_config(
        folder, **{entry: ENTRIES[entry]}, **({"megatron_core": "evil"} if entry == "megatron_config" else {})
    )
    with pytest.raises(DataError, match=rf"adapter_config.json: {entry} is .*, which no plain LoRA adapter has"):
        load_model(folder)
    assert not {"antigravity", "evil"} & sys.modules.keys()


@pytest.mark.parametrize("content", [[1], "text", None, 5])
def test_a_configuration_that_is_no_object_is_refused(content, adapter):
    (adapter / "adapter_config.json").write_text(json.dumps(content))
    for read in (load_model, lambda folder: load_vllm(folder, "float32", requests=1, options=Vllm())):
        with pytest.raises(DataError, match=r"adapter_config.json: expected one JSON object, got"):
            read(adapter)


@pytest.mark.parametrize("entry", ["r", "lora_alpha", "target_modules"])
def test_a_configuration_names_what_it_lacks(entry, adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({k: v for k, v in config.items() if k != entry}))
    with pytest.raises(DataError, match=rf"adapter_config.json: has no {entry}"):
        load_model(adapter)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(?:[a-z_.\d]+?)+?" * 3 + r"[qkvo]_proj[\w.]", "cannot be matched: regex timed out; list the names"),
        (r"(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)[qkvo]_proj\1\2\3\4\5\6\7\8.", "cannot be matched: regex timed out"),
        ("([", "cannot be matched: unterminated character set"),
        (PATTERN, "names no matrix"),
        ("(?:" * 150 + "x" + ")*" * 150, "names no matrix"),
    ],
)
def test_a_pattern_that_does_not_end_is_refused(pattern, said, adapter, monkeypatch):
    monkeypatch.setattr(adapters, "MATCH_SECONDS", 0.1)
    change_config(adapter, target_modules=pattern)
    with pytest.raises(DataError, match=rf"target_modules.*{said}"):
        load_model(adapter)


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj|" * configs.LONGEST_PATTERN,
        "(?:a?){1000000}" * 20,
        "(?R)?x|.(?R)",
        "(?:model.){e<=60}q",
        "(?P<a>(?&a)?.)*!",
    ],
)
def test_a_pattern_is_short_and_made_of_plain_parts(pattern, adapter):
    """Each of the others takes seconds, or gigabytes, before a match that a time limit could end."""
    change_config(adapter, target_modules=pattern)
    with pytest.raises(DataError, match="target_modules is '"):
        load_model(adapter)


@pytest.mark.parametrize(
    "pattern", [r"^(?!.*visual).*(?:[qk]|v)_proj$", r"(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp)\.(?:up_proj))"]
)
def test_patterns_that_others_write_are_read(pattern, tmp_path, base):
    load_model(save_adapter(tmp_path / "adapter", base, target_modules=pattern))


def test_an_adapter_beside_a_model_is_refused(adapter, base, tmp_path):
    """Transformers would load the adapter's base, and the adapter by peft."""
    folder = shutil.copytree(base, tmp_path / "both")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapter / name, folder)
    with pytest.raises(DataError, match=r"holds a model and an adapter: move adapter_config.json"):
        load_model(folder)
    (folder / "model.safetensors").unlink()  # as adapters of the hub that have their base's config.json
    assert not torch.equal(
        load_model(folder)[0].state_dict()["model.layers.0.self_attn.q_proj.weight"],
        tiny_qwen2().state_dict()["model.layers.0.self_attn.q_proj.weight"],
    )


def test_an_adapters_own_tokenizer_must_fit_its_base(adapter, base):
    for file in base.glob("tokenizer*"):
        shutil.copy(file, adapter)
    load_model(adapter)
    tokenizer = json.loads((adapter / "tokenizer.json").read_text())
    more = dict(tokenizer["added_tokens"][0])
    tokenizer["added_tokens"] += [more | {"id": 10_000 + i, "content": f"<|{i}|>"} for i in range(200)]
    (adapter / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match=r"the tokenizer has .* tokens, the model 512"):
        load_model(adapter)


def test_a_merged_adapter_can_be_trained(adapter):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _ = load_model(adapter)
    assert not model.training and all(parameter.requires_grad for parameter in model.parameters())

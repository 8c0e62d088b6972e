"""Memory plans: of models whose sizes are known, and of every shipped recipe."""

import dataclasses
import json

import pytest
from transformers import AutoConfig

from searchgym.cli import main
from searchgym.errors import DataMissingError, UsageError
from searchgym.options.cards import list_cards
from searchgym.rollout.sampler_kind import Part
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.train.plan.plan import check_plan, memory_here, plan
from searchgym.train.plan.shapes import adapter_parameters, model_shape
from searchgym.train.recipe.backends.deepspeed import DeepSpeed
from searchgym.train.recipe.load import load_recipe

QWEN = {  # as published; the parameters too
    "0.5B": (896, 4864, 24, 14, 2, 151936, True, 494_032_768),
    "3B": (2048, 11008, 36, 16, 2, 151936, True, 3_085_938_688),
    "7B": (3584, 18944, 28, 28, 4, 152064, False, 7_615_616_512),
}
GIB = 2**30


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders that hold a configuration and nothing else."""
    folder = tmp_path_factory.mktemp("models")
    for name, (hidden, intermediate, layers, heads, groups, vocabulary, tied, _) in QWEN.items():
        config = AutoConfig.for_model(
            "qwen2",
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            vocab_size=vocabulary,
            tie_word_embeddings=tied,
        )
        config.save_pretrained(folder / name)
    return folder


def large(name, models, **changes):
    recipe = load_recipe(name)
    changes = {"model": str(models / recipe.model.removesuffix("-Instruct").split("-")[-1])} | changes
    return dataclasses.replace(recipe, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("size", QWEN)
def test_shapes_are_read_without_weights(models, size):
    shape = model_shape(str(models / size))
    hidden, intermediate, layers, heads, groups, vocabulary, _, parameters = QWEN[size]
    assert shape.parameters == parameters
    assert (shape.hidden, shape.intermediate, shape.layers, shape.vocabulary) == (
        hidden,
        intermediate,
        layers,
        vocabulary,
    )
    assert shape.kv_width == hidden // heads * groups


def test_parts_by_hand(models):
    """7B, ZeRO 3 over 8 ranks, bfloat16: 2 bytes of weights, 4 of gradients, 16 of optimizer, an eighth of each."""
    parts = {p.what: p for p in plan(large("qwen2.5-7b-grpo", models), gpus=8) if p.device == "cuda:3"}
    count = QWEN["7B"][-1]
    assert parts["policy: weights"].gib == pytest.approx(count * 2 / 8 / GIB)
    assert parts["policy: gradients"].gib == pytest.approx(count * 4 / 8 / GIB)
    assert parts["policy: optimizer"].gib == pytest.approx(count * 16 / 8 / GIB)
    assert parts["policy: logits"].gib == pytest.approx(
        4 * (3 * 4096 * 32_768 + 152064 * 3584) / GIB
    )  # tiles, and the head's gradient
    assert parts["reference: weights"].gib == pytest.approx(count * 2 / GIB)
    assert not any(what.startswith("sampler") for what in parts)
    layer = 20 * 3584 + 4 * 512 + 8 * 18944
    assert parts["policy: activations"].gib == pytest.approx(1.1 * 4096 * (2 * 28 * 3584 + layer) / GIB)
    sampler = {p.what: p.gib for p in plan(large("qwen2.5-7b-grpo", models), gpus=8) if p.what.startswith("sampler")}
    assert sampler["sampler: weights"] == pytest.approx(count * 2 / GIB)
    assert sampler["sampler: keys and values, remembered"] == pytest.approx(65_536 * 2 * 28 * 512 * 2 / GIB)


def test_each_controller_has_libraries_and_models_of_its_own():
    one, four = ({p.what: p.gib for p in plan(load_recipe("tiny-grpo", [f"rollout.controllers={n}"]))} for n in (1, 4))
    sampled = [what for what in one if what.startswith("sampler")]
    assert four["Python and libraries"] == 4 * one["Python and libraries"] and sampled
    assert all(four[f"other controllers: {what}"] == pytest.approx(3 * one[what]) for what in sampled)
    assert set(four) - set(one) == {f"other controllers: {what}" for what in sampled}


@pytest.mark.parametrize(
    "name", [name for name in list_cards("train") if not name.startswith(("tiny", "smol", "qwen-"))]
)
def test_large_recipes_fit_what_they_are_for(models, name):
    recipe = large(name, models)
    ranks = recipe.learner.backend.sharding.ranks
    parts = plan(recipe, gpus=ranks)
    memory = {f"cuda:{rank}": 79.0 for rank in range(ranks)} | {"cpu": 160.0}
    assert check_plan(parts, memory) == []
    assert any("cuda:0 has 10.0 GiB, phase policy" in line for line in check_plan(parts, dict.fromkeys(memory, 10.0)))
    sampler = "sampler" if recipe.rollout.sampler == Transformers() else "vLLM"
    assert {p.what.split(":")[0] for p in parts} >= {sampler, "policy"} | ({"critic"} if recipe.has_critic else set())


def test_an_adapter_is_planned_as_its_base(models, tmp_path):
    card = {"base_model_name_or_path": str(models / "0.5B"), "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(card), encoding="utf-8")
    assert model_shape(str(tmp_path)) == model_shape(str(models / "0.5B"))
    assert plan(load_recipe("smol-grpo")) == plan(load_recipe("smol-grpo", ["model=smollm2"]))


def test_engines_take_their_share_and_adapters_little(models):
    gpus = plan(large("qwen2.5-7b-grpo-vllm", models), gpus=8)
    assert [p.gib for p in gpus if p.what == "vLLM: its share"] == [pytest.approx(0.35 * 79)] * 8
    assert {p.phases for p in gpus if p.what == "vLLM: its share"} == {("draw",)}  # it sleeps while they learn
    adapted, whole = (large("qwen2.5-7b-lora-vllm", models), large("qwen2.5-7b-grpo", models))
    parts = {p.what: p.gib for p in plan(adapted, gpus=1)}
    layer = (
        2 * 3584 + 2 * (3584 + 512) + 2 * 3584 + 3 * (3584 + 18944)
    )  # in and out of q, k and v, o, gate, up and down
    assert adapter_parameters(adapted.model, adapted.lora) == 64 * 28 * layer
    assert parts["policy: optimizer"] == pytest.approx(64 * 28 * layer * 8 / GIB)
    assert parts["policy: weights"] == pytest.approx((QWEN["7B"][-1] * 2 + 64 * 28 * layer * 4) / GIB)
    assert "reference: weights" not in parts
    assert parts["weights on their way to vLLM"] == pytest.approx(3 * 64 * 28 * layer * 4 / GIB)
    sent = [p.gib for p in gpus if p.device == "cpu" and p.what == "weights on their way to vLLM"]
    assert sent == [pytest.approx(2 * QWEN["7B"][-1] * 2 / GIB)]
    tied = {p.what: p.gib for p in plan(large("qwen2.5-3b-grpo-vllm", models), gpus=1)}
    assert tied["weights on their way to vLLM"] == pytest.approx(2 * (QWEN["3B"][-1] + 151936 * 2048) * 2 / GIB)
    shared = [p.gib for p in plan(large("qwen2.5-3b-grpo-vllm", models), gpus=1) if p.what.endswith("CUDA context")]
    assert shared == [0.6, 0.6]  # the learner's and the engine's
    assert any(p.what == "reference: weights" for p in plan(whole, gpus=8))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu_share": 0.1}, r"gpu_share 0.1 is 7.9 GiB of a GPU, too little: its weights and one full context take"),
        ({"replicas": 9, "gpus": None}, "vLLM's replica 8 takes GPU 8, there are 8"),
        ({"gpus": [0, 1]}, "names 2 GPUs: 8 replicas on 1 each take 8"),
    ],
)
def test_engines_that_do_not_fit(models, changes, said):
    recipe = large("qwen2.5-7b-grpo-vllm", models)
    sampler = dataclasses.replace(recipe.rollout.sampler, **changes)
    with pytest.raises(UsageError, match=said):
        plan(dataclasses.replace(recipe, rollout=dataclasses.replace(recipe.rollout, sampler=sampler)), gpus=8)


@pytest.mark.parametrize(
    ("zero", "dtype", "offload", "kept", "passing"),
    [
        (0, "float32", False, 8, 4),
        (1, "float32", False, 12 / 4, 4 + 4 / 4),
        (1, "bfloat16", False, 12 / 4, 4 + 2),
        (2, "bfloat16", False, 12 / 4, 4 / 4),
        (2, "float32", False, 12 / 4, 8 / 4),
        (3, "bfloat16", False, 16 / 4, 4 / 4),
        (3, "float32", False, 12 / 4, 4 / 4),
        (1, "bfloat16", True, 18 / 4, 4 + 2),
        (2, "bfloat16", True, 18 / 4, 4 / 4),
        (3, "bfloat16", True, 20 / 4, 0),
    ],
)
def test_bytes_of_optimizer_and_gradients_per_parameter(models, zero, dtype, offload, kept, passing):
    recipe = large("qwen2.5-7b-grpo", models)
    backend = dataclasses.replace(recipe.learner.backend, ranks=4, zero=zero, offload_optimizer=offload)
    learner = dataclasses.replace(recipe.learner, backend=backend, dtype=dtype)
    parts = plan(dataclasses.replace(recipe, learner=learner), gpus=4)
    whole = QWEN["7B"][-1] / GIB
    for what, each in (("optimizer", kept), ("gradients", passing)):
        ranks = 4 if offload and what == "optimizer" else 1  # all of them in the machine's memory
        found = [p.gib for p in parts if p.what == f"policy: {what}" and p.device in ("cpu", "cuda:2")]
        assert sum(found) == pytest.approx(ranks * whole * each)


@pytest.mark.parametrize(
    ("zero", "base", "adapter", "kept", "passing"),
    [(0, 1, 1, 8, 4), (1, 1, 1, 12 / 4, 4 + 4 / 4), (2, 1, 1, 12 / 4, 8 / 4), (3, 1 / 4, 1 / 4, 12 / 4, 4 / 4)],
)
def test_an_adapter_is_sharded_and_its_base_only_by_zero_3(models, zero, base, adapter, kept, passing):
    """7B over 4 ranks: 2 bytes of base, and an adapter in float32 with its copy, moments and gradients."""
    recipe = large("qwen2.5-7b-lora-vllm", models)
    backend = DeepSpeed(ranks=4, zero=zero)
    recipe = dataclasses.replace(recipe, learner=dataclasses.replace(recipe.learner, backend=backend))
    parts = {p.what: p.gib for p in plan(recipe, gpus=4) if p.device == "cuda:2"}
    count, trained = QWEN["7B"][-1], adapter_parameters(recipe.model, recipe.lora)
    assert parts["policy: weights"] == pytest.approx((2 * count * base + 4 * trained * adapter) / GIB)
    assert parts["policy: optimizer"] == pytest.approx(trained * kept / GIB)
    assert parts["policy: gradients"] == pytest.approx(trained * passing / GIB)
    assert "reference: weights" not in parts


def test_adapters_share_a_base_within_a_process_and_not_between_ranks():
    changes = ["lora.rank=8", "rollout.sampler=transformers", "models={planner: {roles: [planner]}, generator: {}}"]
    weights = {}
    for backend in ("torch", "deepspeed"):
        recipe = load_recipe("tiny-searchplanner", [*changes, f"learner.backend={backend}"])
        parts = {p.what: p.gib for p in plan(recipe, gpus=1)}
        weights[backend] = [parts[f"{key} policy: weights"] for key in ("planner", "generator")]
    base = 4 * model_shape("tiny-teams").parameters / GIB
    assert weights["torch"][0] == pytest.approx(base + weights["torch"][1])
    assert weights["deepspeed"] == [weights["torch"][0]] * 2


def test_what_is_offloaded_lies_in_the_machines_memory(models):
    recipe = large("qwen2.5-7b-ppo", models)
    backend = dataclasses.replace(recipe.learner.backend, offload_optimizer=True, offload_parameters=True)
    learner = dataclasses.replace(recipe.learner, backend=backend)
    moved = [p.what for p in plan(dataclasses.replace(recipe, learner=learner), gpus=8) if p.device == "cpu"]
    offloaded = ["critic: optimizer", "critic: weights", "policy: optimizer", "policy: weights"]
    assert sorted(set(moved) - {"retriever: vectors", "Python and libraries"}) == offloaded


def test_phases_are_added_up_apart():
    parts = [Part("cpu", "a", 3.0), Part("cpu", "b", 4.0, ("policy",)), Part("cpu", "c", 5.0, ("critic",))]
    assert check_plan(parts, {"cpu": 8.0}) == []
    assert check_plan(parts, {"cpu": 6.5}) == [
        "main memory has 6.5 GiB, phase policy needs 7.0",
        "main memory has 6.5 GiB, phase critic needs 8.0",
    ]


def test_a_plan_that_cannot_be(models):
    with pytest.raises(UsageError, match=r"learner\.backend\.ranks is 8, there are 2 GPUs"):
        plan(large("qwen2.5-7b-grpo", models), gpus=2)
    with pytest.raises(DataMissingError, match="no such folder"):
        plan(large("qwen2.5-7b-grpo", models, model=str(models / "none")), gpus=8)
    assert 0 < memory_here()["cpu"] < 10**5


@pytest.mark.slow
def test_the_command_prints_and_refuses(models, monkeypatch, capsys):
    def cli(*args):
        monkeypatch.setattr("sys.argv", ["searchgym", "train", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    status, out, _ = cli("tiny-grpo", "--plan")
    assert status == 0
    assert "policy: optimizer" in out
    status, out, _ = cli("tiny-grpo", "--plan", "--json")
    assert status == 0
    assert {part["device"] for part in json.loads(out)["parts"]} == {"cpu"}
    name = f"model={models / '7B'}"
    status, out, err = cli("qwen2.5-7b-grpo", name, "--plan", "--gpus", "8", "--gpu-gib", "24")
    assert status == 2
    assert "cuda:1 to cuda:7, each" in out
    assert "does not fit: cuda:0 has 24.0 GiB" in err


def test_a_working_folder_file_is_no_config_of_a_shipped_model(tmp_path, monkeypatch):
    config = {"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    (tmp_path / "tiny").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    shipped = json.loads((list_cards("models")["tiny"].parent / "config.json").read_text())
    model_shape.cache_clear()
    assert model_shape("tiny").hidden == shipped["hidden_size"]
    model_shape.cache_clear()

"""Whether a plan fits: sizes without a network, capacity, hours, and changes that make it fit."""

import json

import pytest
from transformers import AutoConfig

from searchgym.cli import main
from searchgym.errors import UsageError
from searchgym.options.cards import list_cards
from searchgym.rollout.folders import only_on_hub
from searchgym.train.plan.fit import fits_of, suggestions, with_values
from searchgym.train.plan.plan import Part, check_plan, plan
from searchgym.train.plan.shapes import KNOWN, model_shape
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.preflight import missing_data, vectors_gib

LARGE = [name for name in list_cards("train") if name.startswith("qwen2.5")]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    def asked():
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("searchgym.rollout.folders.hub_answers", asked)


@pytest.fixture
def cli(monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr("sys.argv", ["searchgym", "train", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_the_sizes_of_the_recipes_models_are_known_without_a_network():
    assert {load_recipe(name).model for name in LARGE} <= KNOWN.keys()
    published = {"0.5B": 494_032_768, "3B": 3_085_938_688, "7B": 7_615_616_512}
    for size, parameters in published.items():
        assert model_shape(f"Qwen/Qwen2.5-{size}").parameters == parameters
    assert model_shape("Qwen/Qwen2.5-7B-Instruct@main") == model_shape("Qwen/Qwen2.5-7B")


@pytest.mark.slow_cases
@pytest.mark.parametrize("folder", [False, True])
def test_sizes_come_from_a_config_that_is_given(cli, tmp_path, folder):
    AutoConfig.for_model("qwen2", **KNOWN["Qwen/Qwen2.5-3B"]).save_pretrained(tmp_path)
    given = tmp_path if folder else (tmp_path / "config.json").rename(tmp_path / "mine.json")
    _, out, _ = cli("qwen2.5-7b-grpo", "--plan", "--gpus", 8, "--config", given, "--json")
    (weights,) = (part["gib"] for part in json.loads(out)["parts"] if part["what"] == "sampler: weights")
    assert weights == pytest.approx(3_085_938_688 * 2 / 2**30)
    status, _, err = cli("tiny-grpo", "--plan", "--config", tmp_path / "none.json")
    assert status == 2 and "no such file: --config takes a config.json" in err
    (tmp_path / "bad.json").write_text("{")
    status, _, err = cli("tiny-grpo", "--plan", "--config", tmp_path / "bad.json")
    assert status == 1 and "bad.json:1: not JSON" in err
    status, _, err = cli("tiny-grpo", "--config", given)
    assert status == 2 and "--config is for --plan" in err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--gpus 1 --gpu-gib nan", "--gpu-gib must be a number above 0, got nan"),
        ("--cpu-gib -2", "--cpu-gib must be a number above 0, got -2"),
        ("--step-seconds inf", "--step-seconds must be a number above 0, got inf"),
        ("--gpu-gib 40", "--gpu-gib is the memory of each of --gpus"),
        ("--step-seconds 5 --device h200", "leave out --device and --episode-tokens"),
        ("--episode-tokens 0 5", "two numbers above 0, got 0 and 5"),
        ("--explain", "--plan and --explain: choose one"),
    ],
)
def test_options_that_make_no_sense(cli, given, message):
    status, out, err = cli("tiny-grpo", "--plan", *given.split())
    assert status == 2 and message in err and not out


def test_need_and_rest_of_each_device_by_hand():
    parts = [Part("cpu", "a", 3.0), Part("cpu", "b", 4.0, ("policy",)), Part("cuda:0", "c", 5.0, ("draw",))]
    cpu, gpu = fits_of(parts, {"cpu": 8.0, "cuda:0": 4.0})
    assert (cpu.need, cpu.phase, cpu.left) == (7.0, "policy", 1.0)
    assert (gpu.need, gpu.phase, gpu.left) == (5.0, "draw", -1.0)


@pytest.mark.slow
def test_a_plan_shows_capacity_fit_and_hours(cli):
    status, out, err = cli("qwen2.5-7b-grpo", "--plan", "--gpus", 8, "--step-seconds", 36)
    assert status == 0
    assert " capacity " in out and " 79.00 " in out and " left " in out
    assert "cuda:0: has 79.0 GiB, needs 59.5 (policy); fits: yes, 19.5 GiB left" in err
    assert "cuda:1 to cuda:7, each: has 79.0 GiB, needs 45.3 (policy); fits: yes, 33.7 GiB left" in err
    assert "hours: 10 (36 s a step)" in err  # 1005 steps
    status, out, _ = cli("tiny-grpo", "--plan", "--json")
    (fit,) = json.loads(out)["fits"]
    assert fit["left"] == pytest.approx(fit["capacity"] - fit["need"]) and fit["left"] > 0
    step = json.loads(out)["step"]
    assert json.loads(out)["hours"] == pytest.approx(20 * step["seconds"] / 3600) and step["basis"] == "prediction"
    err = cli("tiny-grpo", "--plan")[2]
    assert "limits; within a factor of 2, since lengths of episodes are assumed (--episode-tokens))" in err
    assert "hours: unknown (give --device" in cli("tiny-grpo", "--plan", "--gpus", 1)[2]
    assert (
        "since a100 was never measured)"
        in cli("tiny-grpo", "--plan", "--gpus", 1, "--device", "a100", "--episode-tokens", 50, 300)[2]
    )
    status, _, err = cli("tiny-grpo", "--plan", "--episode-tokens", 0, 300)
    assert status == 2 and "--episode-tokens takes two numbers above 0, got 0 and 300" in err
    status, _, err = cli("tiny-grpo", "--plan", "--device", "h20")
    assert status == 2 and "unknown device 'h20'; did you mean 'h200'?" in err


@pytest.mark.slow
def test_what_does_not_fit_is_told_with_changes_that_make_it_fit(cli):
    status, out, err = cli("qwen2.5-7b-grpo", "--plan", "--gpus", 1, "--cpu-gib", 256)
    assert (status, out) == (2, "")
    assert "it fits with learner.backend.ranks=1 learner.backend.offload_optimizer=true (24.8 GiB left" in err
    assert "lora.rank=64" in err
    assert "error: the training does not fit: learner.backend.ranks is 8, there are 1 GPUs" in err
    status, _, err = cli("qwen2.5-7b-grpo", "--plan", "--gpus", 8, "--gpu-gib", 8, "--cpu-gib", 64)
    assert status == 2
    assert "fits: no, " in err and "GiB too little" in err
    assert "ZeRO, offloading or LoRA make it fit: take more or larger GPUs, or another model" in err


@pytest.mark.slow
def test_main_memory_of_another_machine_is_checked_if_given(cli, monkeypatch):
    monkeypatch.setattr("searchgym.train.plan.plan.memory_here", lambda: {"cpu": 4.0})  # a laptop's
    vllm = ("qwen2.5-7b-grpo-vllm", "--plan", "--gpus", 8)
    status, _, err = cli(*vllm)
    assert status == 0
    assert "main memory: needs 93.9 GiB (draw); --cpu-gib checks whether a machine has it" in err
    status, out, _ = cli(*vllm, "--json")
    (cpu,) = (fit for fit in json.loads(out)["fits"] if fit["device"] == "cpu")
    assert (status, cpu["capacity"], cpu["left"]) == (0, None, None)
    status, _, err = cli(*vllm, "--cpu-gib", 16)
    assert status == 2
    assert "take a machine with 94 GiB of main memory" in err and "larger GPUs" not in err
    assert "does not fit: main memory has 16.0 GiB, phase draw needs 93.9" in err


def test_vectors_that_are_searched_in_main_memory_are_counted(tmp_path, monkeypatch):
    """21,015,324 passages of 768 numbers of 4 bytes; or as many as an index folder says."""
    name = "qwen2.5-7b-grpo"

    def gib(*changes):
        return vectors_gib(load_recipe(name, changes), 8).get("cpu", 0.0)

    assert gib() == pytest.approx(21_015_324 * 768 * 4 / 2**30)
    assert gib("env_options={questions: x, retriever: bm25}") == 0.0
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "manifest.json").write_text('{"passages": 1000}')
    corpus = f"questions: x, corpus: {tmp_path / 'index'}"
    assert gib(f"env_options={{{corpus}, retriever: e5-flat}}") == pytest.approx(1000 * 768 * 4 / 2**30)
    assert gib(f"env_options={{{corpus}, retriever: e5-ivf}}") == pytest.approx(1000 * (768 + 8) / 2**30)


WIKI_GIB = 21_015_324 * 768 * 4 / 2**30
"""E5's vectors of wiki-18 in float32."""


@pytest.mark.parametrize(
    ("options", "gpus", "each"),
    [
        ("device: cuda", range(8), WIKI_GIB),  # a copy on each
        ("device: cuda, float16: true", range(8), WIKI_GIB / 2),
        ("device: cuda, shard: true", range(8), WIKI_GIB / 8),
        ("device: cuda, shard: true, float16: true", range(8), WIKI_GIB / 16),
        ("device: 'cuda:3'", [3], WIKI_GIB),
    ],
)
def test_vectors_that_are_searched_on_gpus_are_counted_there(options, gpus, each):
    """With 1.5 GiB that FAISS reserves on each."""
    retriever = f"{{kind: dense, encoder: e5-base-v2, index: flat, {options}}}"
    recipe = load_recipe("qwen2.5-7b-grpo", [f"env_options={{questions: x, retriever: {retriever}}}"])
    parts = plan(recipe, gpus=8)
    vectors = {part.device: part.gib for part in parts if part.what == "retriever: vectors"}
    assert vectors == {f"cuda:{gpu}": pytest.approx(each + 1.5) for gpu in gpus}
    fits = {fit.device: fit.left >= 0 for fit in fits_of(parts, {f"cuda:{gpu}": 79.0 for gpu in range(8)})}
    assert fits["cuda:3"] == (each < 40)  # 45.2 GiB are in use without it
    contexts = [part.device for part in parts if part.what == "retriever: CUDA context"]
    assert contexts == list(vectors)  # the ranks are processes of their own


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("device: 'cuda:8'", "the retriever searches on device cuda:8, there are 8 GPUs"),
        ("device: gpu", "device of a dense card must be cpu, cuda or cuda:N, got 'gpu'"),
        ("device: cuda, index: hnsw", "FAISS searches hnsw on the CPU only"),
    ],
)
def test_a_plan_refuses_devices_that_cannot_be_searched(options, reason):
    retriever = f"{{kind: dense, encoder: e5-base-v2, {options}}}"
    recipe = load_recipe("qwen2.5-7b-grpo", [f"env_options={{questions: x, retriever: {retriever}}}"])
    with pytest.raises(UsageError, match=reason):
        plan(recipe, gpus=8)


def test_an_engines_share_is_among_the_changes(cli):
    """0.35 of 40 GB is too little for 14.2 GiB of weights and a context."""
    status, _, err = cli("qwen2.5-7b-grpo-vllm", "--plan", "--gpus", 8, "--gpu-gib", 40)
    assert status == 2
    assert "it fits with rollout.sampler.gpu_share=0.4 learner.backend.offload_optimizer=true (6.8 GiB left" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(("gpus", "gib"), [(1, 79.0), (2, 40.0)])
def test_suggested_changes_fit_as_they_are_written(name, gpus, gib):
    """Each is put into the recipe as a user would, and planned again."""
    recipe, memory = load_recipe(name), {"cpu": 512.0} | {f"cuda:{n}": gib for n in range(gpus)}
    for found in suggestions(recipe, gpus, gib, memory):
        changed = load_recipe(name, found.changes)
        parts = plan(changed, gpus, gib)
        assert check_plan(parts, memory) == []
        assert min(fit.left for fit in fits_of(parts, memory)) == pytest.approx(found.left)


def test_a_value_is_changed_by_its_dotted_key():
    recipe = load_recipe("qwen2.5-7b-grpo-vllm")
    changed = with_values(recipe, {"rollout.sampler.gpu_share": 0.5, "steps": 7})
    assert (changed.rollout.sampler.gpu_share, changed.steps) == (0.5, 7)
    assert with_values(changed, {"rollout.sampler.gpu_share": 0.35, "steps": recipe.steps}) == recipe


# -- data that are missing -----------------------------------------------------------------------------------------


def missing(cli, recipe, *args):
    """What the plan of a recipe says is missing, as text and as JSON; without models, which a machine may have."""
    arguments = (recipe, "--plan", "--gpus", 8, "--cpu-gib", 4000, *args)
    _, out, err = cli(*arguments, "--json")
    lines = [line.removeprefix("missing here: ") for line in cli(*arguments)[2].splitlines() if "missing here" in line]
    assert json.loads(out)["missing"] == lines and "Traceback" not in err
    return [line for line in lines if not line.startswith("model ")]


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", LARGE)
def test_the_plan_of_a_large_recipe_says_what_data_are_missing(cli, name, tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    lines = missing(cli, name)
    if "selfplay" in name:
        assert lines == ["corpus.jsonl: no such corpus file or folder: check its name"]
        return
    questions = [line for line in lines if line.startswith("questions ")]
    assert questions and all("hf:" in line or "get them from" in line for line in questions)
    lines = [line for line in lines if line not in questions]
    assert "corpus 'wiki-18'" in lines[0] and "(wiki-18.jsonl.gz); get it by `searchgym corpus get wiki-18`" in lines[0]
    dense = load_recipe(name).env_options["retriever"] == "e5-flat"
    assert dense == ("mask" not in name and "jade" not in name)
    assert len(lines) == 1 + dense
    if dense:
        assert "the retriever e5-flat searches an index folder, which is not here: convert" in lines[1]
        assert f"`--out {tmp_path / 'indexes' / 'wiki-18'}`" in lines[1]


def test_models_that_neither_folder_nor_cache_holds_are_missing(tmp_path, monkeypatch):
    """The cache has files as the hub's library writes them; a configuration alone is no model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("qwen2.5-7b-grpo")
    ends = "downloaded when the training starts"
    qwen, e5 = f"model Qwen/Qwen2.5-7B: {ends}", f"model intfloat/e5-base-v2: {ends}"
    assert missing_data(recipe)[-2:] == [qwen, e5]
    cached = tmp_path / "hub" / "models--Qwen--Qwen2.5-7B"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "snapshots" / "abc" / "config.json").write_text("{}")
    assert missing_data(recipe)[-2:] == [qwen, e5]
    (cached / "snapshots" / "abc" / "model.safetensors").touch()
    assert qwen not in missing_data(recipe) and e5 in missing_data(recipe)
    (tmp_path / "intfloat" / "e5-base-v2").mkdir(parents=True)
    assert not any(line.startswith("model ") for line in missing_data(recipe))
    assert not any(only_on_hub(name) for name in ("tiny", "./a/b", "package:a/b", *list_cards("pretrained")))


def test_a_plan_without_a_gpu_says_so_first(cli):
    line = "this machine has no GPU: the plan is for its processors; --gpus N plans for another machine"
    assert cli("tiny-grpo", "--plan")[2].splitlines()[0] == line
    assert line not in cli("tiny-grpo", "--plan", "--gpus", 1)[2]
    assert line not in cli("tiny-grpo", "--plan", "learner.device=cpu")[2]


HUB = "hf:RUC-NLPIR/FlashRAG_datasets:hotpotqa/dev"
"""Validation questions of the large recipes."""


@pytest.mark.slow
def test_what_is_here_or_not_searched_is_not_missing(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    assert missing(cli, "tiny-grpo") == []
    (line,) = missing(cli, "tiny-grpo", "env_options={questions: mine.jsonl}", "validation.every=0")
    assert line == "questions mine.jsonl: no such file"
    for options in (
        "{retriever: 'http://127.0.0.1:9'}",
        "{corpus: demo, retriever: bm25}",
        "{corpus: demo, retriever: e5-flat}",  # small: it is encoded at first use
        "{distractors: true}",
    ):
        lines = missing(cli, "qwen2.5-3b-grpo", f"env_options={options}")
        assert [line.partition(":")[0] for line in lines] == [
            "questions nq_test.jsonl",
            f"questions {HUB.partition(':')[0]}",
        ]


def test_a_large_corpus_is_not_encoded_at_first_use(tmp_path, monkeypatch):
    from searchgym.corpora.folders import bundled_file
    from searchgym.envs.data import load_corpus
    from searchgym.errors import DataMissingError

    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    monkeypatch.setattr("searchgym.envs.data.LARGE", 100)
    corpus = bundled_file("demo/corpus.jsonl")
    for card in ("e5-flat", {"kind": "hybrid", "of": ["bm25", "e5-ivf"]}):
        with pytest.raises(DataMissingError, match=r"corpus.jsonl: the retriever .* searches an index folder"):
            load_corpus(corpus, card)
    assert not list(tmp_path.iterdir())
    assert len(load_corpus(corpus, "bm25")) == 25

"""What a user sees who gives `searchgym train` what cannot work: one line, a status, and nothing half-made."""

import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from made_models import tiny_qwen2, tiny_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from searchgym.cli import main
from searchgym.corpora.files import iter_jsonl
from searchgym.corpora.folders import lock_folder
from searchgym.errors import TrainingError
from searchgym.rollout.loading import load_model
from searchgym.rollout.storage import read_episodes
from searchgym.train.loop.rollout import check_contexts

RECIPE = """
name: bad-input
summary: a step on a tiny world
method: policy
model: ./model
env: searchgym/World-v0
agent: ./agent
steps: 2
env_options:
  questions: {split: train, size: 12, seed: 1, hops: [1, 2]}
  reward: test_bad_input:by_chance
  max_turns: 2
rollout: {questions: 2, attempts: 3}
optimizer: {lr: 1e-3}
validation: {every: 0}
checkpoint: {every: 1}
log: {tensorboard: false}
"""

CARD = """
name: short
summary: few tokens
workflow: searchgym.agents.monolithic:Monolithic
roles:
  searcher: {prompt: p.md, fields: [question, instructions], max_tokens: 8}
"""

calls = 0


def by_chance(state):
    """Rewards every second episode."""
    global calls
    calls += 1
    return float(calls % 2)


def equal(state):
    """Rewards all episodes alike."""
    return 0.5


def interrupting(state):
    """Sends Ctrl-C once, in the second step: a step has six episodes."""
    global calls
    calls += 1
    if calls == 8:
        os.kill(os.getpid(), signal.SIGINT)
    return float(calls % 2)


def not_finite(state):
    """No reward."""
    return float("nan")


def save(folder, **changes):
    """Writes a tiny chat model into a folder."""
    tiny_qwen2(**({"max_position_embeddings": 2048} | changes)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a model, an agent and a recipe that train together."""
    monkeypatch.setattr(sys.modules[__name__], "calls", 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    save(tmp_path / "model")
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "p.md").write_text("{instructions}\n{question}")
    (tmp_path / "agent" / "card.yaml").write_text(CARD)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def train(place, monkeypatch, capsys):
    """Runs ``searchgym train recipe.yaml ARGS --out out``; returns (exit status, what it said)."""

    def run(*args, out="out"):
        monkeypatch.setattr(sys, "argv", ["searchgym", "train", "recipe.yaml", *args, "--out", str(place / out)])
        capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return status, said

    return run


def rows(folder):
    return [row for _, row in iter_jsonl(folder / "metrics.jsonl")]


OPTIONS = "env_options={{reward: 'test_bad_input:{}', max_turns: 2, questions: {{size: {}, hops: [1, 2]}}}}"


# -- refused before anything is made -------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("override", "status", "message"),
    [
        (OPTIONS.format("equal", 1), 2, "a world of 1 questions is too small for hops [1, 2]"),
        (OPTIONS.format("equal", "many"), 2, "size: expected an integer, got 'many'"),
        (
            "validation.every=1 | validation.env_options={questions: {size: 1}}",
            2,
            "a world of 1 questions is too small",
        ),
        ("validation=1", 2, "validation is a section: give its values one by one, as validation.every=VALUE"),
        ("rollout.questions=13", 2, "12 questions for 13 per step: add more, or make the step smaller (rollout."),
        ("rollout.attempts=1", 2, "rollout.attempts is 1: no group reaches advantage.min_group, 2"),
        (
            "env_options.questions={size: 20}",
            2,
            "env_options is one value, give the whole value: env_options='{questions: ...}'",
        ),
        ("validation.env_options.questions.size=2", 2, "whole value: validation.env_options='{questions.size: ...}'"),
        (
            "env_options={world: {size: 20}}",
            2,
            "world= is an old spelling: write questions={...}, with the same fields",
        ),
        ("env_options={reward: 'test_bad_input:none'}", 2, "has no attribute 'none'"),
        ("model=nowhere", 2, "nowhere: no such folder"),
        ("method=supervised", 2, "method.demonstrations: missing key"),
    ],
)
def test_what_cannot_work_makes_no_folder(train, place, override, status, message):
    got, said = train(*override.split(" | "))
    assert (got, message in said) == (status, True), said
    assert not (place / "out").exists()


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("broken", "status", "message"),
    [
        ("tokenizer", 2, "broken: no tokenizer: none of tokenizer.json"),
        ("weights", 2, "broken: no weights: neither *.safetensors"),
        ("config", 2, "broken: no config.json: not a model folder"),
        ("template", 2, "the chat template cannot render 1 messages"),
        ("bytes", 1, "broken: the model cannot be read"),
        ("fit", 2, "tokens, the model 64: they do not belong together"),
    ],
)
def test_a_model_folder_that_lacks_something_makes_no_run(train, place, broken, status, message):
    folder = save(place / "broken", vocabulary=64) if broken == "fit" else save(place / "broken")
    if broken == "tokenizer":
        for file in folder.glob("*token*"):
            file.unlink()
    if broken == "weights":
        (folder / "model.safetensors").unlink()
    if broken == "config":
        (folder / "config.json").unlink()
    if broken == "template":
        (folder / "chat_template.jinja").write_text("{{ messages[0].nothing.at_all }}")
    if broken == "bytes":
        (folder / "model.safetensors").write_bytes(b"damaged")
    got, said = train("model=./broken")
    assert (got, message in said) == (status, True), said
    assert not (place / "out").exists()


@pytest.mark.slow
def test_a_model_without_a_chat_template_trains_as_a_base_model(train, place):
    (place / "model" / "chat_template.jinja").unlink()
    status, said = train("steps=1")
    assert status == 0, said
    prompts = {tuple(e.contexts[0].spans[0].ids) for e in read_episodes(place / "out" / "episodes.jsonl")}
    tokenizer = tiny_tokenizer()
    assert all(not set(prompt) & set(tokenizer.all_special_ids) for prompt in prompts)


# -- counted, not refused ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_equal_rewards_train_nothing_and_are_counted(train, place):
    status, said = train(OPTIONS.format("equal", 12), "steps=1")
    assert status == 0, said
    row = rows(place / "out")[1]
    assert (row["groups/groups"], row["groups/zero_variance"], row["learner/updates"]) == (2, 2, 0)
    before, after = (AutoModelForCausalLM.from_pretrained(place / n) for n in ("model", "out/checkpoints/last"))
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


@pytest.mark.slow_cases
@pytest.mark.parametrize("ahead", [[], ["rollout.staleness=1", "loss.importance_cap=2", "steps=4"]])
def test_contexts_too_short_for_the_prompt_end_the_run_in_its_first_step(ahead, train, place):
    """The prompt alone has more than 64 tokens: nothing is sampled, and nothing could be learnt."""
    save(place / "model", max_position_embeddings=64)
    status, said = train(*ahead)
    assert status == 1
    assert "6 of 6 episodes of step 1 ended because a context was full (role searcher: the context is full" in said
    assert "no prompt fitted): use a model with a longer context, shorter prompts, or smaller top_k" in said
    assert len(rows(place / "out")) == 1  # of step 0


def episode(reason, *starts):
    error = "role searcher: the context is full after 300 tokens" if reason == "context" else None
    return SimpleNamespace(stop_reason=reason, error=error, calls=[SimpleNamespace(start=start) for start in starts])


def test_contexts_that_fill_up_in_some_episodes_are_reported_once(capsys):
    some = [episode("answer", 140), episode("context", 150, 290), episode("context", 160), episode("turns", 900)]
    check_contexts(some, 1)
    said = capsys.readouterr().err
    assert said.startswith("2 of 4 episodes of step 1 ended because a context was full (role searcher: the context is")
    assert "the longest prompt that fitted has 290 tokens" in said
    check_contexts(some, 2)
    check_contexts(some[:1], 1)
    assert capsys.readouterr().err == ""
    with pytest.raises(TrainingError, match="2 of 2 episodes of step 7 ended because a context was full"):
        check_contexts(some[1:3], 7)


# -- stopped on the way --------------------------------------------------------------------------------------------


def test_a_model_that_is_not_finite_stops_before_any_checkpoint(train, place):
    model = tiny_qwen2(max_position_embeddings=2048)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    model.save_pretrained(place / "model")
    status, said = train()
    assert status == 1
    assert "the logits of Qwen2ForCausalLM are not finite" in said
    assert not list((place / "out" / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_run_without_episodes_may_be_begun_anew_in_its_folder(train, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for override, message in [
        ("log.wandb=project", "log.wandb needs Weights & Biases: pip install wandb, or leave log.wandb out"),
        (OPTIONS.format("not_finite", 12), "reward not_finite returned nan on question 'simple-validation-"),
    ]:
        status, said = train(override)
        assert status in (1, 2)
        assert message in said
    status, said = train()
    assert status == 0, said
    assert [row["step"] for row in rows(place / "out")] == [0, 1, 2]
    kept = (place / "out" / "metrics.jsonl").read_bytes()
    status, said = train("steps=1")
    assert (status, "out holds a run: continue it with --resume, or choose another folder" in said) == (2, True)
    assert (place / "out" / "metrics.jsonl").read_bytes() == kept


@pytest.mark.slow
def test_a_folder_with_a_file_of_ones_own_is_never_begun_anew(train, place):
    train(OPTIONS.format("not_finite", 12))
    (place / "out" / "notes.txt").write_text("mine")
    status, said = train()
    assert (status, "holds a run" in said) == (2, True)


def test_a_folder_in_use_is_named(train, place):
    with lock_folder(place / "out"):
        status, said = train()
    assert (status, "out is in use by another process: wait for it or choose another" in said) == (2, True)
    assert [path.name for path in (place / "out").iterdir()] == [".lock"]


def test_an_interrupt_leaves_a_checkpoint_and_says_how_to_go_on(train, place):
    status, said = train(OPTIONS.format("interrupting", 12), "checkpoint.every=0")
    assert status == 130
    assert f"interrupted: go on with the same command and --out {place / 'out'} --resume" in said
    assert [row["step"] for row in rows(place / "out")] == [0, 1]
    state = json.loads((place / "out" / "checkpoints" / "last" / "trainer.json").read_text())
    assert state["progress"]["step"] == 1
    assert (place / "out" / "curve.png").read_bytes().startswith(b"\x89PNG")
    status, said = train(OPTIONS.format("interrupting", 12), "checkpoint.every=0", "--resume")
    assert status == 0, said
    assert [row["step"] for row in rows(place / "out")] == [0, 1, 2]


# -- adapters as the model -----------------------------------------------------------------------------------------


@pytest.fixture
def adapter(train, place):
    """The adapter of a first training."""
    status, said = train("lora.rank=2", "lora.alpha=4", "steps=1", out="first")
    assert status == 0, said
    return "model=first/checkpoints/last"


@pytest.mark.slow
@pytest.mark.usefixtures("adapter")
def test_an_adapter_is_trained_on_as_a_whole_model_or_as_itself(train, place, adapter):
    status, said = train(adapter)
    assert status == 0, said
    assert rows(place / "out")[2]["learner/gradient_norm"] > 0
    whole = place / "out" / "checkpoints" / "last"
    assert (whole / "model.safetensors").is_file() and not (whole / "adapter_config.json").exists()
    before, after = load_model(adapter.removeprefix("model="))[0], load_model(whole)[0]
    moved = [n for n, p in before.named_parameters() if not torch.equal(p, after.get_parameter(n))]
    assert "model.norm.weight" in moved and len(moved) > 20
    status, said = train(adapter, "steps=3", "--resume")
    assert status == 0, said
    status, said = train(adapter, "lora.rank=2", "lora.alpha=4", out="on")
    assert status == 0, said
    assert (place / "on" / "checkpoints" / "last" / "adapter_config.json").is_file()
    status, said = train(adapter, "lora.rank=4", out="other")
    assert (status, "is an adapter of {'rank': 2, 'alpha': 4.0}, the recipe's lora has" in said) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [[], ["lora.rank=2", "lora.alpha=4"]])
def test_an_adapter_that_is_not_finite_makes_no_run(lora, train, place, adapter):
    file = place / "first" / "checkpoints" / "last" / "adapter_model.safetensors"
    weights = load_file(file)
    name = min(weights)
    save_file(weights | {name: weights[name] * torch.nan}, file)
    status, said = train(adapter, *lora)
    assert (status, f"adapter_model.safetensors: {name} holds numbers that are not finite" in said) == (1, True)
    assert not (place / "out").exists()


@pytest.mark.slow
def test_an_adapter_is_saved_with_its_matrices_in_order(train, place, adapter):
    """A set has another order in each process: the same training would write other files."""
    config = json.loads((place / "first" / "checkpoints" / "last" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"]) and len(config["target_modules"]) > 6

"""Samplers, learner backends and launchers are found by name; a user's own needs no edit; wrong ones are refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from searchgym.cli import main
from searchgym.errors import CardError, UsageError
from searchgym.named import code_refused
from searchgym.options import Setting, Unloaded, find_kind, kind_name, kinds, name_of
from searchgym.rollout.models import Loading, find_models
from searchgym.rollout.sampler_kind import PHASES, SampledKey, SampledRun, SamplerKind
from searchgym.rollout.samplers.auto import Auto
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.train import dump_recipe, load_recipe, read_recipe
from searchgym.train.loop.assembly import train
from searchgym.train.plan.plan import plan
from searchgym.train.recipe.backend import LearnerBackend
from searchgym.train.recipe.backends.deepspeed import DeepSpeed
from searchgym.train.recipe.launching import Launcher
from searchgym.train.recipe.load import with_code

OWN = """
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated
from annotated_types import Ge
from searchgym.rollout.sampler_kind import Part, SamplerKind
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.train.recipe.backend import LearnerBackend
from searchgym.train.recipe.backends.torch import Torch
from searchgym.train.recipe.launching import Launcher

SEEN = []

@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(SamplerKind):
    delay: Annotated[float, Ge(0)] = 0.1
    def check(self, setting):
        if setting.lora:
            yield "it samples no adapters"
    def memory(self, need, gpus, gpu_gib):
        yield Part("cpu", "slow: all of it", 7.0)
    def open(self, keys, run):
        SEEN.append(("sampler", self.delay, [key.name for key in keys]))
        return Transformers(device="cpu").open(keys, run)

@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(LearnerBackend):
    def learner(self, recipe, loaded, logs):
        SEEN.append(("learner", recipe.name))
        return Torch().learner(recipe, loaded, logs)

@dataclass(frozen=True, slots=True, kw_only=True)
class Rented(Launcher):
    price: float = 1.0
    @contextmanager
    def launched(self, recipe, out):
        SEEN.append(("launched", self.price))
        yield replace(recipe, name="rented")
        SEEN.append(("ended",))

@dataclass(frozen=True, slots=True, kw_only=True)
class Raising(Launcher):
    def check(self, setting):
        raise KeyError("no such fact")
"""
USED = ["rollout.sampler={kind: 'own_run:Slow', delay: 0.5}", "learner.backend=own_run:Noted"]
USED += ["launch={kind: 'own_run:Rented', price: 2.0}"]
TINY = ["steps=1", "rollout.questions=2", "rollout.attempts=2", "rollout.max_tokens=8", "validation.every=0"]
TINY += ["log.tensorboard=false", "log.curve=false"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file in the working folder with one class of each sort."""
    (tmp_path / "own_run.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_run", None)


@pytest.mark.parametrize(
    ("base", "names"),
    [(SamplerKind, "auto transformers vllm"), (LearnerBackend, "deepspeed torch"), (Launcher, "here ray")],
)
def test_every_shipped_kind_is_one_documented_class_named_as_its_module(base, names):
    assert sorted(kinds(base)) == names.split()
    for name in kinds(base):
        cls = find_kind(base, name)
        assert name_of(cls()) == name and cls.__module__ == f"{base.kinds_in}.{name}"
        assert cls.__doc__.strip() and cls.__name__.lower() == name


@pytest.mark.slow
def test_classes_of_a_file_sample_learn_and_launch_a_training(own, tmp_path):
    train(load_recipe("tiny-grpo", [*USED, *TINY]), tmp_path / "run")
    seen = sys.modules["own_run"].SEEN
    assert seen == [("launched", 2.0), ("sampler", 0.5, ["policy"]), ("learner", "rented"), ("ended",)]
    again = read_recipe(tmp_path / "run" / "recipe.yaml")  # what the user gave, not what was launched
    assert again.name == "tiny-grpo" and kind_name(again.launch) == "own_run:Rented"


def test_reading_a_recipe_imports_no_class_that_it_names(own, tmp_path):
    recipe = load_recipe("tiny-grpo", USED)
    assert recipe.rollout.sampler == Unloaded(SamplerKind, "own_run:Slow", {"delay": 0.5})
    (tmp_path / "again.yaml").write_text(dump_recipe(recipe))
    assert read_recipe(tmp_path / "again.yaml") == recipe and "own_run" not in sys.modules
    with code_refused(": not here"), pytest.raises(UsageError, match=r"'own_run:Slow' names code.*: not here"):
        with_code(recipe)
    assert getattr(with_code(recipe).rollout.sampler, "delay") == 0.5  # noqa: B009


def test_a_user_s_sampler_is_planned_by_its_own_memory(own):
    parts = {part.what: part for part in plan(with_code(load_recipe("tiny-grpo", USED)), gpus=0)}
    assert parts["slow: all of it"].gib == 7.0 and parts["slow: all of it"].phases == PHASES
    assert not any(what.startswith("sampler") for what in parts)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["rollout.sampler={kind: 'own_run:Slow', delay: -1}"], "delay: expected at least 0, got -1"),
        (["rollout.sampler={kind: 'own_run:Slow', delai: 1}"], "did you mean 'delay'"),
        (["rollout.sampler=own_run:Slow", "lora.rank=4"], "rollout.sampler: it samples no adapters"),
        (["rollout.sampler=own_run:Noted"], "frozen dataclass that inherits SamplerKind"),
        (["launch=own_run:Raising"], "launch: its check failed: KeyError: 'no such fact'"),
    ],
)
def test_a_user_s_class_that_does_not_fit_is_refused_before_training(own, values, said):
    recipe = load_recipe("tiny-grpo", values)
    with pytest.raises(CardError, match=said):
        with_code(recipe)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["rollout.sampler=vlm"], "unknown sampler 'vlm'; did you mean 'vllm'"),
        (["learner.backend=deepsped"], "unknown learner backend 'deepsped'; did you mean 'deepspeed'"),
        (["launch=rey"], "unknown launcher 'rey'; did you mean 'ray'"),
        (["rollout.sampler.gpu_share=0.3"], r"rollout\.sampler\.gpu_share: unknown key\. Known: device"),
        (["rollout.sampler=vllm", "rollout.sampler.replcas=2"], "did you mean 'replicas'"),
        (["rollout.sampler={kind: vllm, gpu_share: .nan}"], "gpu_share: expected a finite number, got nan"),
        (["rollout.sampler={kind: vllm, gpu_share: half}"], "gpu_share: expected a number, got 'half'"),
        (["rollout.sampler={kind: vllm, gpu_share: 1.5}"], "gpu_share: expected at most 1, got 1.5"),
        (["learner.backend={kind: torch, gpu: -1}"], "gpu: expected at least 0, got -1"),
        (["rollout.sampler=3"], "rollout.sampler: expected keys and values"),
        (["rollout.vllm.gpu_share=0.3"], r"rollout\.vllm is an old name: write rollout: \{sampler: \{kind: vllm"),
        (["rollout.device=cpu"], r"write rollout: \{sampler: \{kind: transformers, device"),
        (["learner.gpus=[0]"], r"write learner: \{backend: \{kind: deepspeed, gpus"),
        (["ray.address=h:1"], r"ray is an old name: write launch: \{kind: ray"),
    ],
)
def test_what_cannot_be_read_is_named(values, said):
    with pytest.raises(CardError, match=said):
        load_recipe("tiny-grpo", values)


def test_old_keys_of_a_file_are_named_with_their_lines(tmp_path):
    text = (Path(__file__).parents[2] / "train" / "tiny-grpo.yaml").read_text()
    lines = len(text.splitlines())
    (tmp_path / "old.yaml").write_text(f"{text}learner:\n  backend: deepspeed\n  ranks: 2\nray: {{spread: true}}\n")
    with pytest.raises(CardError) as caught:
        read_recipe(tmp_path / "old.yaml")
    said = str(caught.value)
    assert f"old.yaml:{lines + 3}: learner.ranks: write learner: {{backend: {{kind: deepspeed, ranks" in said
    assert f"old.yaml:{lines + 4}: ray: write launch: {{kind: ray" in said


def test_another_kind_begins_anew_and_the_same_one_keeps_what_was_given():
    recipe = load_recipe("qwen2.5-7b-lora-vllm", ["rollout.sampler.kind=vllm", "rollout.sampler.sleep=1"])
    assert recipe.rollout.sampler == Vllm(gpu_share=0.4, max_context=8192, sleep=1)
    other = ["rollout.sampler.kind=transformers", "learner.dtype=float32"]
    assert load_recipe("qwen2.5-7b-lora-vllm", other).rollout.sampler == Transformers()
    assert load_recipe("qwen2.5-7b-lora-vllm", ["rollout.sampler=vllm"]).rollout.sampler == Vllm()


def test_facts_that_samplers_tell(monkeypatch):
    run = SampledRun(weights="float32", autocast="bfloat16")
    assert [Vllm(dtype=dtype).computed_in(run) for dtype in ("auto", "float32")] == ["bfloat16", "float32"]
    assert Transformers().computed_in(SampledRun(weights="float64")) == "float64"
    assert [Vllm(sleep=level).frees_gpu for level in (0, 1, 2)] == [False, True, True]
    assert (Transformers().label("float32"), Transformers().label("bfloat16")) == ("", "bfloat16")
    keys = [SampledKey("a", "base", True), SampledKey("b", "base", False), SampledKey("c", "base", False)]
    assert [len(group) for group in Vllm().together(keys, False)] == [1, 2]  # frozen keys share what never changes
    assert [len(group) for group in Transformers().together(keys, True)] == [1, 1, 1]
    assert Auto().chosen(ask=False) == Vllm()
    served = Vllm(replicas=2, shared="/x", transfer="folder", sleep=0).served(["http://a:1", "http://b:1"])
    assert served == Vllm(servers=["http://a:1", "http://b:1"], shared="/x") and not list(served.problems())
    assert Vllm(replicas=2, shared="/x").server() == Vllm()


def test_what_a_launcher_starts_has_no_addresses_and_gpus_of_its_own():
    there, here = Setting(launcher="slurm", trained_keys=2), Setting(trained_keys=2)
    assert list(DeepSpeed(ranks=2).check(here)) == []
    (said,) = DeepSpeed(ranks=2).check(there)
    assert "ranks that are started elsewhere train one model key" in said
    found = list(Vllm(servers=["http://a:1"], gpus=[0], sleep=1).check(there))
    assert [text.rpartition(": ")[2] for text in found] == ["leave servers out", "leave gpus out", "set sleep 0"]
    assert all(text.startswith("launch slurm ") for text in found)


def test_an_evaluation_names_a_sampler_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match="unknown sampler 'vlm'; did you mean 'vllm'"):
        find_models({"searcher": "tiny"}, Loading(by="vlm"))


@pytest.mark.slow
def test_reading_recipes_of_every_kind_imports_no_torch():
    code = (
        "import sys; from searchgym.train import load_recipe\n"
        "load_recipe('tiny-grpo', ['rollout.sampler=vllm', 'learner.backend=deepspeed', 'launch=ray'])\n"
        "assert not {'torch', 'vllm', 'deepspeed', 'ray'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


def test_numbers_of_a_plan_are_those_of_the_types():
    from searchgym.rollout.sampler_kind import bytes_of

    assert [bytes_of(name) for name in ("float32", "bfloat16", "float64")] == [4, 2, np.dtype("float64").itemsize]


@pytest.mark.slow
def test_a_plan_imports_no_code_and_counts_nothing_for_it(own, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["searchgym", "train", "tiny-grpo", *USED, "--plan", "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    parts = {part["what"] for part in json.loads(capsys.readouterr().out)["parts"]}
    assert "policy: weights" in parts and "own_run" not in sys.modules
    assert not any(what.startswith(("sampler", "slow")) for what in parts)
    monkeypatch.setattr(sys, "argv", ["searchgym", "train", "tiny-grpo", *USED, "--plan"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "imports no code of yours: own_run:Slow, own_run:Noted, own_run:Rented" in capsys.readouterr().err

"""Models by name: of the hub's cache, with a hub that does not answer."""

import json
import time

import huggingface_hub
import pytest
import torch
from made_models import save_tiny

from searchgym.errors import DataError, DataMissingError
from searchgym.rollout.folders import model_folder
from searchgym.rollout.loading import load_model, load_tokenizer
from searchgym.train.plan.shapes import model_shape


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The hub's cache with one model, as its client lays it out; no hub answers."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(
        huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9"
    )  # the discard port: refused at once
    model = tmp_path / "hub" / "models--owner--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("a" * 40)
    (model / "refs" / "v1").write_text("a" * 40)
    save_tiny(model / "snapshots" / ("a" * 40), "qwen2")
    return model


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ["owner/name", "owner/name@main", "owner/name@v1", f"owner/name@{'a' * 40}"])
def test_a_model_of_the_hub_comes_from_its_cache_without_a_network(cache, name):
    assert model_folder(name) == cache / "snapshots" / ("a" * 40)
    model, tokenizer = load_model(name, chat=True)
    own, _ = load_model(cache / "snapshots" / ("a" * 40))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), own.parameters(), strict=True))
    assert tokenizer.chat_template


def test_a_folder_comes_before_a_model_of_the_hub(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "owner" / "name", "qwen2")
    assert model_folder("owner/name").resolve() == tmp_path / "owner" / "name"


@pytest.mark.parametrize("name", ["owner/other", "owner/name@v2", "runs/nothing"])
@pytest.mark.usefixtures("cache")
def test_a_model_that_is_nowhere_is_told_within_seconds(name):
    started = time.monotonic()
    with pytest.raises(
        DataMissingError, match=f"^{name}: no such folder, and no such model of the hub .the hub cannot be"
    ):
        model_folder(name)
    assert time.monotonic() - started < 20


def test_a_name_that_is_neither_is_told(tmp_path):
    known = "qwen-searcher, smollm2-grpo, smollm2-searcher, tiny"
    with pytest.raises(DataMissingError, match=rf"no such folder; .*a model of the hub \(OWNER/NAME\).*: {known}"):
        model_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name", ["./nowhere", "../nowhere", "nowhere/", ".hidden/nowhere", "runs/.nowhere", "-a/nowhere", "nowhere./x"]
)
def test_a_path_that_no_model_of_the_hub_can_have_is_not_looked_up_there(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataMissingError, match=r"no such folder; name one with a model in Hugging Face format"):
        model_folder(name)


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "tiny"}')
    assert load_tokenizer(tmp_path).get_vocab() == load_tokenizer("tiny").get_vocab()
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(DataMissingError, match="gone"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("bases", [["0"], ["1", "0"], ["1", "2", "1"]])
def test_adapters_whose_bases_lead_in_a_circle_are_refused(bases, tmp_path):
    for number, base in enumerate(bases):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / base)}))
    for read in (load_tokenizer, load_model, model_shape):
        with pytest.raises(DataError, match=r"adapter_config.json: its base .* leads back to .*a complete model"):
            read(str(tmp_path / "0"))


@pytest.mark.parametrize("given", [{}, {"base_model_name_or_path": None}, {"base_model_name_or_path": ""}])
def test_an_adapter_that_names_no_base_is_refused(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where an empty name would be the working folder
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(given))
    for read in (load_tokenizer, load_model, model_shape):
        with pytest.raises(DataError, match=r"adapter_config.json: names no base: set base_model_name_or_path"):
            read(str(folder))

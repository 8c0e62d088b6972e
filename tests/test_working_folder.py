"""The working folder may be somebody else's: nothing in it takes the place of what ships, whatever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from searchgym.agents.base import load_agent
from searchgym.cli.pipeline.pipeline import load_pipeline
from searchgym.envs.data import find_corpus
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataMissingError, SearchGymError, UnknownNameError, UsageError
from searchgym.eval.suites.cards import load_suite
from searchgym.options.cards import CARD_FOLDERS, find_card, list_cards
from searchgym.questions.graphs.packs import load_pack
from searchgym.retrieval.cards import find_encoder, find_retriever
from searchgym.retrieval.encoders import Encoder
from searchgym.retrieval.kinds.rerank import ByPairs
from searchgym.rollout.folders import adapter_base, local_folder, model_folder
from searchgym.rollout.models import in_checkpoints
from searchgym.train.recipe.load import load_recipe

NAMES = sorted({name for kind in CARD_FOLDERS for name in list_cards(kind)})
"""Every name that ships."""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A working folder in which every name that ships is a folder with a card of somebody else's, which names code."""
    for name in [*NAMES, "mine"]:
        (tmp_path / name).mkdir()
        card = {"name": name, "summary": "", "workflow": "theirs:Evil", "kind": "tool", "function": "theirs:search"}
        (tmp_path / name / "card.yaml").write_text(yaml.safe_dump(card))
        (tmp_path / name / "trainer.json").write_text("{}")
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "canary").exists()


# -- what ships is found -------------------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", CARD_FOLDERS)
def test_a_name_that_ships_is_the_card_that_ships(kind, theirs):
    assert {name: find_card(kind, name) for name in list_cards(kind)} == list_cards(kind)


def test_every_loader_takes_what_ships(theirs):
    assert load_agent("search-r1").source.startswith("searchgym.agents.")
    assert find_retriever("bm25").kind == "bm25"
    assert find_retriever({"kind": "cache", "of": "bm25"}).of.kind == "bm25"  # variant: a name inside a card
    assert find_encoder("minilm").model == "sentence-transformers/all-MiniLM-L6-v2"
    assert load_pack("people-and-works").relations
    assert load_suite("worlds").parts
    assert load_recipe("tiny-grpo").agent == "search-r1"
    assert find_corpus("demo").name == "corpus.jsonl"
    assert model_folder("tiny") == local_folder("tiny") == list_cards("models")["tiny"].parent
    assert local_folder("smollm2") is None  # its weights are in a package
    assert adapter_base(list_cards("models")["smollm2-searcher"].parent) == "smollm2"
    agent = load_agent("search-r1")
    assert in_checkpoints({"searcher": "tiny"}, agent) == {"searcher": "tiny"}  # variant: no checkpoint of a run here
    with pytest.raises(UsageError, match="needs your documents"):
        load_pipeline("smol-own")
    assert load_task(find_env("Demo"), corpus="demo").retriever.search(["Teskel"], 1)[0]


@pytest.mark.parametrize("model", ["intfloat/e5-base-v2", "sentence-transformers/all-MiniLM-L6-v2", "gpt2"])
@pytest.mark.parametrize(
    "load", [ByPairs, lambda model: Encoder(find_encoder({"name": "e", "dimension": 8, "model": model}))]
)
def test_a_folder_is_not_taken_for_an_encoder_of_the_hub(load, model, theirs):
    """A variant: the libraries look for a folder first, so an index that names a shipped encoder would load theirs."""
    (theirs / model).mkdir(parents=True)
    with pytest.raises(UsageError, match=f"a folder here has the same name: write ./{model}"):
        load(model)


# -- what does not ship is a path ----------------------------------------------------------------------------------

LOADERS = {
    "agent": load_agent,
    "retriever": find_retriever,
    "encoder": find_encoder,
    "pack": load_pack,
    "suite": load_suite,
    "recipe": load_recipe,
    "pipeline": load_pipeline,
    "corpus": find_corpus,
    "model": model_folder,
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", LOADERS)
def test_an_unknown_bare_name_is_refused_with_what_to_write(kind, theirs):
    with pytest.raises((UnknownNameError, DataMissingError), match=r"for the folder of that name here write \./mine"):
        LOADERS[kind]("mine")
    (theirs / "notes").write_text("x")
    with pytest.raises((UnknownNameError, DataMissingError), match=r"for the file of that name here write \./notes"):
        LOADERS[kind]("notes")
    for absent in ("nowhere", "n" * 5000, "nul\0l"):
        with pytest.raises((UnknownNameError, DataMissingError)) as refused:
            LOADERS[kind](absent)
        assert "here write" not in str(refused.value)


@pytest.mark.parametrize("path", ["./mine", "mine/", "sub/mine", "mine.v2", "./tiny"])
def test_a_path_has_a_separator_or_a_suffix(path, theirs):
    folder = theirs / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.yaml").write_text("kind: bm25\nname: theirs\n")
    assert find_retriever(path).name == "theirs"
    assert find_card("agents", path).resolve() == folder / "card.yaml"
    assert find_corpus(path).resolve() == model_folder(path).resolve() == folder
    assert find_corpus(Path(path)) == model_folder(Path(path)) == Path(path)  # a Path is a path, without ./ too


def test_an_environment_is_registered_or_a_file(theirs):
    assert find_env("Demo").id == "searchgym/Demo-v0"
    for name in ("mine", "mine/", "./mine"):
        with pytest.raises(UnknownNameError, match="unknown environment"):
            find_env(name)


def test_names_that_ship_are_no_paths_by_accident():
    """None has a separator or begins with a dot, so that ``./NAME`` is never one of them."""
    assert not [name for name in NAMES if "/" in name or "\\" in name or name.startswith(".")]


def test_errors_say_it_on_the_command_line(theirs, monkeypatch, capsys):
    from support import command_line

    cli = command_line(monkeypatch, capsys)
    status, _, err = cli("eval", "Demo", "--agent", "mine")
    assert (status, "write ./mine" in err) == (2, True)
    with pytest.raises(SearchGymError):
        load_task(find_env("Demo"), corpus="mine")

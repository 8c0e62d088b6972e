"""Every row of the table in SECURITY.md is kept: by a hostile file that is planted here, and by the tests it names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from made_models import tiny_qwen2, tiny_tokenizer
from safetensors.torch import save_file
from support import command_line

from searchgym.agents.base import load_agent
from searchgym.corpora.questions import read_questions
from searchgym.envs.data import find_corpus
from searchgym.envs.reward import get_reward
from searchgym.errors import CardError, DataError, IndexMismatchError, SearchGymError, SubmissionError, UsageError
from searchgym.eval.leaderboard.check import agent_of, check_submission
from searchgym.eval.leaderboard.manifest import read_manifest
from searchgym.eval.leaderboard.tasks import Tasks
from searchgym.eval.report.write import write_report
from searchgym.eval.suites.cards import load_suite
from searchgym.eval.viewing.saved import SavedRun, open_run
from searchgym.named import load_object
from searchgym.options.cards import find_card, list_cards, load_card
from searchgym.options.model_cards import PretrainedCard
from searchgym.records import Episode, Passage
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import MANIFEST, describe_files, load_index
from searchgym.rollout.folders import ADAPTER, ADAPTER_WEIGHTS, model_folder, pretrained_folder
from searchgym.rollout.loading import load_model
from searchgym.rollout.storage import EpisodeWriter
from searchgym.train.distributed.deepspeed_updater import _tensors_only
from searchgym.train.learner.lora import adapter_config, adapter_weights, add_adapter
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.options import LoraOptions
from searchgym.train.recipe.recipe import dump_recipe

ROOT = Path(__file__).parents[1]
EVIL = "theirs:evil"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder of somebody else's, with a module that leaves a mark when it is imported."""
    (tmp_path / "theirs.py").write_text("open('canary', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    return tmp_path


class Theirs:
    """An object whose pickle makes the mark."""

    def __reduce__(self):
        return open, ("canary", "w")


def questions(folder: Path) -> None:
    (folder / "q.jsonl").write_text('{"id": "a", "question": "Who?", "answer": "x"}\n{"id": \n')
    with pytest.raises(DataError, match=r"q\.jsonl:2: "):
        read_questions(folder / "q.jsonl")


def cards(folder: Path) -> None:
    for text in ("name: &a x\nsummary: *a\n", "name: !!python/name:os.system x\n", "name: x\nsummary: ''\nwork: y\n"):
        (folder / "card.yaml").write_text(text)
        with pytest.raises(CardError):
            load_agent("./card.yaml")


def index(folder: Path) -> None:
    build_index([Passage("p", "Alpha", "Alpha is the capital of Beta.")], folder / "index")
    encoder = {"name": "theirs", "dimension": 8, "model": "owner/name"}
    for retriever in (
        {"kind": "tool", "function": EVIL},
        {"kind": "rerank", "of": {"kind": "bm25"}, "encoder": encoder},
    ):
        manifest = json.loads((folder / "index" / MANIFEST).read_text()) | {"retriever": retriever}
        (folder / "index" / MANIFEST).unlink()
        manifest["files"] = {name: dataclasses.asdict(file) for name, file in describe_files(folder / "index").items()}
        (folder / "index" / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(UsageError, match=r"searches elsewhere too|loads the model 'owner/name'"):
            load_index(folder / "index")
    manifest["files"]["../theirs.py"] = next(iter(manifest["files"].values()))
    (folder / "index" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(IndexMismatchError):
        load_index(folder / "index")


def model(folder: Path) -> None:
    own = folder / "model"
    for part in (tiny_qwen2(), tiny_tokenizer()):
        part.save_pretrained(own)
    made, _ = load_model(own)
    add_adapter(made, LoraOptions(rank=2), 0)
    (folder / "adapter").mkdir()
    save_file(adapter_weights(made.state_dict()), folder / "adapter" / ADAPTER_WEIGHTS)
    config = adapter_config(LoraOptions(rank=2)) | {"base_model_name_or_path": str(own)}
    config |= {"megatron_config": {"a": 1}, "megatron_core": "theirs"}
    (folder / "adapter" / ADAPTER).write_text(json.dumps(config))
    with pytest.raises(SearchGymError):
        load_model(folder / "adapter")
    (own / "model.safetensors").unlink()
    (own / "pytorch_model.bin").write_bytes(pickle.dumps(Theirs()))
    with pytest.raises(DataError, match="cannot be read"):
        load_model(own)
    config = json.loads((own / "config.json").read_text())
    auto = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.M"}}
    (own / "config.json").write_text(json.dumps(config | auto))
    shutil.copy(folder / "theirs.py", own / "theirs.py")
    with pytest.raises(DataError):
        load_model(own)


def checkpoint(folder: Path) -> None:
    torch.save({"step": Theirs()}, folder / "state.pt")
    with _tensors_only(), pytest.raises(pickle.UnpicklingError):
        torch.load(folder / "state.pt", weights_only=False)


def submission(folder: Path) -> None:
    sys.path.append(str(ROOT / "tests" / "eval"))
    from made_submissions import card_of, make_run, read_rows, submit, write_rows

    card = card_of(folder)
    made, tasks = submit(make_run(folder / "run", card), card, folder / "sub"), Tasks(cards=[card])
    (folder / "search-r1").mkdir()
    (folder / "search-r1" / "card.yaml").write_text(f"name: search-r1\nsummary: ''\nworkflow: {EVIL}\n")
    assert check_submission(made, tasks).scores["n"] == 12
    assert agent_of(read_manifest(made), None).source.startswith("searchgym.")
    rows = read_rows(made)
    rows[0]["searches"][0]["hits"][0]["passage"] |= {"id": "forged", "text": "of its own"}
    write_rows(made, rows)
    with pytest.raises(SubmissionError, match="no passage of the corpus"):
        check_submission(made, tasks)


def suite(folder: Path) -> None:
    (folder / "env.yaml").write_text("")
    for part in (
        "env: env.yaml",
        "env: Demo\n    options: {retriever: {kind: tool, function: 'theirs:evil'}}",
        "env: Demo\n    options: {retriever: ./tool.yaml}",
        "env: Demo\n    options: {reward: 'theirs:evil'}",
        "env: Demo\n    options: {retrievers: {web: {kind: tool, function: 'theirs:evil'}}}",
    ):
        (folder / "suite.yaml").write_text(f"name: x\nsummary: ''\nparts:\n  - n: 12\n    {part}\n")
        with pytest.raises(CardError):
            load_suite("suite.yaml")


def package(folder: Path) -> None:
    card = load_card(PretrainedCard, list_cards("pretrained")["smollm2"])
    site = folder / "site" / "small_weights"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("open('canary', 'w').close()\n")
    (site / "small.gguf").write_bytes(b"GGUF of theirs")
    metadata = folder / "site" / "small_weights-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n")
    sys.path.insert(0, str(folder / "site"))
    given = {"package": "small-weights", "version": "1.0", "file": "small_weights/small.gguf"}
    with pytest.raises(DataError, match="has the sha256"):
        pretrained_folder(dataclasses.replace(card, sha256=hashlib.sha256(b"GGUF").hexdigest(), **given))


def training(folder: Path) -> Path:
    """Writes a run whose recipe names code in every place."""
    own = {"reward": EVIL, "retriever": {"kind": "tool", "function": EVIL}}
    recipe = load_recipe("tiny-grpo", [f"env_options={json.dumps(own)}", f"credit={{outcome: 1, '{EVIL}': 1}}"])
    (folder / "run").mkdir()
    (folder / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    with EpisodeWriter(folder / "run" / "episodes.jsonl") as writer:
        writer.write(Episode("q#0@0", "q", "<script>alert(1)</script>", "searchgym/World-v0"))
    return folder / "run"


def report(folder: Path) -> None:
    page = write_report([training(folder)], folder / "page.html").read_text()
    assert "<script>" not in page and "default-src 'none'" in page


def view(folder: Path) -> None:
    run = open_run(training(folder))
    assert len(list(run)) == 1
    assert any("--run-code" in note for note in run.notes)
    saved = SavedRun.read(folder / "run")
    with pytest.raises(UsageError, match="--run-code"):
        saved.terms(saved.find("q#0@0"))
    sys.modules.pop("theirs", None)
    with pytest.raises(UsageError, match="cannot load"):  # imported, but there is no such term
        SavedRun.read(folder / "run", run_code=True).terms(saved.find("q#0@0"))
    (folder / "canary").unlink()  # which is what --run-code is for


def working_folder(folder: Path) -> None:
    for name in ("search-r1", "bm25", "tiny", "demo"):
        (folder / name).mkdir()
        (folder / name / "card.yaml").write_text(f"name: x\nsummary: ''\nkind: tool\nfunction: {EVIL}\n")
    for kind, name in (("agents", "search-r1"), ("retrievers", "bm25")):
        assert find_card(kind, name) == list_cards(kind)[name]
    assert model_folder("tiny").parent == list_cards("models")["tiny"].parents[1]
    assert find_corpus("demo").is_file()


def code(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot load"):
        get_reward(EVIL)
    assert (folder / "canary").exists()  # it is imported, as the row says
    (folder / "canary").unlink()


def workflow(folder: Path) -> None:
    card = {"name": "theirs", "summary": "", "workflow": "builtins:open", "options": {"file": "canary", "mode": "w"}}
    (folder / "card.yaml").write_text(yaml.safe_dump(card))
    with pytest.raises(UsageError, match="is not a class with `async def run"):
        load_agent("./card.yaml")
    assert load_object("builtins:open") is open


AWKWARD, LEADERBOARD = "corpora/test_awkward_files.py", "eval/test_leaderboard.py"
VIEWING, PRETRAINED = "eval/test_viewing_log.py", "rollout/test_pretrained.py"
HELD: dict[str, tuple[Callable[[Path], None] | None, list[str]]] = {
    "corpora, questions, qrels, runs": (
        questions,
        [
            f"{AWKWARD}::test_the_limit_of_a_line_is_exact_and_names_the_line",
            f"{AWKWARD}::test_the_limit_of_a_document_is_exact",
            "corpora/test_documents.py::test_a_document_has_a_limit_of_bytes",
            "corpora/test_documents.py::test_links_that_lead_out_of_the_folder_are_left_out_and_said",
            "corpora/test_parquet.py::test_a_small_file_that_stands_for_much_memory",
            "corpora/test_office.py::test_a_hostile_document_is_one_error_in_bounded_time",
        ],
    ),
    "cards and recipes": (cards, ["options/test_yaml_reader.py::test_awkward_yaml_is_one_error_that_names_the_file"]),
    "an index folder": (
        index,
        [
            "test_foreign_files.py::test_an_index_does_not_name_cards_elsewhere",
            "test_foreign_files.py::test_an_index_that_this_user_built_keeps_its_model",
            "test_foreign_files.py::test_forged_postings_are_refused",
        ],
    ),
    "a FAISS index": (None, []),  # the row promises nothing, and says so
    "a Lucene index": (None, []),
    "a model folder": (model, ["test_foreign_files.py::test_a_models_own_code_is_neither_asked_about_nor_run"]),
    "a checkpoint": (checkpoint, ["test_foreign_files.py::test_deepspeed_loads_tensors_alone"]),
    "a submission to the leaderboard": (
        submission,
        [
            f"{LEADERBOARD}::test_without_the_agent_only_searches_are_repeated",
            f"{LEADERBOARD}::test_tampered_episodes_are_refused",
            f"{LEADERBOARD}::test_hostile_names_are_shown_and_never_read_as_markup",
        ],
    ),
    "a suite card": (suite, ["eval/test_eval_suites.py::test_bad_cards_are_refused"]),
    "a model in a package": (
        package,
        [f"{PRETRAINED}::test_a_package_of_another_version_has_other_weights"],
    ),
    "a run folder, an evaluation": (
        report,
        [
            "test_foreign_files.py::test_nothing_is_written_through_links_that_lead_out",
            "eval/test_report.py::test_nothing_hostile_becomes_markup",
        ],
    ),
    "a run folder in `searchgym view`": (
        view,
        [
            f"{VIEWING}::test_code_is_imported_from_no_place_of_a_recipe",
            f"{VIEWING}::test_a_log_that_a_run_brings_is_not_shown",
            f"{VIEWING}::test_hostile_text_stays_text",
            "eval/test_viewer_in_browser.py::test_the_viewer_serves_this_machine_alone",
        ],
    ),
    "a recipe in `searchgym train --plan`": (
        None,
        ["test_foreign_files.py::test_a_recipe_of_theirs_is_planned_without_its_code"],
    ),
    "a file or folder in the working folder": (
        working_folder,
        ["test_working_folder.py::test_a_name_that_ships_is_the_card_that_ships"],
    ),
    "`module:name`": (code, ["test_foreign_files.py::test_code_is_refused_at_any_depth_in_any_thread_and_only_then"]),
    "an agent card's `workflow`": (
        workflow,
        ["test_foreign_files.py::test_an_agent_card_builds_nothing_but_a_workflow"],
    ),
}
"""Beginning of a row to what plants a file that tries it, and the tests that hold the rest of it."""
PROMISES_NOTHING = {"a FAISS index": "only from those you trust", "a Lucene index": "read by Lucene"}


def rows() -> list[str]:
    """Returns the rows of the table, head and rule left out."""
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    return [line.strip("| ") for line in lines if line.startswith("| ")][1:]


def test_every_row_is_held():
    found = {key: [row for row in rows() if row.startswith(key)] for key in HELD}
    assert {key: len(own) for key, own in found.items()} == dict.fromkeys(HELD, 1)
    assert len(rows()) == len(HELD), "a row of SECURITY.md that nothing holds: add it to HELD"
    for key, words in PROMISES_NOTHING.items():
        assert words in found[key][0]
    assert all(plant or named or key in PROMISES_NOTHING for key, (plant, named) in HELD.items())


@pytest.mark.parametrize("name", sorted({name for _, named in HELD.values() for name in named}))
def test_the_tests_that_hold_it_exist(name):
    file, _, test = name.partition("::")
    assert re.search(rf"^def {test}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow_cases
@pytest.mark.parametrize("row", [key for key, (plant, _) in HELD.items() if plant is not None])
def test_a_planted_file_runs_nothing(row, folder):
    plant, _ = HELD[row]
    plant(folder)
    assert not (folder / "canary").exists()


def test_a_plan_on_the_command_line_imports_nothing(folder, monkeypatch, capsys):
    card = {"name": "theirs", "summary": "", "workflow": EVIL, "roles": {"searcher": {"prompt": "p", "fields": []}}}
    (folder / "card.yaml").write_text(yaml.safe_dump(card))
    (folder / "p").write_text("go")
    cli = command_line(monkeypatch, capsys)
    status, out, _ = cli("train", "tiny-grpo", "agent=./card.yaml", f"credit={{outcome: 1, '{EVIL}': 1}}", "--plan")
    assert (status, "policy: weights" in out) == (0, True)
    assert not (folder / "canary").exists()

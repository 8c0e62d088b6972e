"""Data sets by name: the same formats as files, on a local data set folder; what cannot be reached fails quickly."""

from __future__ import annotations

import gzip
import shutil
import sys
import time
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from searchgym.corpora.files import dump_line
from searchgym.corpora.hub import HubSource
from searchgym.corpora.passages import read_passages
from searchgym.corpora.questions import read_questions
from searchgym.errors import BadLines, DataError, DataMissingError, UsageError
from searchgym.records import Passage, Question, SupportingFact

CARD = """---
configs:
- config_name: hotpot
  data_files:
  - split: validation
    path: hotpot/validation.jsonl
- config_name: flash
  data_files:
  - split: test
    path: flash/test.jsonl
- config_name: corpus
  data_files:
  - split: train
    path: corpus/train.jsonl
---
"""
HOTPOT = {
    "id": "5a8b",
    "question": "Which firm?",
    "answer": "Beta",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["Mayor", "Beta"], "sent_id": [1, 0]},
    "context": {"title": ["Mayor", "Beta"], "sentences": [["She.", " Founded."], ["A firm."]]},
}
PAGES = [{"id": str(n), "contents": f'"Page {n}"\nText {n}.'} for n in range(300)]


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A data set folder in the hub's layout; caches of ``datasets`` go to the test's own folder, no hub answers."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for module, name in ((huggingface_hub.constants, "ENDPOINT"), (datasets.config, "HF_ENDPOINT")):
        monkeypatch.setattr(module, name, "http://127.0.0.1:9")  # the discard port: refused at once
    folder = tmp_path / "set"
    files = {
        "hotpot/validation.jsonl": [HOTPOT],
        "flash/test.jsonl": [{"id": "test_0", "question": "who?", "golden_answers": ["a", "b"]}],
        "corpus/train.jsonl": PAGES,
    }
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"".join(map(dump_line, rows)))
    (folder / "README.md").write_text(CARD)
    return folder


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        ("hf:hotpotqa/hotpot_qa/train", HubSource("hotpotqa/hotpot_qa", split="train")),
        ("hf:own/set:nq/test", HubSource("own/set", "nq", "test")),
        ("hf:own/set:nq@v1.0/test", HubSource("own/set", "nq", "test", "v1.0")),
        ("hf:own/set@0123abc/train[:100]", HubSource("own/set", None, "train[:100]", "0123abc")),
        ("hf:own/set/wiki-18.jsonl.gz", HubSource("own/set", file="wiki-18.jsonl.gz")),
        ("hf:own/set@main/a/b.jsonl", HubSource("own/set", revision="main", file="a/b.jsonl")),
        ("hf:/data/set:nq/test", HubSource("/data/set", "nq", "test")),
        ("hf:./set/corpus/train.jsonl", HubSource("./set/corpus", file="train.jsonl")),
        ("hf:~/set/test", HubSource("~/set", split="test")),
    ],
)
def test_names(spec, source):
    assert HubSource.parse(spec) == source
    assert str(source) == spec
    assert (source.folder is None) == (not source.repo.startswith((".", "/", "~")))


@pytest.mark.parametrize("spec", ["hf:own", "hf:own/set", "hf:own/set/", "own/set/train", "hf:own/set:/train", "hf:"])
def test_names_of_another_form(spec):
    with pytest.raises(UsageError, match="expected hf:OWNER/NAME"):
        HubSource.parse(spec)


def test_a_source_is_a_split_or_a_file():
    with pytest.raises(UsageError, match="either a split or a file"):
        HubSource("own/set")
    with pytest.raises(UsageError, match="either a split or a file"):
        HubSource("own/set", split="train", file="a.jsonl")
    with pytest.raises(UsageError, match="leave 'nq' out"):
        HubSource("own/set", "nq", file="a.jsonl")


# -- rows ----------------------------------------------------------------------------------------------------------


def test_questions_of_a_table(hub):
    (question,) = read_questions(f"hf:{hub}:hotpot/validation")
    assert (question.id, question.answers, question.kind, question.level) == ("5a8b", ("Beta",), "bridge", "hard")
    assert question.supporting_facts == (SupportingFact("Mayor", 1), SupportingFact("Beta", 0))
    assert [p.text for p in question.paragraphs or ()] == ["She. Founded.", "A firm."]
    assert list((hub.parent / "cache").rglob("*.arrow")) != []  # so that the next time needs no network
    assert read_questions(str(HubSource(str(hub), "flash", "test"))) == [Question("test_0", "who?", ("a", "b"))]


def test_passages_are_streamed(hub):
    passages = read_passages(f"hf:{hub}:corpus/train")
    assert next(passages) == Passage("0", "Page 0", "Text 0.")
    assert [passage.id for passage in passages] == [str(n) for n in range(1, 300)]
    assert list((hub.parent / "cache").rglob("*.arrow")) == []  # nothing was converted and kept


def test_a_slice_of_a_split(hub):
    assert len(read_questions(f"hf:{hub}:hotpot/validation[:1]")) == 1


def test_a_file_of_a_data_set(hub):
    (hub / "pages.jsonl.gz").write_bytes(gzip.compress(b"".join(map(dump_line, PAGES))))
    assert len(list(read_passages(f"hf:{hub}/pages.jsonl.gz"))) == 300
    assert [question.id for question in read_questions(f"hf:{hub}/flash/test.jsonl")] == ["test_0"]
    with pytest.raises(DataMissingError, match=r"gone\.jsonl: no such file"):
        read_questions(f"hf:{hub}/gone.jsonl")


def test_a_row_that_does_not_fit_names_data_set_and_row(hub):
    rows = [{"id": "1", "question": "?", "answer": "a"}, {"id": "2", "question": "?", "answer": ""}]
    (hub / "hotpot/validation.jsonl").write_bytes(b"".join(map(dump_line, rows)))
    with pytest.raises(DataError, match=r"^hf:.*:hotpot/validation: row 2: no gold answer"):
        read_questions(f"hf:{hub}:hotpot/validation")
    bad = BadLines(1)
    assert len(read_questions(f"hf:{hub}:hotpot/validation", bad=bad)) == 1
    assert len(bad.errors) == 1
    with pytest.raises(DataError, match="unknown format: the first row has keys id, question"):
        read_passages(f"hf:{hub}:hotpot/validation")
    with pytest.raises(DataError, match="row 1: no gold answer: no 'golden_answers', got keys id"):
        read_questions(f"hf:{hub}:hotpot/validation", "flashrag")


# -- what cannot be had --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [":other/test", ":hotpot/train"], ids=["config", "split"])
def test_unknown_config_and_split(hub, part):
    with pytest.raises(DataMissingError, match="the data set could not be loaded"):
        read_questions(f"hf:{hub}{part}")


def test_unknown_folder(tmp_path):
    with pytest.raises(DataMissingError, match="the data set could not be loaded"):
        read_questions(f"hf:{tmp_path}/gone/test")


@pytest.mark.parametrize("name", ["own/set:nq/test", "own/set/test.jsonl", "own/set:nq@v1/test"])
@pytest.mark.parametrize("read", [read_questions, read_passages])
@pytest.mark.usefixtures("hub")
def test_no_network_fails_within_seconds(name, read):
    started = time.monotonic()
    with pytest.raises(DataMissingError, match=f"^hf:{name}: the data set could not be loaded.*hub cannot be reached"):
        read(f"hf:{name}")
    assert time.monotonic() - started < 10  # the hub's own client would try for 23 seconds
    assert datasets.config.HF_HUB_OFFLINE is False


def test_questions_come_from_the_cache_without_network(hub):
    cache = hub.parent / "cache"
    questions = read_questions(f"hf:{hub}:hotpot/validation")
    (table,) = cache.rglob("*.arrow")
    shutil.copytree(table.parent, cache / "own___set/hotpot/0.0.0" / ("a" * 40))  # where one from the hub would be
    assert read_questions("hf:own/set:hotpot/validation") == questions
    with pytest.raises(DataMissingError, match="in its cache: LookupError: the cache does not record its revision"):
        read_questions("hf:own/set:hotpot@v1/validation")


def test_without_the_datasets_package(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install -e .*\[train\]"):
        read_questions(f"hf:{hub}:hotpot/validation")

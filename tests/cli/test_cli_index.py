"""The commands on indexes and retriever cards, as a person types them."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3
from support import json_of

from searchgym.cli import index as machine
from searchgym.cli import main
from searchgym.corpora.files import sha256_file
from searchgym.corpora.folders import bundled_file
from searchgym.corpora.passages import read_passages
from searchgym.envs.data import load_corpus
from searchgym.options.cards import EncoderCard, list_cards, load_card
from searchgym.retrieval.bm25.backend import Bm25Builder
from searchgym.retrieval.dense import backend as dense
from searchgym.retrieval.index.build import build_index, building_folder
from searchgym.retrieval.index.index import MANIFEST, build_in_memory, load_index
from searchgym.retrieval.kinds.http import HttpRetriever

QUESTIONS, CORPUS = bundled_file("demo/questions.json"), bundled_file("demo/corpus.jsonl")
QUERY = "Who mapped the Sarn Islands?"
OWN = "kind: bm25\nk1: 1.5\nb: 0.75\n"
JOINED = "kind: hybrid\nof: [lucene, {kind: bm25, k1: 1.5}]\n"
INVERTED = "kind: dense\nencoder: minilm-package\nindex: ivf-sq8\nlists: 1\n"
GIB = 2**30


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS``; returns (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    for name, text in (("own", OWN), ("joined", JOINED), ("inverted", INVERTED)):
        Path(f"{name}.yaml").write_text(text)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["searchgym", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return ended.value.code or 0, out, err

    return run


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """An index folder with two parts."""
    folder = tmp_path_factory.mktemp("hybrid") / "idx"
    build_index(read_passages(CORPUS), folder, "hybrid-minilm")
    return folder


def found(hits):
    """Ids and scores of hits, as `index search` prints them or as a retriever gives them."""
    return [(h["id"], h["score"]) if isinstance(h, dict) else (h.passage.id, h.score) for h in hits]


# -- build ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "parts"),
    [("bm25", ["bm25"]), ("lucene", ["lucene"]), ("own.yaml", ["bm25"]), ("joined.yaml", ["lucene", "bm25"])],
)
def test_what_a_card_needs_is_built(cli, card, parts):
    built = json_of(cli("index", "build", CORPUS, "--out", "idx", "--retriever", card, "--json"))
    assert (built["passages"], built["parts"], built["left_out"]) == (25, parts, 0)
    files = [path for path in Path("idx").rglob("*") if path.is_file() and path.name != MANIFEST]
    assert built["bytes"] == sum(path.stat().st_size for path in files)
    hits = json_of(cli("index", "search", "idx", QUERY, "--json"))["hits"]
    assert found(hits) == found(load_corpus(CORPUS, card).search([QUERY], 5)[0])
    assert "Ilse Marrow" in hits[0]["text"]


@pytest.mark.slow
def test_k1_and_b_are_for_bm25(cli):
    given = ["--k1", 1.5, "--b", 0.75]
    json_of(cli("index", "build", CORPUS, "--out", "idx", *given, "--json"))
    json_of(cli("index", "build", CORPUS, "--out", "same", "--retriever", "own.yaml", "--json"))
    searched = [json_of(cli("index", "search", folder, QUERY, "--json"))["hits"] for folder in ("idx", "same", CORPUS)]
    assert searched[0] == searched[1]
    assert found(searched[0]) != found(searched[2])
    json_of(cli("index", "build", CORPUS, "--out", "java", "--retriever", "lucene", *given, "--json"))
    card = json_of(cli("index", "inspect", "java", "--json"))["retriever"]
    assert (card["kind"], card["k1"], card["b"]) == ("lucene", 1.5, 0.75)
    for retriever, weight, status, message in [
        (
            "hybrid-minilm",
            ["--k1", 1.5],
            2,
            "--k1 and --b only apply to retriever cards that have them, such as bm25 and lucene",
        ),
        (
            "minilm-flat",
            ["--b", 0.5],
            2,
            "--k1 and --b only apply to retriever cards that have them, such as bm25 and lucene",
        ),
        ("bm25", ["--b", 2], 2, "b: expected at most 1, got 2"),
        ("bm25s", [], 2, "did you mean 'bm25'"),
    ]:
        got, out, err = cli("index", "build", CORPUS, "--out", "no", "--retriever", retriever, *weight)
        assert (got, out, message in err) == (status, "", True), err
    assert not Path("no").exists() and not building_folder(Path("no")).exists()


def test_a_card_that_searches_elsewhere_has_nothing_to_build(cli):
    status, _, err = cli("index", "build", CORPUS, "--out", "idx", "--retriever", "http://localhost:1/retrieve")
    assert (status, "there is nothing to build" in err) == (2, True)


# -- the plan ------------------------------------------------------------------------------------------------------


@pytest.fixture
def room(monkeypatch):
    """Sets the bytes of memory and disk that are free."""

    def have(memory, disk):
        monkeypatch.setattr(machine, "memory", lambda: (64 * GIB, memory))
        monkeypatch.setattr(machine, "free_disk", lambda folder: disk)

    return have


@pytest.mark.slow
def test_the_plan_is_printed_and_what_does_not_fit_is_refused(cli, room):
    build = ["index", "build", CORPUS, "--out", "new/idx", "--json"]
    room(2 * GIB, 3 * GIB)
    status, out, err = cli(*build)
    # the program's 300 MB and the builder's 100 MB are 0.37 GiB; 25 passages are nothing beside them
    assert "memory: about 0.37 GiB, free 2.00 GiB\ndisk: about 0.00 GiB, free 3.00 GiB\n" in err
    assert (status, json.loads(out)["passages"]) == (0, 25)
    for memory, disk, short in [
        (GIB // 4, 3 * GIB, "memory"),
        (2 * GIB, 100, "disk"),
        (GIB // 4, 100, "memory and disk"),
    ]:
        shutil.rmtree("new", ignore_errors=True)
        room(memory, disk)
        status, out, err = cli(*build)
        assert (status, out) == (2, "")
        assert f"about 25 passages need more {short} than is free" in err
        assert not Path("new").exists()
        assert cli(*build, "--force")[0] == 0


def test_a_dense_index_needs_its_encoder_in_memory(cli, room):
    room(2 * GIB, GIB)
    status, _, err = cli("index", "build", CORPUS, "--out", "idx", "--retriever", "minilm-flat")
    # torch and a model are counted with 2 GB beside a shard's 300 MB
    assert (status, "memory: about 2.14 GiB, free 2.00 GiB" in err) == (2, True)


def test_there_is_no_plan_where_sizes_are_not_known(cli, room, tmp_path):
    room(None, None)
    err = cli("index", "build", CORPUS, "--out", "idx")[2]
    assert "memory: about 0.37 GiB, free unknown\ndisk: about 0.00 GiB, free unknown\n" in err
    room(0, 0)
    Path("notes").mkdir()
    Path("notes/a.md").write_text("# Herring\n\nSmoked over beech wood.\n")
    status, _, err = cli("index", "build", "notes", "--out", "more")
    assert (status, "GiB" in err) == (0, False)


# -- interruption --------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(monkeypatch):
    """Makes shards of ten passages; gives the numbers of those that are built."""
    numbers: list[int] = []
    whole = Bm25Builder.add

    def add(self, number, start, passages):
        numbers.append(number)
        whole(self, number, start, passages)

    monkeypatch.setattr(Bm25Builder, "add", add)
    monkeypatch.setitem(build_index.__kwdefaults__, "shard", 10)
    return numbers


@pytest.mark.slow
def test_an_interrupted_build_goes_on_or_is_thrown_away(cli, shards):
    lines = CORPUS.read_text().splitlines()
    Path("corpus.jsonl").write_text("\n".join([*lines[:22], "{broken", *lines[22:]]) + "\n")
    build = ["index", "build", "corpus.jsonl", "--out", "idx"]
    assert cli(*build)[0] == 1
    assert (shards, Path("idx").exists(), building_folder(Path("idx")).is_dir()) == ([0, 1], False, True)

    Path("corpus.jsonl").write_text("\n".join(lines) + "\n")  # the line is mended
    status, out, err = cli(*build, "--k1", 2)
    assert (status, out) == (2, "")
    assert "holds 2 shards of an interrupted build with other settings" in err
    assert "--restart" in err
    built = json_of(cli(*build, "--json"))
    assert shards == [0, 1, 2]
    assert built["corpus_sha256"] == sha256_file("idx/passages.jsonl") == load_index("idx").corpus_sha256
    assert not building_folder(Path("idx")).exists()
    whole = json_of(cli("index", "search", CORPUS, QUERY, "--json"))
    assert json_of(cli("index", "search", "idx", QUERY, "--json")) == whole


@pytest.mark.slow
def test_restart_begins_anew_with_other_settings(cli, shards):
    Path("corpus.jsonl").write_text(CORPUS.read_text() + "{broken\n")
    build = ["index", "build", "corpus.jsonl", "--out", "idx"]
    assert cli(*build)[0] == 1
    Path("corpus.jsonl").write_text(CORPUS.read_text())
    assert json_of(cli(*build, "--k1", 2, "--restart", "--json"))["passages"] == 25
    assert shards == [0, 1, 0, 1, 2]
    assert json_of(cli("index", "inspect", "idx", "--json"))["retriever"]["k1"] == 2.0


# -- several parts -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_inspect_shows_and_checks_every_part(cli, hybrid, tmp_path):
    said = json_of(cli("index", "inspect", hybrid, "--verify", "--json"))
    assert (said["passages"], said["retriever"]["kind"], said["verified"]) == (25, "hybrid", True)
    assert {name: part["card"]["kind"] for name, part in said["parts"].items()} == {"bm25": "bm25", "dense": "dense"}
    assert said["parts"]["dense"]["facts"]["dimension"] == 384
    assert said["files"]["dense/index.faiss"] == (hybrid / "dense" / "index.faiss").stat().st_size
    assert said["bytes"] == sum(said["files"].values())
    status, out, _ = cli("index", "inspect", hybrid)
    assert (status, "dense/index.faiss" in out) == (0, True)

    shutil.copytree(hybrid, "copy")
    data = bytearray(Path("copy/dense/index.faiss").read_bytes())
    data[len(data) // 2] ^= 1
    Path("copy/dense/index.faiss").write_bytes(data)
    status, _, err = cli("index", "inspect", "copy", "--verify")
    assert (status, "dense/index.faiss is not the file that manifest.json describes" in err) == (1, True)


@pytest.mark.slow
def test_a_folder_is_searched_by_any_card_whose_parts_it_has(cli, hybrid):
    hits = {}
    for card in ("bm25", "minilm-flat", "hybrid-minilm", "bm25-minilm-rerank"):
        hits[card] = found(json_of(cli("index", "search", hybrid, QUERY, "--retriever", card, "--json"))["hits"])
        assert hits[card] == found(load_index(hybrid, card=card).search([QUERY], 5)[0])
    assert found(json_of(cli("index", "search", hybrid, QUERY, "--json"))["hits"]) == hits["hybrid-minilm"]
    assert hits["bm25"] == found(json_of(cli("index", "search", CORPUS, QUERY, "--json"))["hits"])
    assert len({tuple(hits[card]) for card in ("bm25", "minilm-flat", "hybrid-minilm")}) == 3
    assert hits["bm25-minilm-rerank"] != hits["bm25"]  # but on some CPUs it has the very scores of minilm-flat
    status, _, err = cli("index", "search", hybrid, QUERY, "--retriever", "lucene")
    assert (status, "no part for the card 'lucene', it holds bm25, dense" in err) == (2, True)
    status, _, err = cli("index", "search", hybrid, QUERY, "--retriever", "own.yaml")
    assert (status, "no part for the card" in err) == (2, True)


@pytest.mark.slow
def test_retrieval_is_scored_by_a_card(cli, hybrid):
    command = ["retrieval", "--questions", QUESTIONS, "--top-k", 5, "--json"]
    scores = {card: json_of(cli(*command, "--corpus", hybrid, "--retriever", card)) for card in ("bm25", "minilm-flat")}
    assert scores["bm25"] == json_of(cli(*command, "--corpus", CORPUS))
    assert scores["bm25"] != scores["minilm-flat"]
    assert scores["minilm-flat"]["recall@5"] > 0.5
    status, _, err = cli(*command, "--corpus", hybrid, "--retriever", "minilm-flatt")
    assert (status, "did you mean 'minilm-flat'" in err) == (2, True)


# -- convert -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_vectors_are_converted_from_a_folder_or_a_file(cli, hybrid):
    flat = json_of(cli("index", "search", hybrid, QUERY, "--retriever", "minilm-flat", "--json"))["hits"]
    converted = json_of(cli("index", "convert", hybrid, "--out", "ivf", "--retriever", "inverted.yaml", "--json"))
    assert (converted["passages"], converted["parts"]) == (25, ["dense"])
    hits = json_of(cli("index", "search", "ivf", QUERY, "--json"))["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in flat]  # one byte a dimension moves scores a little
    assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in flat], abs=0.01)

    file = ["index", "convert", hybrid / "dense" / "index.faiss", "--out", "flat", "--retriever", "minilm-flat"]
    status, _, err = cli(*file)
    assert (status, "--corpus" in err) == (2, True)
    assert json_of(cli(*file, "--corpus", CORPUS, "--json"))["corpus_sha256"] == converted["corpus_sha256"]
    assert json_of(cli("index", "search", "flat", QUERY, "--json"))["hits"] == flat
    status, _, err = cli(*file, "--corpus", CORPUS)
    assert (status, "--overwrite" in err) == (2, True)
    assert cli(*file, "--corpus", CORPUS, "--overwrite")[0] == 0
    status, _, err = cli("index", "convert", hybrid, "--out", "no", "--retriever", "bm25")
    assert (status, "no dense part" in err) == (2, True)


@pytest.mark.slow
def test_a_lucene_index_is_converted(cli):
    assert cli("index", "build", CORPUS, "--out", "idx", "--retriever", "lucene")[0] == 0
    command = ["index", "convert", "idx/lucene", "--out", "again", "--retriever", "lucene", "--corpus", CORPUS]
    assert json_of(cli(*command, "--json"))["parts"] == ["lucene"]
    hits = json_of(cli("index", "search", "idx", QUERY, "--json"))["hits"]
    assert json_of(cli("index", "search", "again", QUERY, "--json"))["hits"] == hits


def test_an_interrupted_build_says_how_to_go_on(cli, monkeypatch):
    def cut(*args, **options):
        Path(".idx.building").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("searchgym.retrieval.index.build.build_index", cut)
    status, out, err = cli("index", "build", CORPUS, "--out", "idx")
    assert (status, out) == (130, "")
    assert "interrupted: finished parts are kept in .idx.building; go on with the same command" in err


@pytest.mark.slow
def test_an_interrupted_conversion_is_thrown_away_when_asked(cli, hybrid, monkeypatch):
    def cut(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dense, "write_index", cut)
        assert cli("index", "convert", hybrid, "--out", "idx", "--retriever", "inverted.yaml")[0] == 130
    flat = ["index", "convert", hybrid, "--out", "idx", "--retriever", "minilm-flat"]
    status, _, err = cli(*flat)
    assert (status, "interrupted build with other settings" in err) == (2, True)
    assert json_of(cli(*flat, "--restart", "--json"))["parts"] == ["dense"]


# -- cards ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_retrievers_and_encoders_are_listed(cli):
    rows = {row["name"]: row for row in json_of(cli("list", "retrievers", "--json"))["retrievers"]}
    assert rows.keys() == list_cards("retrievers").keys()
    assert (rows["bm25"]["kind"], rows["hybrid-e5"]["kind"], rows["lucene"]["kind"]) == ("bm25", "hybrid", "lucene")
    assert all(row["summary"] for row in rows.values())
    rows = {row["name"]: row for row in json_of(cli("list", "encoders", "--json"))["encoders"]}
    assert rows.keys() == list_cards("encoders").keys()
    e5 = load_card(EncoderCard, list_cards("encoders")["e5-base-v2"])
    assert (rows["e5-base-v2"]["dimension"], rows["e5-base-v2"]["licence"]) == (768, e5.licence)
    for kind in ("retrievers", "encoders"):
        assert "minilm" in cli("list", kind)[1]


# -- serve ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_card_is_served(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    command = [
        sys.executable,
        "-m",
        "searchgym",
        "serve",
        "retriever",
        str(CORPUS),
        "--port",
        "0",
        "--retriever",
        "own.yaml",
    ]
    environment = {"SEARCHGYM_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[2])}
    own = build_in_memory(read_passages(CORPUS), k1=1.5, b=0.75)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    try:
        url = next(line.split()[-1] for line in process.stderr if "listening at" in line)
        client = HttpRetriever(url)
        client.wait(60)
        assert found(client.search([QUERY], 5)[0]) == found(own.search([QUERY], 5)[0])
        said = urllib3.request("GET", f"{url}/info").json()
        assert (said["k1"], said["b"], said["passages"]) == (1.5, 0.75, 25)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 2, "give an index folder"),
        (["--retriever", "bm25"], 2, "give an index folder"),
        ([CORPUS, "--retriever", "bm52"], 2, "did you mean 'bm25'"),
        ([CORPUS, "--retriever", "none.yaml"], 2, "none.yaml: no such file"),
        (["none.jsonl"], 2, "none.jsonl"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_listens(cli, args, status, message):
    got, out, err = cli("serve", "retriever", *args, "--port", 0)
    assert (got, out, message in err, "listening" in err) == (status, "", True, False), err


def test_a_search_prints_300_characters_of_a_page_unless_it_prints_all(cli):
    Path("long.jsonl").write_text(json.dumps({"id": "1", "contents": "Long\n" + "heron " * 200}) + "\n")
    for more, words in ((), 50), (("--full",), 200):
        status, out, err = cli("index", "search", "long.jsonl", "heron", *more)
        assert status == 0, err
        assert out.count("heron") == words and ("00 characters, --full)" in " ".join(out.split())) == (not more)
    (hit,) = json_of(cli("index", "search", "long.jsonl", "heron", "--json"))["hits"]
    assert hit["text"].count("heron") == 200

"""BrowseComp-Plus' released form: a made-up file with an invented key gives what stands in it; faults are named."""

import base64
import gzip
import hashlib
import itertools
import json
import time
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from searchgym.agents import load_agent
from searchgym.corpora.documents import chunk_passages
from searchgym.corpora.passages import detect_format, read_passages, write_corpus
from searchgym.corpora.questions import read_queries, read_questions, stream_questions
from searchgym.corpora.readers.browsecomp import BEGINNING, KEY, passage_of, question_of, title_of
from searchgym.envs.registration import find_env, own_card
from searchgym.envs.task import load_task
from searchgym.errors import BadLines, DataError
from searchgym.eval import evaluate
from searchgym.records import title_key

CANARY = "an invented canary of these tests"
FRONT = '---\ntitle: "The Lamp: a history"\nauthor: Ann\n---\n'
DOCUMENTS = [
    {"docid": "11", "text": FRONT + "The lamp was lit in 1884. " * 300, "url": "https://lamps.example/history"},
    {
        "docid": "12",
        "text": "# Keepers of the lamp\n\nÉmile kept it for 30 years. 日本\n",
        "url": "https://lamps.example/keepers",
    },
    {"docid": "13", "text": "x" * 500 + " is a page of one line. " * 40, "url": "https://lamps.example/one-line"},
    {"docid": "14", "text": "---\nauthor: Bo\n---\nNo title here.", "url": ""},
]
TITLES = ["The Lamp: a history", "Keepers of the lamp", "https://lamps.example/one-line", "14"]
ROW = {
    "query_id": "7",
    "query": "Who kept the lamp that was lit in 1884, and for how long?",
    "answer": "Émile",
    "gold_docs": DOCUMENTS[:2],
    "evidence_docs": DOCUMENTS[:3],
    "negative_docs": [DOCUMENTS[3]],
}


def encrypt(value, key=CANARY):
    """The description in words, byte by byte: XOR with the repeated SHA-256 of the key, then base64."""
    if isinstance(value, str):
        stream = itertools.cycle(hashlib.sha256(key.encode()).digest())
        return base64.b64encode(bytes(a ^ b for a, b in zip(value.encode(), stream, strict=False))).decode()
    if isinstance(value, list):
        return [encrypt(item, key) for item in value]
    return {name: item if name == "query_id" else encrypt(item, key) for name, item in value.items()}


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv(KEY, CANARY)


def check(question):
    assert (question.id, question.text, question.answers) == ("7", ROW["query"], ("Émile",))
    assert question.gold_titles == tuple(TITLES[:2])
    assert [document["docid"] for document in question.metadata["evidence_docs"]] == ["11", "12", "13"]
    assert [document["title"] for document in question.metadata["evidence_docs"]] == TITLES[:3]
    assert question.metadata["gold_docs"][0] == {"docid": "11", "title": TITLES[0], "url": DOCUMENTS[0]["url"]}
    assert "lit in 1884. The" not in repr(question) and "negative_docs" not in question.metadata


@pytest.mark.parametrize("form", ["jsonl", "json", "gz", "parquet"])
def test_an_encrypted_file_is_read_in_every_container(form, key, tmp_path):
    rows = [encrypt(ROW), encrypt(ROW | {"query_id": "8"})]
    path = tmp_path / f"questions.{form}"
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif form == "json":
        path.write_text(json.dumps(rows))
    else:
        lines(path, *rows)
        if form == "gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    questions = read_questions(path)
    check(questions[0])
    assert [question.id for question in questions] == ["7", "8"]
    assert read_queries(path) == {"7": ROW["query"], "8": ROW["query"]}


def test_a_decrypted_file_needs_no_key(monkeypatch, tmp_path):
    monkeypatch.delenv(KEY, raising=False)
    (question,) = read_questions(lines(tmp_path / "plain.jsonl", ROW))
    check(question)


@settings(max_examples=30)
@given(text=st.text(min_size=1, max_size=3 * BEGINNING))
@example(text="é" * BEGINNING + "日" * BEGINNING)
@example(text="😀" * 3 * BEGINNING)
def test_the_beginning_that_is_decrypted_gives_the_title_of_the_whole_text(text):
    if not text[:BEGINNING].strip().strip("\ufeff").strip():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, CANARY)
        row = encrypt(ROW | {"gold_docs": [{"docid": "d", "text": text, "url": "u"}]})
        (document,) = question_of(row).metadata["gold_docs"]
    assert document["title"] == passage_of({"docid": "d", "text": text, "url": "u"}).title


def test_a_late_title_after_long_letters_is_within_the_beginning(key, tmp_path):
    text = f"---\nauthor: {'é' * 950}{'日' * 950}\ntitle: Late\n---\n" + "日" * 5000
    row = ROW | {"gold_docs": [{"docid": "1", "text": text, "url": "u"}]}
    (question,) = read_questions(lines(tmp_path / "questions.jsonl", encrypt(row)))
    assert question.gold_titles == ("Late",)


# -- the corpus ------------------------------------------------------------------------------------------------------


def test_the_corpus_has_the_titles_of_the_gold_documents(key, tmp_path):
    corpus = lines(tmp_path / "corpus.jsonl", *DOCUMENTS)
    assert detect_format(corpus) == "browsecomp"
    passages = list(read_passages(corpus))
    assert [passage.title for passage in passages] == TITLES
    assert [(passage.id, passage.text) for passage in passages] == [(d["docid"], d["text"]) for d in DOCUMENTS]
    chunks = list(chunk_passages(passages, words=100))
    assert len([chunk for chunk in chunks if chunk.title == TITLES[0]]) == 19  # 1,808 words
    path = lines(tmp_path / "questions.jsonl", encrypt(ROW))
    task = load_task(own_card("own/lamps"), questions=path, corpus=corpus, browse=True)
    for title in task.questions[0].gold_titles:
        (position,) = task.rules.pages.find(title)
        assert title_key(task.rules.pages.at(position).title) == title_key(title)


@pytest.mark.parametrize(
    ("text", "url", "title"),
    [
        ("---\ntitle: 'Two words'\n---\nText", "u", "Two words"),
        ("---\ndate: 2020\ntitle: Late\n---\nText", "u", "Late"),
        ("---\ndate: 2020\n---\ntitle: none\n", "u", "u"),
        ("\n\n  First line \nSecond", "u", "First line"),
        ("-- not front matter\ntitle: x", "u", "-- not front matter"),
        ("w " * 101, "u", "u"),
        ("w " * 101, " ", "9"),
    ],
)
def test_titles(text, url, title):
    assert title_of("9", text, url) == title


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "'answer': expected text, got nothing"),
        ({"gold_docs": None}, "'gold_docs': expected a list of documents, got nothing"),
        ({"gold_docs": [{"docid": "1", "url": "u"}]}, "'gold_docs': document 1: 'text': expected text, got nothing"),
        (
            {"evidence_docs": [DOCUMENTS[0], {"docid": "1", "text": " ", "url": "u"}]},
            "'evidence_docs': document 2: document 1 has no text",
        ),
        ({"evidence_docs": "none"}, "'evidence_docs': expected a list of documents, got"),
        ({"answer": " "}, "no gold answer"),
        ({"query_id": ""}, "'query_id': expected an id"),
    ],
)
def test_a_faulty_row_is_named_with_file_and_line(change, message, key, tmp_path):
    bad = {name: value for name, value in (ROW | {"query_id": "8"} | change).items() if value is not None}
    for coded in (encrypt, dict):
        if coded is encrypt and not isinstance(change.get("evidence_docs", []), list):
            continue
        path = lines(tmp_path / "questions.jsonl", coded(ROW), coded(bad))
        with pytest.raises(DataError, match=f"questions.jsonl:2: {message}"):
            read_questions(path)
        assert len(read_questions(path, bad=BadLines(1))) == 1


def test_a_wrong_key_no_key_and_a_cut_file_are_told_apart_at_once(monkeypatch, tmp_path):
    path = lines(tmp_path / "questions.jsonl", encrypt(ROW))
    start = time.process_time()
    monkeypatch.setenv(KEY, "another key")
    with pytest.raises(DataError, match=rf"questions.jsonl:1: 'query': the key does not fit: set {KEY}"):
        read_questions(path)
    monkeypatch.delenv(KEY)
    with pytest.raises(DataError, match=rf"questions.jsonl:1: is encrypted: set {KEY} to the canary string"):
        read_questions(path)
    monkeypatch.setenv(KEY, CANARY)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"questions.jsonl:1: not JSON"):
        read_questions(path)
    lines(path, encrypt(ROW) | {"answer": "not base64!"})
    with pytest.raises(DataError, match=r"questions.jsonl:1: 'answer': is not base64"):
        read_questions(path)
    corpus = lines(tmp_path / "corpus.jsonl", DOCUMENTS[0], {"docid": "12", "text": "", "url": "u"})
    with pytest.raises(DataError, match=r"corpus.jsonl:2: document 12 has no text"):
        list(read_passages(corpus))
    assert time.process_time() - start < 1


@given(wrong=st.text(min_size=1, max_size=20).filter(lambda text: text != CANARY and "\0" not in text))
def test_every_wrong_key_is_refused(wrong):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, wrong.encode("utf-8", "ignore").decode() or "x")
        with pytest.raises(DataError, match="the key does not fit"):
            question_of(encrypt(ROW))


def test_a_wrong_key_whose_bytes_are_text_by_chance_is_refused(monkeypatch):
    query = "Who was it??"
    digest = hashlib.sha256(CANARY.encode()).digest()

    def mixed(wrong):
        pads = zip(query.encode(), digest, hashlib.sha256(wrong.encode()).digest(), strict=False)
        return bytes(a ^ b ^ c for a, b, c in pads)

    wrong = next(key for key in map(str, itertools.count()) if max(mixed(key)) < 128 and min(mixed(key)) < 8)
    monkeypatch.setenv(KEY, wrong)
    with pytest.raises(DataError, match="'query': the key does not fit"):
        question_of(encrypt(ROW | {"query": query, "answer": ""}))


def test_memory_does_not_grow_with_the_file(key, tmp_path):
    """A row of 0.5 MB, as the released rows have megabytes: four times the rows take no more memory."""
    peaks = []
    documents = encrypt([{"docid": str(n), "text": f"Page {n}\n" + "word " * 5000, "url": "u"} for n in range(15)])
    rest = encrypt({"query": ROW["query"], "answer": "a", "gold_docs": [DOCUMENTS[0]], "evidence_docs": [DOCUMENTS[1]]})
    for count in (8, 32):
        path = tmp_path / f"{count}.jsonl"
        lines(path, *({"query_id": str(n), **rest, "negative_docs": documents} for n in range(count)))
        assert path.stat().st_size > count * 450_000
        tracemalloc.start()
        assert sum(1 for _ in stream_questions(path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        questions = read_questions(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(questions) == count
    assert peaks[2] < 1.1 * peaks[0] and peaks[3] < 1.1 * peaks[1]
    assert max(peaks) < 6e6


def test_the_files_are_searched_cited_and_scored_in_the_research_environment(key, tmp_path):
    questions = lines(tmp_path / "questions.jsonl", encrypt(ROW))
    corpus = lines(tmp_path / "corpus.jsonl", *DOCUMENTS)
    pages = tmp_path / "pages.jsonl"
    write_corpus(pages, chunk_passages(read_passages(corpus), 100))
    task = load_task(find_env("searchgym/DeepResearch-v0"), questions=questions, corpus=pages)
    agents = ("research-oracle", "closed-book")
    research, none = (evaluate(task, load_agent(agent), tmp_path / agent) for agent in agents)
    names = ("n", "em", "gold_found", "title_recall")
    assert [research[name] for name in names[:3]] == [1, 1.0, 1.0] and research["title_recall"][-1] == 1.0
    assert (none["em"], none["gold_found"], none["citation_recall"]) == (0.0, 0.0, 0.0)

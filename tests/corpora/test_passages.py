"""Corpora: every format gives the passages that stand in it, and refuses what does not fit."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.corpora.files import dump_line
from searchgym.corpora.passages import (
    FORMATS,
    corpus_sha256,
    detect_format,
    passage_line,
    read_passages,
    write_corpus,
)
from searchgym.errors import BadLines, DataError, DataMissingError, UnknownNameError
from searchgym.records import Passage

ALPHA = ("Alpha (city)", "Alpha lies on the Beta. It is old.")
BETA = ("Béta &amp; Söhne", 'A "firm", founded\nin 1901.\u2028Closed.')


def lines(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


FILES = {
    "contents": lines(
        {"id": "7", "contents": f'"{ALPHA[0]}"\n{ALPHA[1]}'}, {"id": 8, "contents": f"{BETA[0]}\n{BETA[1]}"}
    ),
    "title-text": json.dumps([{"title": t, "text": x} for t, x in (ALPHA, BETA)], indent=1),
    "hotpotqa": json.dumps({ALPHA[0]: ["Alpha lies on the Beta.", " It is old."], BETA[0]: [BETA[1]]}, indent=1),
    "beir": lines(*({"_id": i, "title": t, "text": x, "metadata": {}} for i, (t, x) in (("a", ALPHA), ("b", BETA)))),
    "searchgym": lines(*({"id": i, "title": t, "text": x} for i, (t, x) in (("x", ALPHA), ("y", BETA)))),
}
IDS = {"contents": "78", "title-text": "01", "hotpotqa": "01", "beir": "ab", "searchgym": "xy"}


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(path: Path, **options) -> DataError:
    with pytest.raises(DataError) as caught:
        list(read_passages(path, **options))
    return caught.value


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"browsecomp"}))  # test_browsecomp.py has that one
def test_every_format(tmp_path, name, packed):
    path = put(tmp_path / "corpus", gzip.compress(FILES[name].encode()) if packed else FILES[name])
    expected = [Passage(IDS[name][0], *ALPHA), Passage(IDS[name][1], *BETA)]
    assert detect_format(path) == name
    assert list(read_passages(path)) == expected
    assert list(read_passages(path, name)) == expected


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_beir_folder(tmp_path, name):
    put(tmp_path / name, gzip.compress(FILES["beir"].encode()) if name.endswith("gz") else FILES["beir"])
    put(tmp_path / "queries.jsonl", lines({"_id": "q", "text": "?"}))
    assert detect_format(tmp_path) == "beir"
    assert [passage.id for passage in read_passages(tmp_path)] == ["a", "b"]


def test_a_folder_without_corpus(tmp_path):
    with pytest.raises(DataMissingError, match=r"is a folder without corpus.jsonl.*searchgym corpus convert"):
        read_passages(tmp_path)


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Quoted"\nText.', "Quoted", "Text."),
        ("Plain\nText.", "Plain", "Text."),
        ('"Heroes" (album)\nText.', '"Heroes" (album)', "Text."),
        ('""Heroes" (album)"\nText.', '"Heroes" (album)', "Text."),
        ('"\nText.', '"', "Text."),
        ('""\nText.', "", "Text."),
        ("\nText.", "", "Text."),
        ("Title\n", "Title", ""),
        ("Title\nOne.\nTwo.\n", "Title", "One.\nTwo.\n"),
        ("No line break.", "", "No line break."),
    ],
)
def test_the_title_of_contents(tmp_path, contents, title, text):
    path = put(tmp_path / "x.jsonl", lines({"id": "0", "contents": contents}))
    assert list(read_passages(path)) == [Passage("0", title, text)]


def test_title_text_ids_are_positions_unless_given(tmp_path):
    path = put(tmp_path / "x.json", json.dumps([{"text": "a"}, {"title": None, "text": "b"}, {"id": 5, "text": "c"}]))
    assert list(read_passages(path)) == [Passage("0", "", "a"), Passage("1", "", "b"), Passage("5", "", "c")]
    path = put(tmp_path / "x.jsonl", '{"text": "a"}\nbad\n{"text": "b"}\n')
    assert [p.id for p in read_passages(path, bad=BadLines(1))] == ["0", "2"]  # a bad line does not move the others


def test_sentences_are_joined_as_the_corpus_keeps_its_spaces(tmp_path):
    hotpot = {"A": ["One.", " Two.", " Three!", '", said he.'], "B": ["", "Four."]}
    assert [p.text for p in read_passages(put(tmp_path / "a", json.dumps(hotpot)))] == [
        'One. Two. Three!", said he.',
        "Four.",
    ]
    bare = {"A": ["One.", "Two.", "Three."], "B": ["Four.", " Five."]}
    assert [p.text for p in read_passages(put(tmp_path / "b", json.dumps(bare)))] == ["One. Two. Three.", "Four. Five."]


def test_json_lines_are_streamed(tmp_path):
    path = put(tmp_path / "x.jsonl", lines(*({"id": n, "text": "t", "title": ""} for n in range(50))) + "broken\n")
    passages = read_passages(path)
    assert [next(passages).id for _ in range(50)] == [str(n) for n in range(50)]
    with pytest.raises(DataError, match=":51: not JSON"):
        next(passages)


# -- bad input -----------------------------------------------------------------------------------------------------


def test_files_that_are_no_corpus(tmp_path):
    with pytest.raises(DataMissingError, match="no such file"):
        read_passages(tmp_path / "gone.jsonl")
    assert "the file is empty" in refused(put(tmp_path / "a", "")).reason
    assert "neither JSON" in refused(put(tmp_path / "b", "title,text\nAlpha,one\n")).reason
    assert "not JSON" in refused(put(tmp_path / "c", '[{"title": "a", "text": "b"},')).reason
    assert refused(put(tmp_path / "d", "[]")).reason == "holds no rows: download or create it again"
    assert refused(put(tmp_path / "e", "[1, 2]")).reason == "holds no rows: download or create it again"
    error = refused(put(tmp_path / "f", lines({"q": 1, "r": 2})))
    assert "unknown format: the first row has keys q, r; expected id and contents" in error.reason
    cut = gzip.compress(FILES["contents"].encode())[:-12]
    assert "damaged gzip data" in refused(put(tmp_path / "g.gz", cut)).reason


@pytest.mark.parametrize(
    ("name", "content", "line", "reason"),
    [
        ("contents", lines({"id": "1", "contents": "a"}, {"contents": "b"}), 2, "no 'id' or '_id': got keys contents"),
        ("contents", lines({"id": "1", "contents": "a"}, {"id": "2"}), 2, "no 'contents': got keys id"),
        ("contents", lines({"id": "1", "contents": ["a"]}), 1, "'contents': expected text, got ['a']"),
        ("contents", lines({"id": " ", "contents": "a"}), 1, "'id': expected an id, got ' '"),
        ("contents", lines({"id": True, "contents": "a"}), 1, "'id': expected an id, got True"),
        ("contents", lines({"id": "1", "contents": "a"}, [1]), 2, "expected a JSON object"),
        ("beir", lines({"_id": "1", "text": "a"}, {"id": "2", "text": "b"}), 2, "no '_id'"),
        ("searchgym", lines({"id": "1", "title": 5, "text": "a"}), 1, "'title': expected text, got 5"),
        ("searchgym", lines({"id": "1", "title": "", "text": None}), 1, "no 'text'"),
        ("title-text", '[{"title": "a", "text": "b"}, "c"]', None, "item 2: expected an object, got 'c'"),
        ("title-text", '[{"title": "a", "text": "b"}, {"title": "c"}]', None, "item 2: no 'text': got keys title"),
        (
            "hotpotqa",
            '{"A": ["a"], "B": ["b", 1]}',
            None,
            "item 2: page 'B': expected a list of sentences, got ['b', 1]",
        ),
        ("hotpotqa", '{"A": ["a"], "A": ["b"]}', None, "an object has the key 'A' twice"),
    ],
)
def test_a_row_that_does_not_fit(tmp_path, name, content, line, reason):
    path = put(tmp_path / "x", content)
    error = refused(path, format=name)
    assert error.line == line
    assert reason in error.reason
    assert str(path) in str(error)


def test_duplicate_ids_name_both_places(tmp_path):
    rows = [{"id": "1", "contents": "a"}, {"id": "2", "contents": "b"}, {"id": 1, "contents": "c"}]
    error = refused(put(tmp_path / "x.jsonl", "\n" + lines(*rows)))
    assert (error.line, error.reason) == (4, "duplicate id '1': line 2 has it too")
    error = refused(put(tmp_path / "x.json", '[{"id": "0", "text": "a"}, {"text": "b"}, {"id": "1", "text": "c"}]'))
    assert error.reason == "item 3: duplicate id '1': item 2 has it too"


def test_skip_bad_counts_every_kind_of_bad_row(tmp_path):
    rows = [{"id": "1", "contents": "a"}, {"id": "1", "contents": "b"}, {"id": "2"}, {"id": "3", "contents": "c"}]
    path = put(tmp_path / "x.jsonl", "junk\n" + lines(*rows))
    bad = BadLines(3)
    assert [passage.text for passage in read_passages(path, bad=bad)] == ["a", "c"]
    assert [error.line for error in bad.errors] == [1, 3, 4]
    assert refused(path, bad=BadLines(2)).line == 4
    assert refused(path).line == 1
    assert detect_format(path) == "contents"


def test_the_first_rows_may_be_bad_too(tmp_path):
    path = put(tmp_path / "x.jsonl", lines({"other": 1}, {"id": "1", "contents": "a"}))
    assert refused(path).line == 1
    assert [passage.id for passage in read_passages(path, bad=BadLines(1))] == ["1"]
    only_bad = put(tmp_path / "y.jsonl", lines({"id": "1", "contents": 5}))
    assert refused(only_bad, bad=BadLines(9)).reason == "holds no valid row: download or create it again"


def test_unknown_format(tmp_path):
    path = put(tmp_path / "x.jsonl", FILES["contents"])
    with pytest.raises(UnknownNameError, match="did you mean 'contents'"):
        read_passages(path, "content")


# -- the canonical form --------------------------------------------------------------------------------------------


def test_canonical_line():
    line = passage_line(Passage("1", "É", "a\u2028b\n"))
    assert line == '{"id": "1", "title": "É", "text": "a\u2028b\\n"}\n'.encode()


@given(*[st.text(st.characters(exclude_categories=[]))] * 3)
def test_a_line_is_that_of_the_row(id, title, text):
    assert passage_line(Passage(id, title, text)) == dump_line({"id": id, "title": title, "text": text})


def test_the_fingerprint_does_not_depend_on_the_source_format(tmp_path):
    expected = [Passage("0", *ALPHA), Passage("1", *BETA)]
    written = tmp_path / "own.jsonl"
    assert write_corpus(written, expected) == 2
    known = hashlib.sha256(written.read_bytes()).hexdigest()
    assert corpus_sha256(expected) == known
    for name in ("title-text", "hotpotqa"):
        assert corpus_sha256(read_passages(put(tmp_path / name, FILES[name]))) == known
    assert corpus_sha256(reversed(expected)) != known


TEXT = st.text(st.characters(codec=None), max_size=30)
PASSAGES = st.lists(
    st.builds(Passage, st.text(min_size=1).filter(lambda id: id.strip()), TEXT, TEXT),
    min_size=1,
    unique_by=lambda passage: passage.id,
)


@pytest.mark.slow
@given(PASSAGES)
def test_own_form_reads_back_equal(tmp_path_factory, passages):
    path = tmp_path_factory.mktemp("own") / "corpus.jsonl.gz"
    write_corpus(path, passages)
    assert detect_format(path) == "searchgym"
    assert list(read_passages(path)) == passages


# -- real data -----------------------------------------------------------------------------------------------------


def test_real_hotpotqa_corpus(real_data):
    path = real_data / "hotpotqa/corpus.json"
    passages = list(read_passages(path))
    source = json.loads(path.read_text(encoding="utf-8"))
    assert len(passages) == 994
    assert [(p.title, p.text) for p in passages] == [(title, "".join(s)) for title, s in source.items()]
    assert [p.id for p in passages] == [str(n) for n in range(994)]


def test_real_2wiki_corpus(real_data):
    path = real_data / "2wikimultihopqa/corpus.json"
    passages = list(read_passages(path))
    assert detect_format(path) == "title-text"
    assert len(passages) == 6119
    assert [{"title": p.title, "text": p.text} for p in passages] == json.loads(path.read_text(encoding="utf-8"))


BOTH = {"id": "1", "contents": '"Alpha"\nOne. Two.'}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"title": "Alpha"},
        {"text": "One. Two."},
        {"title": '"Alpha"', "text": " One.  Two."},
        {"title": None, "text": None},
    ],
)
def test_contents_beside_the_same_title_and_text_are_read(tmp_path, more):
    assert list(read_passages(put(tmp_path / "x", lines(BOTH | more)))) == [Passage("1", "Alpha", "One. Two.")]


@pytest.mark.parametrize(
    "more",
    [{"title": "Beta"}, {"text": "Three."}, {"title": "Alpha", "text": "Three."}, {"contents": "One.", "title": "A"}],
)
def test_contents_beside_another_title_or_text_are_refused(tmp_path, more):
    path = put(tmp_path / "x", lines(BOTH | {"id": "0"}, BOTH | more))
    with pytest.raises(DataError, match=r"x:2: 'contents' and '(title|text)' differ, .*: leave one of them out"):
        list(read_passages(path))

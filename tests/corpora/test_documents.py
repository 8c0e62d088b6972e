"""One's own documents: titles found, nothing lost on the way to chunks, numbers worked by hand."""

from __future__ import annotations

import codecs
import json
import os
import re
import unicodedata
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support import growth

from searchgym.corpora.documents import chunk_passages, convert_documents, inspect_corpus
from searchgym.corpora.passages import corpus_sha256, read_passages, write_corpus
from searchgym.corpora.readers import markdown
from searchgym.corpora.readers.html import read_html
from searchgym.corpora.readers.markdown import read_markdown
from searchgym.errors import BadLines, DataError, DataMissingError, DataWarning, UsageError
from searchgym.records import Passage
from searchgym.retrieval import build_index, load_index
from searchgym.text import count_words

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""
ALONE = re.compile("CJK|HIRAGANA|THAI|MYANMAR")
"""Beginnings of the names of letters that are words alone; of katakana, a run is one."""


def convert(tmp_path: Path, name: str, content: str) -> Passage:
    """Converts one document."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    (passage,) = convert_documents(tmp_path)
    assert passage.id == name
    return passage


# -- documents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "title", "text"),
    [
        ("# Café\n\nOne.\n\nTwo.\n", "Café", "One.\n\nTwo."),
        ("\ufeff# A #\nText", "A", "Text"),
        ("# C#\nText", "C#", "Text"),
        ("Intro.\n\n## Later\nText", "Later", "Intro.\n\nLater\n\nText"),
        ("```\n# code\n```\n# Real\n", "Real", "# code\n\nReal"),
        ("#hashtag\n", "page", "#hashtag"),
        ("Only text.", "page", "Only text."),
        ("", "page", ""),
        ("---\ntitle: Front: not YAML\n---\n# A\n", "A", "title: Front: not YAML\n\nA"),
        ("---\ntitle: 'Front: yes'\ntags: [a]\n---\n# Heading\nText", "Front: yes", "Heading\n\nText"),
        ("---\ntitle: Same\n---\n\n# Same\nText", "Same", "Text"),
        ("---\ntags: [a]\n---\n# Heading\nText", "Heading", "Text"),
        ("---\ntitle: 1984\n---\nText", "1984", "Text"),
        ("---\nA rule, no front matter.\n\n---\n", "page", "A rule, no front matter."),
        ("---\n# Open\nText", "Open", "Text"),
    ],
)
def test_markdown(tmp_path, content, title, text):
    passage = convert(tmp_path, "page.md", content)
    assert (passage.title, passage.text) == (title, text)


@pytest.mark.parametrize(
    ("content", "title", "text"),
    [
        (
            "<!DOCTYPE html><html><head><title>A &amp; B</title><style>p {}</style></head>"
            "<body><h1>A &amp; B</h1><p>One <b>bo</b>ld\n word.<p>Two<br>three.<script>var x = '<p>';</script></body>",
            "A & B",
            "One bold word.\n\nTwo\n\nthree.",
        ),
        ("<h2>Head</h2><ul><li>One</li><li>Two</li></ul>", "Head", "One\n\nTwo"),
        ("<title>T</title><h1>Other</h1>Text", "T", "Other\n\nText"),
        ("<p>Intro</p><h1>Head</h1>", "Head", "Intro\n\nHead"),
        ("no tags &lt;here&gt;", "page", "no tags <here>"),
        ("<h1>Never closed <p>text", "Never closed", "text"),
        ("", "page", ""),
    ],
)
def test_html(tmp_path, content, title, text):
    passage = convert(tmp_path, "page.html", content)
    assert (passage.title, passage.text) == (title, text)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("See [the **guide**](../y.md#part 't') and <http://a.b>.", "See the guide and http://a.b."),
        ("![alt *text*](i.png) [ref] [no]\n\n[ref]: a.md", "alt text ref [no]"),
        ("*a* __b__ ***c*** ~~d~~ snake_case 2 * 3 \\*e\\*", "a b c d snake_case 2 * 3 *e*"),
        ("`x = *y*` &amp; &lt;b&gt; <b>bold</b><br>next", "x = *y* & <b> bold\nnext"),
        ("```py\nx = [1](2)\n\n| a |\n```", "x = [1](2)\n\n| a |"),
        ("    a | b\n", "a | b"),
        ("- a\n- [b](x.md)\n  1. c\n  2. d\n\nend", "- a\n- b\n  1. c\n  2. d\n\nend"),
        ("7. a\n\n8. b\n", "7. a\n\n8. b"),
        ("- \n\npara", "para"),
        ("| A | B |\n|---|:-:|\n| 1 | [x](y.md) |\n| | `p\\|q` |\n\nend", "A; B\n1; x\np|q\n\nend"),
        ("> quote\n> more\n\n---\n\nSetext\n===\nend", "quote\nmore\n\nSetext\n\nend"),
        ("<div><b>One</b>\n<p>two</div>\n\n<!-- no -->\nend", "One\n\ntwo\n\nend"),
    ],
)
def test_markdown_is_rendered_to_what_a_reader_sees(tmp_path, content, text):
    assert convert(tmp_path, "page.md", content).text == text


def test_links_between_documents_are_kept_beside_the_text(tmp_path):
    content = "# X\n\n- See [the *guide*](../y%20z.md#part), [out](http://a.b/y.md), [gone](gone.md), [me](x.md).\n\n"
    content += "| a | [tab](../y%20z.md) |\n|-|-|\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.md").write_text(content)
    (tmp_path / "y z.md").write_text("Y")
    passage, _ = convert_documents(tmp_path)
    assert passage.text == "- See the guide, out, gone, me.\n\na; tab"
    assert [(passage.text[start:end], target) for start, end, target in passage.links] == [
        ("the guide", "y z.md"),
        ("tab", "y z.md"),
    ]
    write_corpus(tmp_path / "c.jsonl", [passage])
    assert next(read_passages(tmp_path / "c.jsonl")).links == passage.links
    build_index([passage], tmp_path / "index")
    assert next(iter(load_index(tmp_path / "index").passages())).links == passage.links


@pytest.mark.parametrize(
    "links", ["x", [["a", 1, "b"]], [[0, 99, "b"]], [[2, 1, "b"]], [[0, 1]], [1], {"a": 1}, [[True, 2, "b"]]]
)
def test_what_a_corpus_calls_its_links_may_be_anything(tmp_path, links):
    (tmp_path / "c.jsonl").write_text(json.dumps({"id": "1", "title": "t", "text": "text", "links": links}) + "\n")
    assert next(read_passages(tmp_path / "c.jsonl")).links == ()


def test_text_keeps_its_hashes(tmp_path):
    assert convert(tmp_path, "notes.txt", "# not a heading\n\nText\n") == Passage(
        "notes.txt", "notes", "# not a heading\n\nText"
    )


def test_a_folder_in_the_order_of_ids(tmp_path):
    for name in (
        "b/two.md",
        "a.TXT",
        "b/one.html",
        "b/.hidden/x.md",
        ".git/y.md",
        ".z.md",
        "image.png",
        "c.md/inner.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    with pytest.warns(DataWarning, match=r"left out: 1 \.png$"):
        passages = list(convert_documents(tmp_path))
    assert [p.id for p in passages] == ["a.TXT", "b/one.html", "b/two.md", "c.md/inner.md"]


def test_folders_that_cannot_be_converted(tmp_path):
    with pytest.raises(DataMissingError, match="no such folder"):
        list(convert_documents(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"holds no documents: put .md, .txt, .html files there"):
        list(convert_documents(tmp_path))
    (tmp_path / "table.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"holds no documents: put .md, .txt, .html files there; left out: 1 .csv"):
        list(convert_documents(tmp_path))
    (tmp_path / "binary.md").write_bytes(b"\xff\0\x01")
    with (
        pytest.warns(DataWarning),
        pytest.raises(DataError, match=r"binary.md: is not text in a known encoding"),
    ):
        list(convert_documents(tmp_path))
    with pytest.raises(DataError, match="is a file: give a folder"):
        list(convert_documents(tmp_path / "binary.md"))


@pytest.mark.parametrize(
    ("name", "content", "text", "encoding"),
    [
        ("a.md", "Café".encode("latin-1"), "Café", "windows-1252"),
        ("a.txt", "“Café” €".encode("cp1252"), "“Café” €", "windows-1252"),
        ("a.txt", b"Caf\xe9 \x81", "Café \x81", "iso-8859-1"),
        ("a.txt", "Café".encode("utf-16"), "Café", "utf-16"),
        ("a.md", codecs.BOM_UTF16_BE + "Café".encode("utf-16-be"), "Café", "utf-16"),
        ("a.txt", "Café".encode("utf-32"), "Café", "utf-32"),
        ("a.html", "<meta charset='shift_jis'><p>ポッター".encode("shift_jis"), "ポッター", "shift_jis"),
        ("a.html", '<meta content="text/html; charset=KOI8-R"><p>Пушкин'.encode("koi8-r"), "Пушкин", "KOI8-R"),
        ("a.html", b"<meta charset=punycode><p>Caf\xe9", "Café", "windows-1252"),
    ],
)
def test_other_encodings_are_guessed_and_said_once(tmp_path, name, content, text, encoding):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.md").write_text("Plain Café", encoding="utf-8")
    with pytest.warns(DataWarning) as said:
        passages = list(convert_documents(tmp_path))
    assert [passage.text for passage in passages] == [text, "Plain Café"]
    assert [str(one.message) for one in said] == [f"{tmp_path / name}: is not UTF-8, it was read as {encoding}"]


def test_line_ends_of_other_systems(tmp_path):
    (tmp_path / "a.md").write_bytes(b"# A\r\n\r\nOne\r\n\r\n- two\rthree")
    (passage,) = convert_documents(tmp_path)
    assert (passage.title, passage.text) == ("A", "One\n\n- two\nthree")


# -- bounds --------------------------------------------------------------------------------------------------------


def test_a_document_has_a_limit_of_bytes(tmp_path):
    (tmp_path / "a.md").write_text("fine")
    (tmp_path / "b.md").touch()
    os.truncate(tmp_path / "b.md", 3 << 30)
    with pytest.raises(DataError, match=r"b\.md: more than 16,777,216 bytes: too long to be read whole"):
        list(convert_documents(tmp_path))
    bad = BadLines(1)
    assert [passage.text for passage in convert_documents(tmp_path, bad)] == ["fine"]
    assert len(bad.errors) == 1


PARTS = [
    "<a ",
    "<!",
    "&",
    "<![CDATA[",
    "<!--",
    "<a b='",
    "<script>",
    "[",
    "![",
    "[a](<b",
    "*a **a ",
    "- ",
    "| a ",
    " ",
    "\n",
]


@pytest.mark.parametrize("part", PARTS)
def test_html_takes_linear_time(part):
    assert growth(lambda n: read_html("<title>x</title>" + part * n)) < 8


@pytest.mark.slow_cases
@pytest.mark.parametrize("part", PARTS)
def test_markdown_takes_linear_time(part):
    assert growth(lambda n: read_markdown("# x" + part * n + "y\n" + part * n)) < 8


@pytest.mark.parametrize("text", ["- a\n" * 100, "a\n\n" * 100, "a b " * 100, "# a\nb\n" * 50])
def test_markdown_is_parsed_in_parts(monkeypatch, text):
    """The parser takes a thousand bytes of memory for some characters."""
    monkeypatch.setattr(markdown, "PART", 50)
    parts = []

    def parse(part, env):
        parts.append(part)
        return MarkdownIt().parse(part, env)

    monkeypatch.setattr(markdown, "_PARSER", Mock(parse=parse))
    found = read_markdown(text)
    assert max(map(len, parts)) <= 51
    assert "".join(parts) == text
    assert f"{found.title} {found.text}".split() == text.replace("#", "").split()


@pytest.mark.parametrize("content", ["<div>" * 5_000 + "x", "> " * 5_000 + "x", "- " * 5_000 + "x", "[" * 5_000 + "x"])
def test_no_depth_is_too_deep(content):
    assert "x" in read_markdown(content).text
    assert "x" in read_html(content).text


def test_a_character_of_many_digits_is_no_character():
    assert read_html("<p>a&#" + "9" * 5000 + ";b&#x41;").text == "a\N{REPLACEMENT CHARACTER}bA"


def test_a_title_has_a_limit(tmp_path):
    long = "x" * 2000
    for name, content in (("a.md", f"# {long}\n\nText"), ("b.html", f"<h1>{long}</h1>Text")):
        passage = {p.id: p for p in _converted(tmp_path, name, content)}[name]
        assert (passage.title, passage.text) == (name[0], f"{long}\n\nText")


def _converted(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    return convert_documents(tmp_path)


@pytest.mark.parametrize("kind", ["outside", "above", "to itself", "nowhere", "chain", "folder"])
def test_links_that_lead_out_of_the_folder_are_left_out_and_said(tmp_path, kind):
    (tmp_path / "secret.md").write_text("secret")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/secret.md").write_text("secret")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("fine")
    (docs / "inside.md").symlink_to("a.md")
    target = {
        "outside": tmp_path / "secret.md",
        "above": "../secret.md",
        "to itself": "link.md",
        "nowhere": "gone.md",
        "chain": "step.md",
        "folder": "../more",
    }[kind]
    (docs / "link.md").symlink_to(target)
    if kind == "chain":
        (docs / ".step").mkdir()
        (docs / "step.md").symlink_to(tmp_path / "secret.md")
    with pytest.warns(DataWarning, match=rf"left out: {2 if kind == 'chain' else 1} links that lead out of the folder"):
        passages = list(convert_documents(docs))
    assert [passage.id for passage in passages] == ["a.md", "inside.md"]


def test_a_pipe_among_documents_is_left_out(tmp_path):
    (tmp_path / "a.md").write_text("fine")
    os.mkfifo(tmp_path / "b.md")
    with pytest.warns(DataWarning, match="left out: 1 links to folders, pipes or devices"):
        assert [passage.id for passage in convert_documents(tmp_path)] == ["a.md"]


# -- chunks --------------------------------------------------------------------------------------------------------

LETTERS = Passage("d", "T", "a b c d e f g")


def texts(passage: Passage, *args, **options) -> list[str]:
    return [chunk.text for chunk in chunk_passages([passage], *args, **options)]


def test_chunks_by_words():
    assert list(chunk_passages([LETTERS, Passage("e", "", "x")], 3)) == [
        Passage("d#0", "T", "a b c"),
        Passage("d#1", "T", "d e f"),
        Passage("d#2", "T", "g"),
        Passage("e#0", "", "x"),
    ]
    assert texts(LETTERS, 3, 1) == ["a b c", "c d e", "e f g"]  # no last chunk that repeats an end
    assert texts(LETTERS, 3, 2) == ["a b c", "b c d", "c d e", "d e f", "e f g"]
    assert texts(LETTERS, 7) == texts(LETTERS, 100, 99) == ["a b c d e f g"]
    assert texts(Passage("d", "T", " \n "), 3) == []


def test_chunks_keep_what_stands_between_their_words():
    assert texts(Passage("d", "", " one\n\ntwo  three\u2028four "), 3) == ["one\n\ntwo  three", "four"]


def test_chunks_by_paragraph():
    passage = Passage("d", "", "a b\n\nc d\n \ne f g h i j k\n\nl")
    assert texts(passage, 4, by="paragraph") == ["a b\n\nc d", "e f g h", "i j k\n\nl"]
    assert texts(passage, 3, by="paragraph") == ["a b", "c d", "e f g", "h i j", "k\n\nl"]
    assert texts(passage, 4, 2, by="paragraph") == ["a b\n\nc d", "e f g h", "g h i j", "i j k\n\nl"]


def test_chunks_by_sentence():
    passage = Passage("d", "", 'One two. "Three?" Four five six! 7.5 eight')
    assert texts(passage, 4, by="sentence") == ['One two. "Three?"', "Four five six!", "7.5 eight"]
    assert texts(passage, 5, 1, by="sentence") == ['One two. "Three?"', '"Three?" Four five six!', "7.5 eight"]
    assert texts(passage, 100, by="sentence") == [passage.text]


def test_chunks_of_a_script_without_spaces():
    passage = Passage("d", "", "東京は日本の首都である。人口は多い。 Osaka も大きい")
    assert texts(passage, 4) == ["東京は日", "本の首都", "である。人", "口は多い。", "Osaka も大き", "い"]
    assert texts(passage, 12, by="sentence") == ["東京は日本の首都である。", "人口は多い。 Osaka も大きい"]
    assert texts(passage, 4, 2)[:2] == ["東京は日", "は日本の"]
    assert "".join("".join(texts(passage, 3)).split()) == "".join(passage.text.split())


WORDY = st.lists(st.sampled_from(["a", "bb", "c.", "d!", "é?"]), max_size=40).flatmap(
    lambda words: st.lists(
        st.sampled_from([" ", "\n", "\n\n", "\u3000", "\x1c"]), min_size=len(words), max_size=len(words)
    ).map(lambda gaps: "".join(word + gap for word, gap in zip(words, gaps, strict=True)))
)


SPACED = st.text().filter(lambda text: not UNSPACED.search(text))


@pytest.mark.slow
@given(WORDY | SPACED, st.integers(1, 9), st.integers(0, 8), st.sampled_from(["words", "paragraph", "sentence"]))
def test_chunks_lose_nothing(text, words, overlap, by):
    whole = text.split()
    plain = [chunk.split() for chunk in texts(Passage("d", "", text), words, 0, by)]
    assert [word for chunk in plain for word in chunk] == whole
    assert all(0 < len(chunk) <= words for chunk in plain)
    if overlap >= words:
        return
    # With overlap, a chunk goes on where the last one ended or up to `overlap` words before. Repeated words leave
    # several places open, so all of them are followed.
    ends = {0}
    for chunk in texts(Passage("d", "", text), words, overlap, by):
        parts = chunk.split()
        assert 0 < len(parts) <= words
        starts = {at for end in ends for at in range(max(0, end - overlap), end + 1)}
        ends = {at + len(parts) for at in starts if whole[at : at + len(parts)] == parts}
        assert ends
    assert len(whole) in ends


@given(st.text(alphabet="a 東、é\nカ。"), st.integers(1, 5), st.sampled_from(["words", "paragraph", "sentence"]))
def test_chunks_of_scripts_without_spaces_lose_nothing(text, words, by):
    chunks = texts(Passage("d", "", text), words, 0, by)
    assert "".join("".join(chunks).split()) == "".join(text.split())
    assert all(0 < count_words(chunk) <= words for chunk in chunks)
    assert sum(map(count_words, chunks)) == count_words(text)


@pytest.mark.parametrize(("words", "overlap"), [(0, 0), (3, 3), (3, -1)])
def test_chunk_sizes_that_make_no_sense(words, overlap):
    with pytest.raises(UsageError, match="expected words >= 1 and 0 <= overlap < words"):
        chunk_passages([], words, overlap)


def test_chunk_unit_that_does_not_exist():
    with pytest.raises(UsageError, match="expected by= words, paragraph or sentence, got 'page'"):
        chunk_passages([], by="page")  # type: ignore[arg-type]


# -- inspection ----------------------------------------------------------------------------------------------------


def test_inspect(tmp_path):
    lengths = [0, 2, 4, 6, 8]
    passages = [Passage(str(n), "T" * (n % 2), " ".join("w" * n for _ in range(n))) for n in lengths]
    passages.append(Passage("again", "U", passages[1].text))
    (tmp_path / "x.json").write_text(json.dumps([{"id": p.id, "title": p.title, "text": p.text} for p in passages]))
    assert inspect_corpus(tmp_path / "x.json") == {
        "format": "searchgym",
        "passages": 6,
        "sha256": corpus_sha256(passages),
        "words_mean": 22 / 6,
        "words_p5": 0.5,  # of 0 2 2 4 6 8: a quarter of the way from the first to the second
        "words_p50": 3.0,
        "words_p95": 7.5,
        "words_max": 8,
        "empty_titles": 5,
        "empty_texts": 1,
        "duplicate_texts": 1,
    }


def test_inspect_counts_characters_where_words_have_no_spaces(tmp_path):
    write_corpus(
        tmp_path / "x.jsonl", [Passage("1", "東京", "東京は日本の首都である。"), Passage("2", "U", "three plain words")]
    )
    found = inspect_corpus(tmp_path / "x.jsonl")
    assert (found["words_mean"], found["words_max"]) == (7.0, 11)


def test_inspect_documents_and_what_becomes_of_them(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# A\none two three")
    found = inspect_corpus(folder)
    assert (found["format"], found["passages"], found["words_mean"]) == ("documents", 1, 3.0)
    write_corpus(tmp_path / "x.jsonl", convert_documents(folder))
    assert inspect_corpus(tmp_path / "x.jsonl") == found | {"format": "searchgym"}
    with pytest.raises(DataMissingError, match="no such file"):
        inspect_corpus(tmp_path / "gone")


# -- real data -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_corpora(real_data):
    hotpot = inspect_corpus(real_data / "hotpotqa/corpus.json")
    wiki = inspect_corpus(real_data / "2wikimultihopqa/corpus.json")
    assert (hotpot["format"], hotpot["passages"], hotpot["empty_texts"]) == ("hotpotqa", 994, 0)
    assert (wiki["format"], wiki["passages"], wiki["duplicate_texts"]) == ("title-text", 6119, 0)
    source = json.loads((real_data / "2wikimultihopqa/corpus.json").read_text(encoding="utf-8"))
    words = sum(sum(map(words_of_run, row["text"].split())) for row in source)
    assert words > sum(len(row["text"].split()) for row in source) + 50  # names in Chinese, Japanese and Thai
    assert wiki["words_mean"] == pytest.approx(words / 6119)


def words_of_run(run: str) -> int:
    """Words of a text without blanks, by the names of its characters: an oracle that knows no segmentation."""
    if not UNSPACED.search(run):
        return 1
    letters = [c for c in run if unicodedata.category(c) == "Lo" and ALONE.match(unicodedata.name(c))]
    others = "".join(" " if UNSPACED.search(c) else c for c in run)
    return len(letters) + len(re.findall("[\u30a1-\u30fa\u30fc]+", run)) + len(re.findall(r"[\w'’]+", others))


@pytest.mark.slow
def test_real_passages_in_chunks_hold_every_word(real_data):
    passages = list(read_passages(real_data / "2wikimultihopqa/corpus.json"))
    for by in ("words", "paragraph", "sentence"):
        chunks = list(chunk_passages(passages, 50, by=by))
        assert sum(count_words(chunk.text) for chunk in chunks) == sum(count_words(one.text) for one in passages)
        spaced = [one for one in passages if not UNSPACED.search(one.text)]
        cut = [chunk for chunk in chunks if not UNSPACED.search(chunk.text)]
        assert len(spaced) > 6000 and sum(len(c.text.split()) for c in cut) == sum(count_words(c.text) for c in cut)
        assert len({chunk.id for chunk in chunks}) == len(chunks)

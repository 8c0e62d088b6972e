"""One's own documents: titles found, nothing lost on the way to chunks, numbers worked by hand."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.corpora.documents import chunk_passages, convert_documents, inspect_corpus
from searchgym.corpora.passages import corpus_sha256, read_passages, write_corpus
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.protocol import count_words
from searchgym.records import Passage

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
        ("Intro.\n\n## Later\nText", "Later", "Intro.\n\n## Later\nText"),
        ("```\n# code\n```\n# Real\n", "Real", "```\n# code\n```\n# Real"),
        ("#hashtag\n", "page", "#hashtag"),
        ("Only text.", "page", "Only text."),
        ("", "page", ""),
        ("---\ntitle: Front: not YAML\n---\n# A\n", "A", "---\ntitle: Front: not YAML\n---\n# A"),
        ("---\ntitle: 'Front: yes'\ntags: [a]\n---\n# Heading\nText", "Front: yes", "# Heading\nText"),
        ("---\ntitle: Same\n---\n\n# Same\nText", "Same", "Text"),
        ("---\ntags: [a]\n---\n# Heading\nText", "Heading", "Text"),
        ("---\ntitle: 1984\n---\nText", "1984", "Text"),
        ("---\nA rule, no front matter.\n\n---\n", "page", "---\nA rule, no front matter.\n\n---"),
        ("---\n# Open\n", "Open", "---\n# Open"),
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
    assert [p.id for p in convert_documents(tmp_path)] == ["a.TXT", "b/one.html", "b/two.md", "c.md/inner.md"]


def test_folders_that_cannot_be_converted(tmp_path):
    with pytest.raises(DataMissingError, match="no such folder"):
        list(convert_documents(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"holds no documents: put .md, .txt, .html files there"):
        list(convert_documents(tmp_path))
    (tmp_path / "latin.md").write_bytes("Café".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.md: not UTF-8"):
        list(convert_documents(tmp_path))
    with pytest.raises(DataError, match="is a file: give a folder"):
        list(convert_documents(tmp_path / "latin.md"))


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


def test_real_passages_in_chunks_hold_every_word(real_data):
    passages = list(read_passages(real_data / "2wikimultihopqa/corpus.json"))
    for by in ("words", "paragraph", "sentence"):
        chunks = list(chunk_passages(passages, 50, by=by))
        assert sum(count_words(chunk.text) for chunk in chunks) == sum(count_words(one.text) for one in passages)
        spaced = [one for one in passages if not UNSPACED.search(one.text)]
        cut = [chunk for chunk in chunks if not UNSPACED.search(chunk.text)]
        assert len(spaced) > 6000 and sum(len(c.text.split()) for c in cut) == sum(count_words(c.text) for c in cut)
        assert len({chunk.id for chunk in chunks}) == len(chunks)

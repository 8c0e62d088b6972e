"""Links, facts, packs and triples, each against cases worked by hand."""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from pathlib import Path

import pytest
from support import growth

from searchgym.errors import CardError, DataError, DataMissingError, UnknownNameError
from searchgym.options.cards import find_card
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.graph import evaluate, magnitude
from searchgym.questions.graphs.links import find_links
from searchgym.questions.graphs.packs import KindRule, Pack, check_pack, load_pack
from searchgym.questions.graphs.patterns import _expanded
from searchgym.questions.graphs.subjects import pronouns
from searchgym.questions.graphs.triples import read_names, read_triples
from searchgym.records import Passage
from searchgym.text import base_title, head_noun, holds, sentences, tidy, unlinked, words

DATA = os.environ.get("SEARCHGYM_DATA", "")
PACK = load_pack("people-and-works")


def corpus(*pages):
    return [Passage(str(number), title, text) for number, (title, text) in enumerate(pages)]


# -- text ----------------------------------------------------------------------------------------------------------


def test_words_of_scripts_without_spaces():
    assert [word.text for word in words("東京は Tokyo2")] == ["東", "京", "は", "Tokyo2"]
    assert [word.text for word in words("Мир и 5")] == ["Мир", "и", "5"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("He met Dr. Wu. She left.", ["He met Dr. Wu.", "She left."]),
        ("J. R. Smith came. It rained!", ["J. R. Smith came.", "It rained!"]),
        ("one\n\ntwo", ["one", "two"]),
        ("", [""]),
    ],
)
def test_sentences(text, parts):
    assert [text[start:end] for start, end in sentences(text)] == parts


@pytest.mark.parametrize(
    ("text", "noun"),
    [
        ("X is a 1998 American Western film directed by Y.", "film"),
        ("She is an Irish film director and writer.", "writer"),
        ("Nothing here.", ""),
        ("He is a Polish film and theatre actor.", "actor"),
        ("It is a 1964 film and the second of three.", "film"),
        ("It is a song recorded by Y.", "song"),
    ],
)
def test_head_noun(text, noun):
    assert head_noun(text) == noun


def test_names_and_spacing():
    assert base_title("Empire (2002 film)") == "Empire"
    assert base_title("(brackets)") == "(brackets)"
    assert tidy("Jean- Luc( born 1 May , 1900 )") == "Jean-Luc (born 1 May, 1900)"
    assert holds("The FILM Casablanca, 1942", "film casablanca")
    assert not holds("The filming of it", "film")
    assert not holds("anything", "")
    assert unlinked("see [the page](a/b.md#x) and [C](1984)") == "see the page and [C](1984)"


@pytest.mark.parametrize(
    ("literal", "number"),
    [
        ("17 May 1956", 19560517),
        ("May 17, 1956", 19560517),
        ("17 May, 1956", 19560517),
        ("1956-05-17", 19560517),
        ("1956", 1956),
        ("8848 m", 8848),
    ],
)
def test_magnitude_of_dates(literal, number):
    assert magnitude(literal) == number


# -- links ---------------------------------------------------------------------------------------------------------

FILM = ("Long Road (1998 film)", "Long Road is a 1998 film directed by Ann Lee.")


@pytest.mark.parametrize(
    ("text", "title", "linked"),
    [
        ("They met Orla Venn there.", "Orla Venn", True),
        ("They met King Orla Venn there.", "Orla Venn", True),  # an honorific
        ("They met Orla Venn Smith there.", "Orla Venn", False),  # inside a longer name
        ("They met Ada Orla Venn there.", "Orla Venn", False),
        ("It ended. Orla Venn came.", "Orla Venn", True),
        ("A town called Los there.", "Los", False),  # one word
        ('The song "Los" is old.', "Los", True),  # in quotes
        ("The town A is here, and 1 more.", "A", False),
        ("In the year 1999 there.", "1999", False),
        ("It was a long night there.", "long night", False),  # no name
        ("Their film Long Road (1998) won.", "Long Road (1998 film)", True),
        ("Their film Long Road (2001) won.", "Long Road (1998 film)", False),  # another year
        ("They walked Long Road home.", "Long Road (1998 film)", False),  # another bearer of the name
        ("Их город Новый Свет стоит.", "Новый Свет", True),
    ],
)
def test_links(text, title, linked):
    text_of = FILM[1] if title == FILM[0] else f"{title} is a page."
    found = find_links(corpus(("Source", text), (title, text_of)), honorifics=frozenset({"King"}))
    assert [(link.source, link.target) for link in found.links] == ([(0, 1)] if linked else [])
    if linked:
        link = found.links[0]
        assert text[link.start : link.end] == base_title(title)
    else:
        assert sum(found.refused.values()) == 1


def test_a_title_of_two_pages_is_refused():
    found = find_links(corpus(("Source", "They met Orla Venn."), ("Orla Venn", "one"), ("Orla Venn (poet)", "two")))
    assert (found.links, found.refused) == ((), {"several pages with this title": 1})


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [tidy, base_title, sentences, unlinked, words, lambda text: find_links(corpus(("A", text), (text[:5000], "x")))],
    ids=["tidy", "base_title", "sentences", "unlinked", "words", "find_links"],
)
@pytest.mark.parametrize("part", [" ", "\n", "A. ", "[", "(", "[a](", "[](", "[a](x#", "[](x.md", ") ", "a- "])
def test_a_text_of_one_thing_is_read_in_linear_time(read, part):
    assert growth(lambda n: read("a" + part * (n // len(part)) + "b")) < 8


def test_links_beside_a_rendered_text():
    text = "See the guide and the guide."
    links = ((4, 13, "y.md"), (18, 27, "y.md"), (0, 3, "gone.md"), (4, 13, "a/x.md"))
    pages = [Passage("a/x.md", "X", text, links), Passage("y.md", "Y", "text")]
    (link,) = find_links(pages).links
    assert (link.source, link.target, text[link.start : link.end], link.start) == (0, 1, "the guide", 4)


def test_links_of_markdown():
    pages = [Passage("a/x.md", "X", "See [the guide](../y.md#part) and [no](z.md)."), Passage("y.md", "Y", "text")]
    (link,) = find_links(pages).links
    assert (link.source, link.target, pages[0].text[link.start : link.end]) == (0, 1, "the guide")


def test_people_of_another_age_are_namesakes():
    pages = corpus(("Old", "Old (1500-1560) knew Orla Venn."), ("Orla Venn", "Orla Venn (born 1900) is a painter."))
    assert len(find_links(pages).links) == 1
    assert find_links(pages, [None, "person"]).refused == {"another age": 1}


# -- packs ---------------------------------------------------------------------------------------------------------


def changed(tmp_path, change):
    import yaml

    pack = yaml.safe_load(find_card("packs", "people-and-works").read_text())
    change(pack)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(pack, sort_keys=False))
    return str(path)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["relations"]["born"].update(paterns=[]), r"born\.paterns: unknown key; did you mean 'patterns'"),
        (
            lambda p: p["relations"]["born"].update(patterns=["(a"]),
            r"relations\.born\.patterns\[0\]: the pattern .* is broken",
        ),
        (lambda p: p["relations"]["born"].update(patterns=["a"]), r"needs a group \(\?P<object>"),
        (
            lambda p: p["relations"]["born"].update(subject="persn"),
            r"relations\.born\.subject: got 'persn'; did you mean 'person'",
        ),
        (lambda p: p["relations"]["born"].update(ask="When was {x} born?"), r"relations\.born\.ask: use \{s\}"),
        (lambda p: p.update(never=[["spouse", "sposue"]]), r"never\[0\]: got 'sposue'; did you mean 'spouse'"),
        (lambda p: p.update(never=[["spouse"]]), r"never\[0\]: give two relations"),
        (lambda p: p["plausible"][0].update(earlier="subjct.born"), r"plausible\[0\]: got 'subjct'"),
        (lambda p: p["pieces"].update(DATE="(["), r"pieces\.DATE"),
    ],
)
def test_a_pack_with_an_error(change, message, tmp_path):
    with pytest.raises(CardError, match=message):
        load_pack(changed(tmp_path, change))


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "pattern", ["((a{1000}){1000}){1000}", "(?:(?:a{60000}){60000}){60000}", "a{1000000000}", "a" * 60_000]
)
def test_a_pattern_that_would_take_all_memory(pattern, tmp_path):
    with pytest.raises(CardError, match=r"stands for [\d,]+ characters, at most 50,000 may"):
        load_pack(changed(tmp_path, lambda p: p.update(numbered=pattern)))


LONG = "x" * 45_000
BOMBS = {
    "piece": ({"A": LONG, "B": "{A}" * 3_000}, "", r"pieces\.B: the pattern .* stands for 135,009,000 characters"),
    "two": ({"A": LONG, "B": "{A}|{A}"}, "", r"pieces\.B: the pattern .* stands for 90,007 characters"),
    "pattern": ({"A": LONG}, "{A}" * 3_000, r"numbered: the pattern .* stands for 135,009,000 characters"),
    "doubled": (
        {"P0": "x"} | {f"P{n}": f"{{P{n - 1}}}{{P{n - 1}}}" for n in range(1, 40)},
        "",
        r"pieces\.P1\d: the pattern .* stands for",
    ),
    "many pieces": ({"A": LONG} | {f"P{n}": "{A}" for n in range(20)}, "", r"pieces\.P10: with their pieces filled in"),
    "groups": ({}, "()" * 25_000, r"numbered: the pattern .* opens more than 2,000 brackets"),
    "sets": ({}, "[" * 20_000, "numbered: the pattern .* is broken"),
    "number": ({}, "a{" + "9" * 5000 + "}", r"stands for [\d,]+ characters"),
    "nested": ({}, "(" * 900 + "a" + "{60000})" * 900, r"stands for [\d,]+ characters"),
}
"""Pieces, a pattern, and the error that they give."""


def checked(**given):
    check_pack(Pack(name="small", summary="", **({"kinds": {}, "relations": {}} | given)))


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", BOMBS)
def test_a_pack_that_would_take_all_memory_or_hours(name):
    pieces, numbered, message = BOMBS[name]
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(CardError, match=message):
            checked(pieces=pieces, numbered=numbered)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 3


def test_a_file_of_a_pack_that_would_take_all_memory(tmp_path):
    path = changed(tmp_path, lambda p: p["pieces"].update(A="x" * 40_000, B="{A}" * 30_000))
    with pytest.raises(CardError, match=r"mine\.yaml:1: pack .*: pieces\.B: the pattern .* stands for 1,200,090,000"):
        load_pack(path)


def test_all_patterns_of_a_pack_have_a_limit_together(monkeypatch):
    monkeypatch.setattr("searchgym.questions.graphs.patterns.TOTAL", 5_000)
    kinds = {"thing": KindRule(nouns=["thing"], signs=[f"{{A}}{n}" for n in range(20)])}
    with pytest.raises(CardError, match=r"kinds\.thing\.signs\[9\]: with their pieces filled in, the patterns so far"):
        checked(pieces={"A": "x" * 450}, kinds=kinds)


@pytest.mark.slow
def test_a_pattern_is_counted_in_linear_time():
    for part in ("{A}", "[", "(", "{9", "a", "[]", "\\\\"):
        assert growth(lambda n, part=part: _expanded(part * n)) < 8


@pytest.mark.parametrize(
    ("pattern", "size"),
    [("abc", 3), ("a{3}b", 4), ("(ab){3}", 6), ("[a-z]{4}x", 5), (r"\d{2,9}", 2), ("((a{2}b){2}){2}c", 13), ("", 0)],
)
def test_a_pattern_has_the_size_of_its_repetitions_written_out(pattern, size):
    assert _expanded(pattern) == size


def test_an_unknown_pack():
    with pytest.raises(UnknownNameError, match="people-and-works"):
        load_pack("people-and-work")


@pytest.mark.slow
def test_a_pattern_that_never_ends_is_stopped(tmp_path):
    slow = load_pack(
        changed(tmp_path, lambda p: p["relations"]["born"].update(patterns=[r"((\w|\w\w)+)+\d(?P<object>[xyz])"]))
    )
    pages = corpus(
        ("Ann Lee", "Ann Lee is a painter." + "a" * 200), ("Bo Ek", "Bo Ek (1 May 1900 – 2 June 1950) was a poet.")
    )
    began = time.process_time()
    found = find_facts(pages, slow)
    assert time.process_time() - began < 3
    assert any("took more than" in rule for rule in found.refused)
    assert ("died", "2 June 1950") in {(fact.relation, fact.text) for fact in found.facts}


ENDLESS = r"((\w|\w\w)+)+\d[xyz]"


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p["kinds"]["person"].update(signs=[ENDLESS]), "kind: a pattern took more than"),
        (lambda p: p.update(name_pattern=ENDLESS), "director: a pattern took more than"),
        (lambda p: p.update(numbered=ENDLESS), "father: a pattern took more than"),
    ],
)
def test_no_pattern_of_a_pack_holds_up_the_corpus(change, reason, tmp_path, monkeypatch):
    """The patterns of kinds, names and titles are stopped and counted like those of relations."""
    monkeypatch.setattr("searchgym.questions.graphs.facts.SECONDS", 0.02)
    long = "Ann" + "a" * 300
    pages = corpus(
        (f"King {long} Lee", f"King {long} Lee (born 1 May 1900) was a king."),
        ("Bo Ek", f"Bo Ek is a poet. He is the son of King {long} Lee."),
        ("Long Road", f"Long Road is a film directed by {long}."),
        ("Unknown", "a" * 300),
    )
    found = find_facts(pages, load_pack(changed(tmp_path, change)))
    assert any(rule.startswith(reason) for rule in found.refused), found.refused


# -- facts ---------------------------------------------------------------------------------------------------------


def facts_of(*pages):
    found = find_facts(corpus(*pages), PACK)
    return {
        (pages[f.subject][0], f.relation, f.text, None if f.target is None else pages[f.target][0]) for f in found.facts
    }


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            "Bo Ek (1 May 1900 – 2 June 1950) was a Swedish poet.",
            {("born", "1 May 1900"), ("died", "2 June 1950"), ("nationality", "Swedish")},
        ),
        ("Bo Ek( born May 1, 1900) is an actor.", {("born", "May 1, 1900")}),
        ("Bo Ek (born c. 1900) was an actor.", set()),
        ("Bo Ek (born 1900 or 1901) was an actor.", set()),
        ("Bo Ek is a Swedish-born poet.", set()),
        (
            "Bo Ek, born 3 May 1900 in Lund, Sweden, is an actor.",
            {("born", "3 May 1900"), ("birthplace", "Lund, Sweden")},
        ),
        ("Bo Ek is a poet. He married Ann Lee.", {("spouse", "Ann Lee")}),
        ("Bo Ek is a poet. He first married Ann Lee and later Eva Berg.", set()),
        (
            "Bo Ek is a poet. He is the son of King Karl Ek and his wife, Lady Ann Lee.",
            {("father", "Karl Ek"), ("mother", "Ann Lee")},
        ),
        ("Ek is a poet. He married Eva Berg, daughter of King Karl Berg.", {("spouse", "Eva Berg")}),
        (
            "Long Road is a 1998 American film directed by Ann Lee.",
            {("released", "1998"), ("country", "American"), ("director", "Ann Lee")},
        ),
        ("Long Road is a 1998 film directed by Ann Lee and Bo Ek.", {("released", "1998")}),
        ("Long Road is a 1998 film directed by Ann Lee's brother.", {("released", "1998")}),
        ("Long Road is a song recorded by Irish singer Ann Lee.", {("performer", "Ann Lee")}),
        ("Long Road is a river.", set()),
        ("Bo Ek was the eldest son of Karl I (1496–1560) and a poet.", set()),
        ("Long Road is a film, a remake of one written by Ann Lee.", set()),
        ("Long Road is a film co-written by Ann Lee.", set()),
    ],
)
def test_facts_of_one_page(text, facts):
    assert {(relation, shown) for _, relation, shown, _ in facts_of(("Page", text))} == facts


@pytest.mark.parametrize("date", ["17 May 1956", "17 May, 1956", "May 17, 1956", "1956-05-17", "1956"])
def test_dates_in_five_forms(date):
    assert {(r, shown) for _, r, shown, _ in facts_of(("Bo Ek", f"Bo Ek (born {date}) is a poet."))} == {("born", date)}


def test_a_linked_object_and_impossible_years():
    film = ("Long Road", "Long Road is a 1998 film directed by Ann Lee.")
    young, dead = "Ann Lee (born 1 May 1960) is a director.", "Ann Lee (1 May 1990 – 1 May 1995) was a director."
    assert ("Long Road", "director", "Ann Lee", "Ann Lee") in facts_of(film, ("Ann Lee", young))
    assert not {row for row in facts_of(film, ("Ann Lee", dead)) if row[1] == "director"}
    assert not {row for row in facts_of(film, ("Ann Lee", "Ann Lee is a river.")) if row[1] == "director"}


def test_pronouns():
    assert pronouns("He said that his dog saw her.") == (2, 1)


def test_awkward_corpora():
    assert not find_facts([], PACK).facts
    assert not find_facts(corpus(("", ""), ("The", "The the the."), ("東京", "東京は日本の首都。" * 50)), PACK).facts
    same = corpus(("Ann Lee", "Ann Lee is a poet."), ("Ann Lee", "Ann Lee is a river."), ("X", "With Ann Lee there."))
    assert find_facts(same, PACK).refused_links == {"several pages with this title": 1}


# -- triples -------------------------------------------------------------------------------------------------------


def written(tmp_path, text, name="t.tsv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_triples_from_a_file(tmp_path):
    path = written(tmp_path, "a\tmother\tb\nb\tborn\t1900\na\tmother\tb\na\tknows\ta\nc\tmother\tb\n")
    graph = read_triples(path)
    assert len(graph) == 3  # one loop and one repeat are left out
    assert sorted(graph.triples()) == [("a", "mother", "b"), ("b", "born", "1900"), ("c", "mother", "b")]
    assert graph.subjects("b", "mother") == ["a", "c"]
    assert graph.objects("a", "mother") == ["b"]
    assert graph.objects("a", "father") == graph.objects("nobody", "mother") == []
    assert evaluate(graph, {"op": "path", "start": "a", "steps": ["mother", "born"]}) == ["1900"]
    assert evaluate(graph, {"op": "path", "start": "1900", "steps": ["~born", "~mother"]}) == ["a", "c"]


def test_triples_equal_a_naive_look_up(tmp_path):
    rng = random.Random(3)
    rows = [(f"n{rng.randrange(40)}", f"r{rng.randrange(4)}", f"n{rng.randrange(40)}") for _ in range(600)]
    graph = read_triples(written(tmp_path, "".join("\t".join(row) + "\n" for row in rows)))
    kept = {row for row in rows if row[0] != row[2]}
    assert set(graph.triples()) == kept
    for node, relation in {(row[0], row[1]) for row in rows}:
        assert set(graph.objects(node, relation)) == {c for a, b, c in kept if (a, b) == (node, relation)}
        assert set(graph.subjects(node, relation)) == {a for a, b, c in kept if (c, b) == (node, relation)}
    walks = [graph.walk(rng, 2) for _ in range(2000)]
    for start, steps, end in filter(None, walks):
        assert evaluate(graph, {"op": "path", "start": start, "steps": steps}) == [end]
    assert any(walks)


def test_names_of_entities_and_relations(tmp_path):
    triples = written(tmp_path, "Q1\tP1\tQ2\nQ3\tP1\tQ2\n")
    names = written(tmp_path, "Q1\tAnn Lee\tA. Lee\nQ2\tLund\nQ9\tNobody\n", "n.txt")
    graph = read_triples(triples, names, written(tmp_path, "P1\tborn in\n", "r.txt"))
    assert set(graph.triples()) == {("Ann Lee", "born in", "Lund"), ("Q3", "born in", "Lund")}


def test_two_entities_of_one_name(tmp_path):
    graph = read_triples(written(tmp_path, "Q1\tP1\tQ2\n"), written(tmp_path, "Q1\tAnn\nQ2\tAnn\n", "n.txt"))
    assert list(graph.triples()) == [("Ann", "P1", "Ann (Q2)")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\tc\na\tb\n", r"t\.tsv:2: needs subject, relation and object"),
        ("a\tb\tc\td\n", r"t\.tsv:1: needs subject"),
        ("a\t\tc\n", r"t\.tsv:1: needs subject"),
        ("a\tb\tc\n\na\tb\tc\n", r"t\.tsv:2: needs subject"),
        (b"a\tb\t\xff\n", r"t\.tsv: not UTF-8"),
        ("", r"t\.tsv: holds no triples"),
    ],
)
def test_damaged_triples(text, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_triples(written(tmp_path, text))


def test_missing_and_nameless_files(tmp_path):
    with pytest.raises(DataMissingError, match="no such file"):
        read_triples(tmp_path / "none.tsv")
    with pytest.raises(DataError, match=r"n\.txt:1: needs an id and a name"):
        read_names(written(tmp_path, "Q1\n", "n.txt"))


# -- real text -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="SEARCHGYM_DATA is not set")
def test_links_and_facts_of_real_pages():
    rows = json.loads((Path(DATA) / "2wikimultihopqa" / "corpus.json").read_text())
    pages = [Passage(str(number), row["title"], row["text"]) for number, row in enumerate(rows)]
    began = time.process_time()
    found = find_facts(pages, PACK)
    assert time.process_time() - began < 10
    assert len(found.links) >= 2000
    assert len(found.facts) >= 10_000


def test_a_byte_order_mark_is_no_part_of_the_first_subject(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tr\tb\nb\tr\tc\n", encoding="utf-8-sig")
    assert sorted(read_triples(tmp_path / "t.tsv").triples()) == [("a", "r", "b"), ("b", "r", "c")]

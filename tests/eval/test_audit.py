"""Audit of questions against a corpus: kinds of holes by hand, distances by another implementation, planted holes."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from support import CARD, TitleRetriever, command_line

from searchgym.agents.base import load_agent
from searchgym.corpora.documents import chunk_passages
from searchgym.corpora.passages import read_passages, write_corpus
from searchgym.corpora.questions import write_questions
from searchgym.envs import load_task
from searchgym.errors import DataError, UsageError
from searchgym.eval import evaluate
from searchgym.eval.audit import Audit, GoldPage, audit_corpus, fill_corpus, gold_pages_of, on_answerable
from searchgym.eval.audit.answerable import read_answerable
from searchgym.eval.audit.golds import fold_title, plain_words
from searchgym.eval.audit.holes import judge
from searchgym.eval.audit.match import BATCH, Matcher
from searchgym.eval.scores import wilson_ci
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Paragraph, Passage, Question, SupportingFact, title_key
from searchgym.retrieval import build_in_memory

SENTENCES = (
    "The herring gull is a large bird that nests on cliffs. ",
    "It lays three eggs in May and both parents sit on them. ",
    "Its call is known from many films about the sea.",
)
TEXT = "".join(SENTENCES)
"""33 words: 11, 12 and 10."""
OTHER = "A tern is smaller and dives for fish while gulls walk along the shore at low tide in winter."


def asked(*facts, sentences=SENTENCES, answer="three eggs", title="Herring gull", **changes):
    """A question about the page, which needs the second sentence unless others are given."""
    needed = facts or (1,)
    question = Question(
        "q", "How many does it lay?", (answer,), paragraphs=(Paragraph(title, sentences, True),),
        supporting_facts=tuple(SupportingFact(title, number) for number in needed),
    )  # fmt: skip
    return dataclasses.replace(question, **changes)


def audited(passages, question=None, **options):
    (row,) = audit_corpus([question or asked()], lambda: passages, **options)
    return row


def state(passages, question=None):
    row = audited(passages, question)
    (finding,) = row.findings
    return finding.kind, finding.distance, row.answerable, row.answer


def page(text=TEXT, title="Herring gull", id="p"):
    return Passage(id, title, text)


ALTERED = TEXT.replace("large", "small")
"""One word in the first sentence, which the question does not need."""
KINDS = {
    "the same": ([page()], ("present", 0.0, True, "in corpus")),
    "case, accents and punctuation": ([page(TEXT.upper().replace("MAY", "Máy!"))], ("present", 0.0, True, "in corpus")),
    "within a longer page": ([page(f"{OTHER} {TEXT} {OTHER}")], ("present", 0.0, True, "in corpus")),
    "in two pieces": ([page(TEXT[:80]), page(TEXT[80:], id="r")], ("present", 0.0, True, "in corpus")),
    "title's case": ([page(title="HERRING GULL")], ("title spelled otherwise", 0.0, True, "in corpus")),
    "title's bracket": ([page(title="Herring Gull (bird)")], ("title spelled otherwise", 0.0, True, "in corpus")),
    "title's Unicode form": ([page(title="Herring\u00a0gull ")], ("present", 0.0, True, "in corpus")),
    "another title": ([page(title="Silver bird")], ("retitled", 0.0, True, "in corpus")),
    "end cut": ([page(SENTENCES[0])], ("cut", round(1 - 22 / 44, 4), False, "lost")),
    "cut, with what is needed": ([page("".join(SENTENCES[:2]))], ("cut", round(1 - 46 / 56, 4), True, "in corpus")),
    "one word altered": ([page(ALTERED)], ("near-duplicate", round(1 - 64 / 66, 4), True, "in corpus")),
    "answer altered": (
        [page(TEXT.replace("three", "four"))],
        ("near-duplicate", round(1 - 64 / 66, 4), False, "lost"),
    ),
    "a word put in": (
        [page(TEXT.replace("lays three", "lays not three"))],
        ("near-duplicate", round(1 - 66 / 67, 4), False, "in corpus"),
    ),
    "another text": ([page(OTHER)], ("other text", None, False, "lost")),
    "nothing": ([page(OTHER, "Tern")], ("missing", None, False, "lost")),
    "an empty corpus": ([], ("missing", None, False, "lost")),
}  # fmt: skip


@pytest.mark.parametrize("passages, expected", KINDS.values(), ids=KINDS)
def test_each_kind_of_hole(passages, expected):
    assert len(plain_words(TEXT)) == 33
    assert state(passages) == expected


def test_a_page_that_resembles_a_missing_one_is_named():
    row = audited([page(TEXT.replace("herring", "common").replace("three", "two"), "Common gull")])
    assert (row.findings[0].kind, row.findings[0].nearest) == ("retitled", "Common gull")  # two words of 33
    worse = TEXT.replace("herring", "common").replace("three eggs in May", "two chicks late").replace("films", "songs")
    row = audited([page(worse, "Common gull")])
    assert (row.findings[0].kind, row.findings[0].nearest) == ("missing", "Common gull")
    assert 0.15 < row.findings[0].distance < 0.5


def test_titles_are_folded_without_mixing_pages():
    assert fold_title("Émile  Zola (writer)") == fold_title("emile_zola") == "emile zola"
    assert fold_title("!!!") == "" and fold_title("Tom &amp; Jerry") == "tom jerry"
    planet = asked(title="Mercury (planet)")
    assert state([page(OTHER, "Mercury (element)")], planet)[0] == "missing"
    assert state([page(title="Mercury (element)")], planet)[0] == "retitled"
    assert state([page(title="Mercury")], planet)[0] == "title spelled otherwise"
    assert state([page(ALTERED, title="Mercury (element)")], planet)[0] == "retitled"
    alike = TEXT.replace("three", "two").replace("May", "June").replace("sea", "war").replace("large", "small")
    assert state([page(alike, title="Mercury (element)")], planet)[0] == "missing"
    assert state([page(alike, title="Mercury (Planet)")], planet)[0] == "near-duplicate"


def test_copies_and_conflicts_are_counted():
    finding = audited([page(), page(id="again"), page(ALTERED, id="older")]).findings[0]
    assert (finding.kind, finding.ids, finding.copies, finding.conflicts) == ("present", ("p", "again"), 1, ("older",))
    finding = audited([page(ALTERED, id="older"), page()]).findings[0]
    assert (finding.kind, finding.ids, finding.copies, finding.conflicts) == ("present", ("p",), 0, ("older",))


def test_golds_without_text_are_compared_by_title():
    question = asked(paragraphs=None)
    assert state([page(OTHER)], question) == ("present", None, True, "in no gold page")
    assert state([page()], question) == ("present", None, True, "in corpus")
    assert state([page(title="herring gull (bird)")], question)[0] == "title spelled otherwise"
    assert state([page(title="Gull")], question)[:3] == ("missing", None, False)


def test_faults_of_the_gold_data_are_named():
    pages, faults = gold_pages_of(asked(1, 7))
    assert (pages[0].needed, faults) == ((1,), ["gold page 'Herring gull' has no sentence 7"])
    pages, faults = gold_pages_of(asked(sentences=(" ", "")))
    assert pages == [GoldPage("Herring gull")] and faults == ["gold page 'Herring gull' has no text"]
    row = audited([page()], asked(answer="seventeen"))
    assert (row.answerable, row.faults) == (True, ("answer 'seventeen' is in no gold page",))
    assert audited([page()], asked(answer="yes")).answer == "not needed"
    assert audited([page()], asked(answer="herring gull")).answer == "in corpus"
    nameless = Question("n", "Who?", ("x",))
    assert audited([page()], nameless).answerable is None


def test_short_texts_are_compared_whole():
    short = asked(0, sentences=("White bird.",), answer="white")
    assert state([page("White bird.")], short) == ("present", 0.0, True, "in corpus")
    assert state([page("A white bird. It nests.")], short)[0] == "present"
    assert state([page("Black bird.")], short)[0] == "other text"


def naive(gold, text):
    """Shared words of a gold text and a passage, and its other words, from sets of four words in a row."""
    a, b = plain_words(gold), plain_words(text)
    runs = [{tuple(w[i : i + 4]) for i in range(len(w) - 3)} for w in (a, b)]
    shared = [
        {i + o for i in range(len(w) - 3) if tuple(w[i : i + 4]) in other for o in range(4)}
        for w, other in ((a, runs[1]), (b, runs[0]))
    ]
    return len(shared[0]), len(a), len(b) - len(shared[1])


@pytest.mark.parametrize("seed", range(3))
def test_distances_equal_those_of_another_implementation(seed):
    rng = random.Random(seed)
    world = build_world(WorldSpec("full", 40, seed, "validation"))
    pages = [GoldPage(p.title, p.text) for p in world.passages[:40] if len(plain_words(p.text)) >= 4]
    altered = []
    for number, gold in enumerate(pages):
        words = gold.text.split()
        for at in rng.sample(range(len(words)), rng.randrange(len(words))):
            words[at] = rng.choice(rng.choice(pages).text.split())
        altered.append(Passage(str(number), gold.title, " ".join(words)))
    matcher = Matcher(pages)
    matcher.add(altered)
    for match, passage in zip(matcher.matches, altered, strict=True):
        shared, total, extra = naive(match.page.text, passage.text)
        cover = match.covers[title_key(passage.title)]
        assert cover.share == pytest.approx(shared / total)
        if shared:
            assert cover.extra == extra
            assert cover.distance == pytest.approx(1 - 2 * shared / (total + shared + extra))


def holed(world, seed, count=6):
    """A world's pages with holes, and the kind of each."""
    rng = random.Random(seed)
    golds = sorted({title_key(title) for q in world.questions for title in q.gold_titles or ()})
    kinds = dict(zip(rng.sample(golds, 3 * count), ["missing", "cut", "near-duplicate"] * count, strict=True))
    passages = []
    for passage in world.passages:
        words, kind = passage.text.split(), kinds.get(title_key(passage.title))
        if kind == "cut":
            words = words[: len(words) // 2]
        elif kind == "near-duplicate":
            words[rng.randrange(len(words))] = "zzyzx"
        if kind != "missing":
            passages.append(dataclasses.replace(passage, text=" ".join(words)))
    return passages, kinds


def with_texts(world):
    """The world's questions with the texts of their gold pages, as public sets bring them."""
    text = {title_key(p.title): p for p in world.passages}
    return [
        dataclasses.replace(q, paragraphs=tuple(
            Paragraph(text[title_key(t)].title, (text[title_key(t)].text,), True) for t in q.gold_titles or ()
        ))
        for q in world.questions
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["simple", "full"])
def test_planted_holes_are_named_and_nothing_else(level):
    world = build_world(WorldSpec(level, 60, 7, "test"))
    questions = with_texts(world)
    clean = Audit()
    for row in audit_corpus(questions, lambda: world.passages):
        clean.add(row)
    assert set(clean.kinds) == {"present"} and clean.answerable == clean.with_golds
    passages, kinds = holed(world, 1)
    seen = {
        title_key(finding.title): finding.kind
        for row in audit_corpus(questions, lambda: passages, block=25)  # three blocks: the corpus is read again
        for finding in row.findings
    }
    assert {title: kind for title, kind in seen.items() if kind != "present"} == kinds


@pytest.mark.parametrize(
    "words, overlap, by", [(40, 0, "words"), (7, 0, "words"), (30, 9, "words"), (40, 0, "sentence")]
)
def test_a_corpus_that_is_chunked_otherwise_has_no_holes(words, overlap, by):
    world = build_world(WorldSpec("full", 60, 7, "test"))
    chunks = list(chunk_passages(world.passages, words, overlap, by))
    rows = list(audit_corpus(with_texts(world), lambda: chunks))
    assert all(row.answerable for row in rows)
    assert {finding.kind for row in rows for finding in row.findings} == {"present"}
    passages, kinds = holed(world, 1)
    chunks = list(chunk_passages(passages, words, overlap, by))
    holes = {title_key(f.title) for row in audit_corpus(with_texts(world), lambda: chunks) for _, f in row.holes}
    assert holes == kinds.keys()


def test_long_documents_and_batches_change_nothing(monkeypatch):
    long = page(f"{'word ' * (BATCH + 5)}{TEXT}")
    assert state([page(OTHER, "Tern"), long])[0] == "present"
    monkeypatch.setattr("searchgym.eval.audit.match.BATCH", 10)
    assert state([page(OTHER, "Tern"), page(ALTERED)])[:2] == KINDS["one word altered"][1][:2]


def test_searches_count_the_hits_that_hold_every_gold_page():
    passages = [page(id="p"), Passage("t", "Tern", OTHER), page(ALTERED, "Gull", "g")]
    question = dataclasses.replace(asked(), text="Tern or Herring gull ?")
    row = audited(passages, question, retriever=build_in_memory(passages), most=3)
    assert row.reach == {"question": 2, "titles": 1}
    assert audited(passages, question, retriever=TitleRetriever(passages), most=3).reach["titles"] is None
    counts = Audit()
    counts.add(row)
    assert counts.shares((1, 2)) == [
        {"query": "question", "n": 1, "@1": 0.0, "@2": 1.0},
        {"query": "titles", "n": 1, "@1": 1.0, "@2": 1.0},
    ]


def test_a_filled_corpus_has_every_gold_page(tmp_path):
    world = build_world(WorldSpec("full", 60, 7, "test"))
    questions, (passages, kinds) = with_texts(world), holed(world, 1)
    holes = [(row.id, *hole) for row in audit_corpus(questions, lambda: passages) for hole in row.holes]
    done = fill_corpus(passages, holes, tmp_path / "filled", "world", "questions")
    assert done == {"passages": len(passages) + len(kinds), "added": len(kinds), "without_text": 0}
    filled = list(read_passages(tmp_path / "filled" / "corpus.jsonl"))
    assert filled[: len(passages)] == passages
    rows = list(audit_corpus(questions, lambda: filled))
    assert all(row.answerable and not row.holes for row in rows)
    assert len((tmp_path / "filled" / "added.jsonl").read_text().splitlines()) == len(kinds)
    with pytest.raises(DataError, match="earlier fill"):
        fill_corpus(filled, holes, tmp_path / "twice", "world", "questions")


def test_em_on_answerable_questions():
    assert on_answerable({"a": 1.0, "b": 0.0, "c": 1.0}, {"a", "b"})["em"] == 0.5
    assert on_answerable({"a": 1.0}, {"a"}) is None
    assert on_answerable({"a": 1.0}, ()) == {"n": 0, "of": 1, "em": None, "em_ci95": None}


def test_evaluations_report_em_on_answerable_questions(tmp_path):
    questions = [asked(id="good"), asked(id="bad", title="Albatross", sentences=("It glides over the whole ocean.",))]
    agent = load_agent("evidence-oracle")
    task = load_task(CARD, questions=questions, retriever=build_in_memory([page(), page(OTHER, "Tern", "t")]))
    scores = evaluate(task, agent, tmp_path / "run")
    assert scores["em"] == 0.5
    assert scores["on_answerable"] == {"n": 1, "of": 2, "em": 1.0, "em_ci95": [1.0, 1.0]}
    assert "on_answerable" not in evaluate(task.asking(questions[:1]), agent, tmp_path / "good")


def test_wilsons_interval():
    """The values are those of scipy.stats.binomtest(37, 100).proportion_ci(method="wilson")."""
    assert wilson_ci(37, 100) == pytest.approx([0.281824, 0.467795], abs=1e-6)
    assert wilson_ci(0, 10)[0] == 0.0 and wilson_ci(10, 10)[1] == pytest.approx(1.0)


def test_the_command_writes_and_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    questions = [asked(id="a"), asked(id="b", title="Albatross", sentences=("It glides over the whole ocean.",))]
    write_questions("q.jsonl", questions)
    write_corpus("c.jsonl", [page(), page(OTHER, "Tern", "t")])
    run = command_line(monkeypatch, capsys)
    given = ["corpus", "audit", "--questions", "q.jsonl", "--corpus", "c.jsonl"]
    status, out, err = run(*given, "--out", "audit", "--fill", "filled")
    assert status == 0, err
    assert "1 of 2 questions can be answered from this corpus: 0.500." in err
    assert "Albatross" in out and max(map(len, out.splitlines())) <= 80
    assert {path.name for path in (tmp_path / "audit").iterdir()} == {
        "questions.jsonl", "report.json", "report.md", "report.png",
    }  # fmt: skip
    status, out, err = run(*given, "--json", "--no-search", "--sample", "1")
    assert status == 0 and json.loads(out)["questions"] == 1, err
    evaluated = ["eval", "--questions", "q.jsonl", "--corpus", "c.jsonl", "--agent", "closed-book", "--json"]
    status, out, err = run(*evaluated, "--audit", "audit")
    assert status == 0 and json.loads(out)["on_answerable"]["n"] == 1, err
    for wrong, message in (
        (["--out", "audit"], "already exists"),
        (["--no-search", "--retriever", "bm25"], "exclude each other"),
        (["--questions", "none.jsonl"], "no such file"),
    ):
        status, _, err = run(*given, *wrong)
        assert status == 2 and message in err, (wrong, err)


def test_an_interrupted_audit_says_so_and_can_be_started_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    write_questions("q.jsonl", [asked()])
    write_corpus("c.jsonl", [page()])
    given = ["corpus", "audit", "--questions", "q.jsonl", "--corpus", "c.jsonl", "--no-search", "--out", "audit"]
    run = command_line(monkeypatch, capsys)
    with monkeypatch.context() as patch:
        patch.setattr("searchgym.eval.audit.audit.judge", interrupted)
        status, _, err = run(*given)
    assert (status, "interrupted: nothing was written" in err) == (130, True), err
    assert list((tmp_path / "audit").iterdir()) == []
    assert run(*given)[0] == 0


def interrupted(match):
    raise KeyboardInterrupt


def test_a_damaged_question_file_is_refused_before_the_corpus_is_opened(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"id": 1')
    write_corpus("c.jsonl", [page()])
    monkeypatch.setattr("searchgym.envs.data.load_corpus", interrupted)
    status, _, err = command_line(monkeypatch, capsys)(
        "corpus", "audit", "--questions", "q.jsonl", "--corpus", "c.jsonl"
    )
    assert status == 1 and "not JSON" in err


def test_an_audit_of_other_questions_is_refused(tmp_path):
    task = load_task(CARD, questions=[asked()], retriever=build_in_memory([page()]))
    (tmp_path / "questions.jsonl").write_text('{"id": "other", "answerable": true}\n')
    with pytest.raises(DataError, match="has no question 'q'"):
        read_answerable(tmp_path, task)
    (tmp_path / "questions.jsonl").write_text('{"id": "q"}\n')
    with pytest.raises(DataError, match="not a row of"):
        read_answerable(tmp_path, task)


def test_bad_numbers_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        audited([page()], block=0)
    assert judge(Matcher([GoldPage("x", TEXT)]).matches[0]).kind == "missing"

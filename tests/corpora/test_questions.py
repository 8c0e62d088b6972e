"""Questions: every format gives what stands in it, and refuses what does not fit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.corpora.files import dump_line, parse_line
from searchgym.corpora.questions import (
    parse_questions,
    question_row,
    read_aliases,
    read_queries,
    read_questions,
    write_questions,
)
from searchgym.corpora.rows import Rows
from searchgym.errors import BadLines, DataError, DataMissingError, DataWarning, UnknownNameError, UsageError
from searchgym.records import Hop, Paragraph, Question, SupportingFact, Triple, title_key

HOTPOT = {
    "_id": "5a8b57f2",
    "question": "Which firm did the mayor of Alpha found?",
    "answer": "Béta & Söhne",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Mayor", 1], ["Béta &amp; Söhne", 0]],
    "context": [
        ["Mayor", ["She is the mayor.", " She founded a firm."]],
        ["Gamma", ["A letter."]],
        ["Béta & Söhne", ["A firm.", " Old."]],
    ],
}
WIKI = {
    "_id": "8813f87c",
    "type": "compositional",
    "question": "Who is the mother of the director?",
    "context": [["Film", ["A film.", "It has a director."]], ["Director", ["A man.", "His mother is Ann.", "Old."]]],
    "entity_ids": "Q1_Q2",
    "supporting_facts": [["Film", 1], ["Director", 1]],
    "evidences": [["Film", "director", "Director"], ["Director", "mother", "Ann"]],
    "answer": "Ann",
}
WIKI_IDS = WIKI | {
    "evidences_id": [["Q1", "director", "Q2"], ["Q2", "mother", "Q3"]],
    "answer_id": "Q3",
}
MUSIQUE = {
    "id": "2hop__482757_12019",
    "paragraphs": [
        {"idx": 0, "title": "Green (album)", "paragraph_text": "By Steve.", "is_supporting": True},
        {"idx": 1, "title": "Steve", "paragraph_text": "His wife is Miq.", "is_supporting": True},
        {"idx": 2, "title": "Red", "paragraph_text": "A colour.", "is_supporting": False},
    ],
    "question": "Who is the spouse of the Green performer?",
    "question_decomposition": [
        {"id": 1, "question": "Green >> performer", "answer": "Steve", "paragraph_support_idx": 0},
        {"id": 2, "question": "#1 >> spouse", "answer": "Miq", "paragraph_support_idx": 1},
    ],
    "answer": "Miq",
    "answer_aliases": ["Miquette"],
    "answerable": True,
}
FLASHRAG = {
    "id": "test_0",
    "question": "who got the first nobel prize in physics",
    "golden_answers": ["Wilhelm Conrad Röntgen", "Röntgen"],
}


def put(path: Path, content: object) -> Path:
    """Writes bytes or text as they are, anything else as JSON; a tuple as JSON lines."""
    if isinstance(content, tuple):
        content = b"".join(map(dump_line, content))
    elif isinstance(content, str):
        content = content.encode()
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refused(path: Path, **options) -> DataError:
    with pytest.raises(DataError) as caught:
        read_questions(path, **options)
    return caught.value


# -- formats -------------------------------------------------------------------------------------------------------


def test_hotpotqa(tmp_path):
    (question,) = read_questions(put(tmp_path / "x.json", [HOTPOT]))
    assert question == Question(
        id="5a8b57f2",
        text="Which firm did the mayor of Alpha found?",
        answers=("Béta & Söhne",),
        kind="bridge",
        level="hard",
        supporting_facts=(SupportingFact("Mayor", 1), SupportingFact("Béta &amp; Söhne", 0)),
        paragraphs=(
            Paragraph("Mayor", ("She is the mayor.", " She founded a firm."), supporting=True),
            Paragraph("Gamma", ("A letter.",)),
            Paragraph("Béta & Söhne", ("A firm.", " Old."), supporting=True),
        ),
    )
    assert question.gold_titles == ("Mayor", "Béta &amp; Söhne")
    assert question.paragraphs is not None
    assert question.paragraphs[0].text == "She is the mayor. She founded a firm."


def test_hotpotqa_as_a_table_on_a_hub(tmp_path):
    columns = HOTPOT | {
        "id": HOTPOT["_id"],
        "supporting_facts": {"title": ["Mayor", "Béta &amp; Söhne"], "sent_id": [1, 0]},
        "context": {"title": [t for t, _ in HOTPOT["context"]], "sentences": [s for _, s in HOTPOT["context"]]},
    }
    del columns["_id"]
    assert read_questions(put(tmp_path / "x.jsonl", (columns,))) == read_questions(put(tmp_path / "y.json", [HOTPOT]))


def test_hotpotqa_simplified_gets_positions_for_ids(tmp_path):
    rows = [
        {"question": "One?", "answer": "yes", "type": "comparison"},
        {"question": "Two?", "answer": "2", "type": ""},
    ]
    assert read_questions(put(tmp_path / "x.json", rows)) == [
        Question("0", "One?", ("yes",), kind="comparison"),
        Question("1", "Two?", ("2",)),
    ]


def test_2wiki(tmp_path):
    (question,) = read_questions(put(tmp_path / "x.json.gz", gzip.compress(json.dumps([WIKI]).encode())))
    assert question == Question(
        id="8813f87c",
        text="Who is the mother of the director?",
        answers=("Ann",),
        kind="compositional",
        supporting_facts=(SupportingFact("Film", 1), SupportingFact("Director", 1)),
        evidences=(Triple("Film", "director", "Director"), Triple("Director", "mother", "Ann")),
        paragraphs=(
            Paragraph("Film", ("A film.", " It has a director."), supporting=True),  # the source drops the spaces
            Paragraph("Director", ("A man.", " His mother is Ann.", " Old."), supporting=True),
        ),
        metadata={"entity_ids": "Q1_Q2"},
    )


def test_2wiki_ids_release_and_aliases(tmp_path):
    comparison = WIKI | {"_id": "2", "evidences_id": [], "answer_id": None, "answer": "no"}
    path = put(tmp_path / "x.json", [WIKI_IDS, comparison])
    first, second = read_questions(path)
    assert (first.answer_id, second.answer_id) == ("Q3", None)
    assert first.evidence_ids == (Triple("Q1", "director", "Q2"), Triple("Q2", "mother", "Q3"))
    assert second.evidence_ids is None
    names = (
        {"Q_id": "Q3", "aliases": ["Anna", "Ann"], "demonyms": ["Annish", "Anna"]},
        {"Q_id": "Q9", "aliases": [], "demonyms": []},
    )
    aliases = put(tmp_path / "id_aliases.json", names)
    assert read_aliases(aliases) == {"Q3": ("Anna", "Ann", "Annish"), "Q9": ()}
    first, second = read_questions(path, aliases=aliases)
    assert (first.aliases, second.aliases) == (("Anna", "Ann", "Annish"), ())
    assert first.golds == ("Ann", "Anna", "Annish")


def test_aliases_need_entity_ids(tmp_path):
    path, aliases = put(tmp_path / "x.json", [WIKI]), put(tmp_path / "a", ({"Q_id": "Q3", "aliases": ["Anna"]},))
    with pytest.raises(UsageError, match="no question has an answer_id"):
        read_questions(path, aliases=aliases)
    wrong = put(tmp_path / "b", ({"Q_id": "Q3", "aliases": []}, {"aliases": []}))
    with pytest.raises(DataError, match=r"b:2: no 'Q_id'"):
        read_questions(put(path, [WIKI_IDS]), aliases=wrong)
    for names in ({"aliases": ["Anna", ""]}, {"aliases": ["Anna"], "demonyms": [" "]}):
        blank = put(tmp_path / "c", ({"Q_id": "Q3", "aliases": []}, {"Q_id": "Q4", **names}))
        with pytest.raises(DataError, match=r"c:2: '(aliases|demonyms)': a text of .* is blank"):
            read_questions(path, aliases=blank)


def test_musique(tmp_path):
    (question,) = read_questions(put(tmp_path / "x.jsonl", (MUSIQUE,)))
    assert question == Question(
        id="2hop__482757_12019",
        text="Who is the spouse of the Green performer?",
        answers=("Miq",),
        aliases=("Miquette",),
        kind="2hop",
        hops=(Hop("Green >> performer", "Steve", 0), Hop("#1 >> spouse", "Miq", 1)),
        paragraphs=(
            Paragraph("Green (album)", ("By Steve.",), supporting=True),
            Paragraph("Steve", ("His wife is Miq.",), supporting=True),
            Paragraph("Red", ("A colour.",)),
        ),
        answerable=True,
    )
    assert question.gold_titles == ("Green (album)", "Steve")


def test_musique_full_twins_get_ids_of_their_own(tmp_path):
    steps = [MUSIQUE["question_decomposition"][0] | {"paragraph_support_idx": None}]
    twin = MUSIQUE | {"answerable": False, "question_decomposition": steps}
    answerable, unanswerable = read_questions(put(tmp_path / "x.jsonl", (MUSIQUE, twin)))
    assert answerable.id == "2hop__482757_12019"
    assert unanswerable.id == "2hop__482757_12019#unanswerable"
    assert unanswerable.answerable is False
    assert unanswerable.hops == (Hop("Green >> performer", "Steve", None),)
    assert "duplicate id" in refused(put(tmp_path / "y.jsonl", (twin, MUSIQUE, twin))).reason


def test_flashrag(tmp_path):
    meta = {
        "type": "bridge",
        "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 2]},
        "level": "easy",
        "more": [1],
    }
    rows = (FLASHRAG, FLASHRAG | {"id": "test_1", "metadata": meta, "choices": None})
    assert read_questions(put(tmp_path / "x.jsonl", rows)) == [
        Question("test_0", FLASHRAG["question"], ("Wilhelm Conrad Röntgen", "Röntgen")),
        Question(
            "test_1",
            FLASHRAG["question"],
            ("Wilhelm Conrad Röntgen", "Röntgen"),
            kind="bridge",
            level="easy",
            supporting_facts=(SupportingFact("A", 0), SupportingFact("B", 2)),
            metadata={"more": [1]},
        ),
    ]


def test_flashrag_musique_names_its_pages_inside_the_steps(tmp_path):
    step = {"id": 1, "question": "Green >> performer", "answer": "Steve", "paragraph_support_idx": 10}
    steps = [step | {"support_paragraph": {"idx": 10, "title": "Green (album)", "is_supporting": True}}, step]
    (question,) = read_questions(put(tmp_path / "x", (FLASHRAG | {"metadata": {"question_decomposition": steps}},)))
    assert question.hops == (Hop("Green >> performer", "Steve"), Hop("Green >> performer", "Steve"))
    assert question.supporting_facts == (SupportingFact("Green (album)"),)
    assert question.metadata == {}


def test_flashrag_metadata_of_another_form_stays_unread(tmp_path):
    meta = {"type": ["a"], "level": 3, "supporting_facts": ["x"], "question_decomposition": "y", "subj": "z"}
    (question,) = read_questions(put(tmp_path / "x", (FLASHRAG | {"metadata": meta},)))
    assert (question.kind, question.level, question.supporting_facts, question.hops) == (None, None, None, None)
    assert question.metadata == meta


def test_kilt(tmp_path):
    page = {"wikipedia_id": "12", "title": "Dunmere", "section": "x"}
    outputs = [
        {"answer": "Sarn"},
        {"provenance": [page, page, {"wikipedia_id": "13", "title": "Sarn"}]},
        {"answer": "the Sarn", "provenance": [{"title": "Another way"}]},
        {"answer": "Sarn", "meta": {"score": 1}},
    ]
    row = {"id": 5, "input": "Where?", "output": outputs, "meta": {"left_context": ""}}
    rows = (row, row | {"id": "b", "output": [{"answer": "x", "provenance": [{"wikipedia_id": "1"}]}]})
    pages = (SupportingFact("Dunmere"), SupportingFact("Sarn"))
    meta = {"meta": {"left_context": ""}}
    assert read_questions(put(tmp_path / "x", rows)) == [
        Question("5", "Where?", ("Sarn", "the Sarn"), supporting_facts=pages, metadata=meta),
        Question("b", "Where?", ("x",), metadata=meta),
    ]
    assert "no gold answer: 'output' is []" in refused(put(tmp_path / "x", (row | {"output": outputs[1:2]},))).reason
    assert "'output': expected a list of objects" in refused(put(tmp_path / "x", (row | {"output": [1]},))).reason
    assert (
        "'title': expected text, got 3"
        in refused(put(tmp_path / "x", (row | {"output": [{"answer": "x", "provenance": [{"title": 3}]}]},))).reason
    )


PROMPT = (
    "Answer the given question. You can search as many times as your want. For example, <answer> Beijing </answer>. "
    'Question: What is asked in "Question: Mark?"?\n'
)


def search_r1(index: int, source: str = "nq", **changes) -> dict:
    """A row as Search-R1's scripts make it."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": PROMPT}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["May 18, 2018", "18 May"]}},
        "extra_info": {"split": "test", "index": index},
    } | changes


def test_search_r1_parquet(tmp_path):
    path = tmp_path / "test.parquet"
    metadata = {"type": "bridge", "supporting_facts": {"title": ["A"], "sent_id": [3]}}
    rows = [
        search_r1(0) | {"id": "test_0", "question": "who?", "metadata": None},
        search_r1(0, "hotpotqa") | {"id": "test_0", "question": None, "metadata": metadata},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    first, second = read_questions(path)
    assert (first.id, second.id) == ("nq_test_0", "hotpotqa_test_0")
    assert (first.text, second.text) == ("who?", 'What is asked in "Question: Mark?"?')
    assert first.answers == second.answers == ("May 18, 2018", "18 May")
    assert (first.supporting_facts, second.supporting_facts) == (None, (SupportingFact("A", 3),))
    assert first.metadata == {"data_source": "nq", "ability": "fact-reasoning"}
    assert (first.kind, second.kind) == ("nq", "hotpotqa")  # scores by kind are those by data set
    assert second.metadata["type"] == "bridge"


def test_search_r1_text_target_and_its_faults(tmp_path):
    one = search_r1(0, reward_model={"style": "rule", "ground_truth": {"target": "May"}})
    assert read_questions(put(tmp_path / "x", (one,)))[0].answers == ("May",)
    mute = search_r1(0, prompt=[{"role": "user", "content": "Hello."}])
    assert "the last with 'Question: ...'" in refused(put(tmp_path / "x", (mute,))).reason
    assert "no gold answer" in refused(put(tmp_path / "x", (search_r1(0, reward_model={"style": "rule"}),))).reason
    assert "'extra_info': expected an object" in refused(put(tmp_path / "x", (search_r1(0, extra_info=1),))).reason


def test_damaged_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([search_r1(0)]), path)
    content = path.read_bytes()
    assert "damaged parquet data after row 0" in refused(put(path, content[: len(content) // 2])).reason


TEXT = st.text(st.characters(codec=None), min_size=1, max_size=8)
NAMES = st.lists(TEXT, min_size=1, max_size=3).map(tuple)
GOLDS = st.lists(TEXT.filter(lambda text: text.strip() and text.strip()[0] not in "[({"), min_size=1, max_size=3).map(
    tuple
)  # no text that is read as a list
TRIPLES = st.lists(st.builds(Triple, TEXT, TEXT, TEXT), min_size=1, max_size=2).map(tuple)
JSON = st.recursive(st.none() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
QUESTIONS = st.builds(
    Question,
    id=TEXT.filter(str.strip),
    text=TEXT,
    answers=GOLDS,
    aliases=GOLDS | st.just(()),
    kind=st.none() | TEXT,
    level=st.none() | TEXT,
    supporting_facts=st.none()
    | st.lists(st.builds(SupportingFact, TEXT, st.none() | st.integers(0, 9)), min_size=1, max_size=3).map(tuple),
    evidences=st.none() | TRIPLES,
    evidence_ids=st.none() | TRIPLES,
    answer_id=st.none() | TEXT,
    hops=st.none()
    | st.lists(st.builds(Hop, TEXT, TEXT, st.none() | st.integers(0, 9)), min_size=1, max_size=2).map(tuple),
    paragraphs=st.none()
    | st.lists(st.builds(Paragraph, TEXT, NAMES, st.booleans()), min_size=1, max_size=2).map(tuple),
    answerable=st.none() | st.booleans(),
    metadata=st.dictionaries(TEXT, JSON, max_size=2),
)


@pytest.mark.slow
@given(st.lists(QUESTIONS, min_size=1, max_size=3, unique_by=lambda question: question.id))
def test_own_form_reads_back_equal(tmp_path_factory, questions):
    path = tmp_path_factory.mktemp("own") / "questions.jsonl.gz"
    assert write_questions(path, questions) == len(questions)
    assert read_questions(path) == questions


def test_question_row_leaves_out_what_is_absent():
    assert question_row(Question("q", "Who?", ("x",))) == {"id": "q", "text": "Who?", "answers": ["x"]}
    assert parse_line(dump_line(question_row(Question("q", "?", ("x",), answerable=False))))["answerable"] is False


# -- bad input -----------------------------------------------------------------------------------------------------


def test_files_that_hold_no_questions(tmp_path):
    with pytest.raises(DataMissingError, match="no such file"):
        read_questions(tmp_path / "gone.json")
    assert "the file is empty" in refused(put(tmp_path / "a", "")).reason
    assert "neither JSON" in refused(put(tmp_path / "b", "question,answer\n")).reason
    assert "not JSON" in refused(put(tmp_path / "c", '[{"question": "a"')).reason
    assert "holds no rows" in refused(put(tmp_path / "d", [])).reason
    packed = gzip.compress(json.dumps([HOTPOT]).encode())
    assert "damaged gzip data" in refused(put(tmp_path / "e", packed[:-20])).reason
    error = refused(put(tmp_path / "f", '{\n"version": 1,\n"data": []\n}'))
    assert error.reason == "expected a JSON list of objects, got one object with keys version, data"
    assert "unknown format: the first row has keys a" in refused(put(tmp_path / "g", [{"a": 1}])).reason
    with pytest.raises(UnknownNameError, match="did you mean 'musique'"):
        read_questions(put(tmp_path / "h", (MUSIQUE,)), "Musique")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (HOTPOT | {"answer": None}, "no gold answer: 'answer' is None"),
        (HOTPOT | {"answer": ""}, "no gold answer: 'answer' is ''"),
        ({k: v for k, v in HOTPOT.items() if k != "answer"}, "no gold answer"),
        (HOTPOT | {"answer": 1912}, "'answer': expected text or a list of texts, got 1912"),
        (HOTPOT | {"question": None}, "no 'question': got keys _id, question"),
        (HOTPOT | {"question": ["a"]}, "'question': expected text, got ['a']"),
        (HOTPOT | {"type": 1}, "'type': expected text, got 1"),
        (HOTPOT | {"_id": 1.5}, "'_id': expected an id, got 1.5"),
        (
            HOTPOT | {"supporting_facts": "Mayor"},
            "'supporting_facts': expected a list of [title, sent_id], got 'Mayor'",
        ),
        (HOTPOT | {"supporting_facts": [["Mayor"]]}, "'supporting_facts': expected a list of [title, sent_id]"),
        (HOTPOT | {"supporting_facts": [["Mayor", "1"]]}, "expected [title, sentence number], got ['Mayor', '1']"),
        (HOTPOT | {"supporting_facts": {"title": ["a"], "sent_id": []}}, "lists title, sent_id of one length"),
        (HOTPOT | {"context": [["Mayor", "text"]]}, "'context': expected a list of texts, got 'text'"),
        (HOTPOT | {"context": [[1, ["text"]]]}, "'context': expected a list of texts, got [1]"),
        (WIKI | {"evidences": [["a", "b"]]}, "'evidences': expected a list of [subject, relation, object]"),
        (WIKI_IDS | {"evidences_id": [["Q1", "director", "Q2"]]}, "'evidences_id': 1 triples for 2 evidences"),
        (MUSIQUE | {"answer": " "}, "no gold answer"),
        (MUSIQUE | {"id": None}, "no 'id': got keys id, paragraphs"),
        (MUSIQUE | {"answerable": "yes"}, "'answerable': expected true or false, got 'yes'"),
        (MUSIQUE | {"answer_aliases": "Miquette"}, "'answer_aliases': expected a list of texts"),
        (MUSIQUE | {"paragraphs": MUSIQUE["paragraphs"][1:]}, "'paragraphs': idx 1 at position 0"),
        (MUSIQUE | {"paragraphs": ["text"]}, "'paragraphs': expected a list of objects, got ['text']"),
        (
            MUSIQUE | {"question_decomposition": [{"question": "a", "answer": "b", "paragraph_support_idx": "0"}]},
            "'paragraph_support_idx': expected the index of a paragraph, got '0'",
        ),
        (FLASHRAG | {"golden_answers": []}, "no gold answer: 'golden_answers' is []"),
        (FLASHRAG | {"golden_answers": ["", " "]}, "no gold answer"),
        (FLASHRAG | {"golden_answers": ["Paris", ""]}, "'golden_answers': a text of ['Paris', ''] is blank"),
        (FLASHRAG | {"golden_answers": ["\u00a0", "Paris"]}, "is blank: leave it out"),
        (MUSIQUE | {"answer_aliases": ["Miquette", " "]}, "'answer_aliases': a text of ['Miquette', ' '] is blank"),
        ({"id": "1", "text": "Who?", "answers": ["x"], "aliases": [""]}, "'aliases': a text of [''] is blank"),
        (FLASHRAG | {"golden_answers": [3]}, "'golden_answers': expected a list of texts, got [3]"),
        (FLASHRAG | {"metadata": "x"}, "'metadata': expected an object, got 'x'"),
        ({"id": "1", "text": "Who?", "answers": []}, "no gold answer"),
        (
            {"id": "1", "text": "Who?", "answers": ["x"], "evidence": []},
            "unknown key 'evidence'; did you mean 'evidences'?",
        ),
        ({"id": "1", "text": "Who?", "answers": ["x"], "metadata": []}, None),
        ({"_id": "1", "text": "Who?"}, "BEIR queries have no answers"),
    ],
)
def test_a_row_that_does_not_fit(tmp_path, row, reason):
    path = put(tmp_path / "list.json", [row])
    if reason is None:  # an empty list is no metadata
        assert read_questions(path)[0].metadata == {}
        return
    error = refused(path)
    assert reason in error.reason
    if "BEIR" not in reason:
        assert error.reason.startswith("item 1: ")
        assert refused(put(tmp_path / "lines", b"\n" + dump_line(row))).line == 2


def test_duplicate_ids(tmp_path):
    error = refused(put(tmp_path / "x.json", [HOTPOT, HOTPOT | {"_id": "other"}, HOTPOT]))
    assert error.reason == "item 3: duplicate id '5a8b57f2': item 1 has it too"
    error = refused(put(tmp_path / "x.jsonl", (FLASHRAG, FLASHRAG)))
    assert (error.line, error.reason) == (2, "duplicate id 'test_0': line 1 has it too")


def test_skip_bad(tmp_path):
    rows = [HOTPOT, HOTPOT, HOTPOT | {"_id": "2", "answer": ""}, "text", HOTPOT | {"_id": "3"}]
    path = put(tmp_path / "x.json", rows)
    bad = BadLines(3)
    assert [question.id for question in read_questions(path, bad=bad)] == ["5a8b57f2", "3"]
    assert [error.reason.split(":")[0] for error in bad.errors] == ["item 2", "item 3", "item 4"]
    assert (
        "item 4: expected an object, got 'text' (bad line number 3, at most 2" in refused(path, bad=BadLines(2)).reason
    )


# -- queries -------------------------------------------------------------------------------------------------------


def test_queries_of_beir_and_of_any_questions(tmp_path):
    queries = ({"_id": "q1", "text": "One?"}, {"_id": 2, "text": "Two?", "metadata": {}})
    path = put(tmp_path / "queries.jsonl", queries)
    assert read_queries(path) == read_queries(tmp_path) == {"q1": "One?", "2": "Two?"}
    assert read_queries(put(tmp_path / "x.json", [HOTPOT])) == {"5a8b57f2": HOTPOT["question"]}
    assert read_queries(put(tmp_path / "y.jsonl", (MUSIQUE,))) == {MUSIQUE["id"]: MUSIQUE["question"]}
    with pytest.raises(DataError, match=r"z:2: duplicate id 'q1'"):
        read_queries(put(tmp_path / "z", (queries[0], queries[0])))
    (tmp_path / "queries.jsonl").unlink()
    with pytest.raises(DataMissingError, match=r"is a folder without queries.jsonl"):
        read_queries(tmp_path)


# -- real data -----------------------------------------------------------------------------------------------------


def test_real_questions(real_data):
    path = real_data / "hotpotqa/questions.json"
    questions = read_questions(path)
    source = json.loads(path.read_text(encoding="utf-8"))
    pages = {title_key(title) for title in json.loads((real_data / "hotpotqa/corpus.json").read_text(encoding="utf-8"))}
    assert len(questions) == 100
    for question, row in zip(questions, source, strict=True):
        assert (question.id, question.text, question.answers) == (row["_id"], row["question"], (row["answer"],))
        assert (question.kind, question.level, question.metadata) == (row["type"], row["level"], {})
        assert [[fact.title, fact.sentence] for fact in question.supporting_facts or ()] == row["supporting_facts"]
        assert [[one.title, list(one.sentences)] for one in question.paragraphs or ()] == row["context"]  # spaces kept
        gold = {title_key(title) for title in question.gold_titles or ()}
        assert {title_key(one.title) for one in question.paragraphs or () if one.supporting} == gold
        assert gold <= pages


def test_real_simplified_questions(real_data):
    path = real_data / "hotpotqa/dev_simplified.json"
    questions = read_questions(path)
    source = json.loads(path.read_text(encoding="utf-8"))
    assert len(questions) == 7405
    assert [(q.text, *q.answers, q.kind) for q in questions] == [
        (r["question"], r["answer"], r["type"]) for r in source
    ]
    assert [q.id for q in questions] == [str(n) for n in range(7405)]


def test_real_questions_read_back_equal(real_data, tmp_path):
    questions = read_questions(real_data / "hotpotqa/questions.json")
    write_questions(tmp_path / "own.jsonl.gz", questions)
    assert read_questions(tmp_path / "own.jsonl.gz") == questions


def test_a_number_of_hops_belongs_in_the_metadata(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "1", "text": "?", "answers": ["a"], "hops": 2}\n')
    with pytest.raises(DataError, match=r'a number of hops belongs in "metadata": \{"hops": 2\}'):
        read_questions(path)


# -- golds that come as text ---------------------------------------------------------------------------------------


def rows_of(golds):
    """One row of each format with these golds."""
    search = {"data_source": "nq", "question": "?", "extra_info": {"split": "dev", "index": 0}, "prompt": []}
    return {
        "hotpotqa": {"_id": "1", "question": "?", "answer": golds},
        "2wiki": WIKI | {"answer": golds},
        "musique": MUSIQUE | {"answer": golds},
        "flashrag": {"id": "1", "question": "?", "golden_answers": golds},
        "kilt": {"id": "1", "input": "?", "output": [{"answer": golds}]},
        "search-r1": search | {"reward_model": {"ground_truth": {"target": golds}}},
        "searchgym": {"id": "1", "text": "?", "answers": golds},
    }


@pytest.mark.parametrize("format", rows_of(""))
@pytest.mark.parametrize(
    ("text", "golds"),
    [
        ("['coast', 'shore']", ("coast", "shore")),
        ('["coast", "shore"]', ("coast", "shore")),
        (" [ 'coast' ,\n\"l'été\", ] ", ("coast", "l'été")),
        (r"""['it\'s', "a \"b\""]""", ("it's", 'a "b"')),
        ('["\\ud83d\\ude00", "a\\/b"]', ("\U0001f600", "a/b")),  # escapes of JSON that Python reads otherwise
        ("['coast']", ("coast",)),
        ("[O.S. 6 January] 1835", ("[O.S. 6 January] 1835",)),  # a true gold of HotpotQA
        ("[O.S. 6 January]", ("[O.S. 6 January]",)),
        ("[sic]", ("[sic]",)),
        ("'coast', 'shore'", ("'coast', 'shore'",)),
        ('("Heroes")', ('("Heroes")',)),
        ("6 [a]", ("6 [a]",)),
    ],
)
def test_a_list_of_golds_that_comes_as_text_is_read_as_a_list(tmp_path, format, text, golds):
    rows = rows_of(text)
    (question,) = read_questions(put(tmp_path / "x", (rows[format],)))
    assert question.answers == golds


@pytest.mark.parametrize("format", rows_of(""))
@pytest.mark.parametrize(
    "text",
    [
        "['x' 'y']",  # what str() makes of a NumPy array; Python would read one text, xy
        "['x'\n 'y']",
        "['x', 'y'",  # cut
        "['x', 'y'] # two",
        "[u'x', u'y']",
        "['x', 5]",
        "[5, 6]",
        "[1835]",
        "[None]",
        "[['x'], ['y']]",
        "array(['x', 'y'], dtype=object)",
        "('x', 'y')",
        "{'x', 'y'}",
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_what_looks_like_a_list_of_golds_and_is_none_is_refused(tmp_path, format, text):
    error = refused(put(tmp_path / "x", b"\n" + dump_line(rows_of(text)[format])))
    assert error.line == 2
    assert "is a list written as text that cannot be read" in error.reason and len(error.reason) < 300


def rows_in(rows):
    return Rows("rows", "item", enumerate(rows, start=1))


def test_lists_as_text_within_lists_are_golds_each():
    """As tables give them that were text on their way: PopQA's possible answers."""
    (question,) = parse_questions(rows_in([rows_of(["['coast', 'shore']", "bay"])["flashrag"]]), None, BadLines())
    assert question.answers == ("coast", "shore", "bay")
    aliased = MUSIQUE | {"answer_aliases": ['["Miquette", "M."]']}
    (question,) = parse_questions(rows_in([aliased]), None, BadLines())
    assert question.aliases == ("Miquette", "M.")


@pytest.mark.parametrize("text", ["[]", " [ ] ", "['']", '["", "x"]'])
def test_a_list_as_text_is_as_strict_as_a_list(tmp_path, text):
    error = refused(put(tmp_path / "x", (rows_of(text)["flashrag"],)))
    assert error.line == 1 and ("no gold answer" in error.reason or "is blank" in error.reason)


def test_a_list_as_text_in_a_table(tmp_path):
    path = tmp_path / "x.parquet"
    rows = [
        {"id": str(n), "question": "?", "golden_answers": text} for n, text in enumerate(("['x', 'y']", "['x' 'y']"))
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[:1]), path)
    assert read_questions(path)[0].answers == ("x", "y")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert refused(path).reason.startswith("row 2: 'golden_answers'")


def test_real_golds_are_no_lists(real_data):
    rows = json.loads((real_data / "hotpotqa" / "dev_simplified.json").read_text())
    read = read_questions(real_data / "hotpotqa" / "dev_simplified.json")
    assert [question.answers for question in read] == [(row["answer"],) for row in rows]
    assert any(row["answer"].startswith("[") for row in rows)


# -- files of users' own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("golds", [["Rome", "Roma"], "Rome", "['Rome', 'Roma']"])
def test_question_and_answers_are_read(tmp_path, golds):
    (question,) = read_questions(put(tmp_path / "x", ({"question": "Which city?", "answers": golds},)))
    expected = ("Rome",) if golds == "Rome" else ("Rome", "Roma")
    assert (question.id, question.text, question.answers) == ("0", "Which city?", expected)
    (named,) = read_questions(put(tmp_path / "y", [{"id": "a", "question": "?", "answers": golds, "topic": "x"}]))
    assert (named.id, named.answers, named.metadata) == ("a", expected, {"topic": "x"})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "Who?", "gold": "x"}, "no gold answer: no 'answer', got keys question, gold"),
        ({"question": "Who?", "answers": None}, "no gold answer: 'answers' is None"),
        ({"question": "Who?", "answers": {"text": ["x"]}}, "'answers': expected text or a list of texts, got {'text'"),
        (
            {"query": "Who?", "answer": "x"},
            "unknown format: the first row has keys query, answer; expected question",
        ),
    ],
)
def test_rows_without_golds_that_are_known_are_named_well(tmp_path, row, reason):
    assert reason in refused(put(tmp_path / "x", (row,))).reason


@pytest.mark.parametrize(
    "text",
    [
        "question,answer\nWho?,Ada\n",
        "\ufeffid;question;answers\n1;Who?;Ada\n",
        "question\tanswer\nWho?\tAda\n",
        '"question","answer"\n"Who, then?","Ada"\n',
    ],
)
def test_a_table_as_text_is_named_as_one(tmp_path, text):
    error = refused(put(tmp_path / "x.csv", text.encode()))
    assert "; a table as text (CSV or TSV) is not read: convert it to JSON lines" in error.reason
    assert "question" in error.reason and "b'" not in error.reason


@pytest.mark.parametrize("content", [b"hello\nyou\n", b"\x00\x01\x02\xff", "caf\u00e9 au lait".encode("latin-1")])
def test_other_files_are_shown_as_text(tmp_path, content):
    reason = refused(put(tmp_path / "x", content)).reason
    assert reason.startswith("neither JSON, JSON lines nor parquet: it begins with ") and "b'" not in reason


def test_question_and_answers_may_name_gold_pages(tmp_path):
    row = {"question": "Who?", "answers": ["Bo"], "supporting_facts": [["Bo", 0], ["Hill", None]]}
    (question,) = read_questions(put(tmp_path / "x", (row,)))
    assert question.supporting_facts == (SupportingFact("Bo", 0), SupportingFact("Hill"))
    assert question.gold_titles == ("Bo", "Hill")
    assert question.metadata == {}


def test_unused_keys_are_noted_once_with_their_counts(tmp_path):
    rows = [{"question": f"{n}?", "answers": ["x"], "foo": n, "bar": n or None, "hops": 2} for n in range(3)]
    path = put(tmp_path / "x", tuple(rows))
    with pytest.warns(DataWarning) as noted:
        assert len(read_questions(path)) == 3
    assert [str(note.message) for note in noted] == [f"{path}: not used: foo (3 questions), bar (2 questions)"]

"""Gold pages from qrels: titles of relevant passages, also of documents that were cut; what does not fit is named."""

import json

import pytest
from support import command_line, json_of

from searchgym.errors import DataWarning, ScoringError
from searchgym.eval.retrieval import read_qrels, with_qrels
from searchgym.records import Passage, Question, SupportingFact

PASSAGES = [
    Passage("7#0", "Alpha", "one"),
    Passage("7#1", "Alpha", "two"),
    Passage("8", "Beta", "b"),
    Passage("9", "", "c"),
]
QUESTIONS = [
    Question("q1", "Which?", ("one",)),
    Question("q2", "What?", ("b",), supporting_facts=(SupportingFact("Old", 1),)),
    Question("q3", "Who?", ("c",), supporting_facts=(SupportingFact("Own"),)),
]

cli = pytest.fixture(command_line)


def titles(qrels, questions=QUESTIONS):
    return [question.gold_titles for question in with_qrels(questions, qrels, iter(PASSAGES))]


def test_titles_of_relevant_passages_and_of_cut_documents_become_gold_pages():
    qrels = {"q1": {"7": 1, "8": 2, "9": 0}, "q2": {"8": 1}, "elsewhere": {"8": 1}}
    assert titles(qrels) == [("Alpha", "Beta"), ("Beta",), ("Own",)]
    assert titles({"q1": {"7#1": 1, "7#0": 1}}) == [("Alpha",), ("Old",), ("Own",)]
    assert QUESTIONS[1].gold_titles == ("Old",)


def test_what_does_not_fit_is_named():
    with pytest.warns(DataWarning, match=r"1 of 2 relevant passages are not in the corpus, such as '77'"):
        assert titles({"q1": {"7": 1}, "q2": {"77": 1}}) == [("Alpha",), ("Old",), ("Own",)]
    with pytest.raises(ScoringError, match=r"such as '77': is it another corpus\?"):
        titles({"q2": {"77": 1}})
    with pytest.raises(ScoringError, match="no question has a relevant passage: the qrels have queries such as 'x'"):
        titles({"x": {"7": 1}})
    with pytest.raises(ScoringError, match="no question has a relevant passage"):
        titles({"q1": {"7": 0}})
    with pytest.raises(ScoringError, match="relevant passage '9' has no title"):
        titles({"q1": {"9": 1}})


@pytest.mark.parametrize("form", ["trec", "beir"])
def test_an_evaluation_scores_the_evidence_of_a_file_of_qrels(form, tmp_path, monkeypatch, cli):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    words = {"q1": "lamp", "q2": "boat"}
    corpus = [{"id": f"{i}#0", "title": f"Page {i}", "text": f"The {word} is {i}."} for i, word in words.items()]
    questions = [{"id": i, "question": f"What about the {word}?", "answers": [i]} for i, word in words.items()]
    for name, rows in (("corpus", corpus), ("questions", questions)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = ["q1 0 q1 1", "q2 0 q1 1"] if form == "trec" else ["query-id\tcorpus-id\tscore", "q1\tq1\t1", "q2\tq1\t1"]
    (tmp_path / "qrels.tsv").write_text("\n".join(rows) + "\n")
    args = ["--questions", "questions.jsonl", "--corpus", "corpus.jsonl", "--agent", "single-search", "--json"]
    run = ("eval", *args, "--top-k", 1, "--qrels", "qrels.tsv", "--out", "run")
    assert json_of(cli(*run))["title_recall"][-1] == 0.5  # the search for q2 finds its page, which is not judged
    assert [
        q.gold_titles
        for q in with_qrels(
            [Question("q2", "?", ("a",))], read_qrels(tmp_path / "qrels.tsv"), [Passage("q1", "Page q1", "x")]
        )
    ] == [("Page q1",)]


def test_questions_without_answers_are_refused_with_the_way_out(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "What?"}\n')
    (tmp_path / "qrels.tsv").write_text("q1 0 d 1\n")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "title": "t", "text": "x"}\n')
    args = ("--questions", "queries.jsonl", "--qrels", "qrels.tsv", "--corpus", "corpus.jsonl")
    status, _, err = cli("eval", *args, "--agent", "single-search")
    assert status and "BEIR queries have no answers: score their retrieval by `searchgym retrieval --qrels`" in err

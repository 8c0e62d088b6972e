"""Predictions in the official formats: figures of the official scripts, round trips, and files that are refused."""

import json
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchgym.agents.base import load_agent
from searchgym.corpora.files import read_json, write_jsonl
from searchgym.corpora.questions import read_aliases, read_questions
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataError, DataMissingError, ScoringError, UnknownNameError, UsageError
from searchgym.eval.formats import (
    PREDICTION_FORMATS,
    Prediction,
    predictions_of,
    read_predictions,
    reduced_to_format,
    score_answers,
    with_pages_as_support,
    write_predictions,
)
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.records import Answer, Paragraph, Passage, Question, SupportingFact, Triple
from searchgym.scoring import UNANSWERABLE_SUFFIX

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from made_predictions import Made, hotpotqa_predictions, made

FORMATS = sorted(PREDICTION_FORMATS)

# -- the official scripts' figures -----------------------------------------------------------------------------------

OFFICIAL = {
    # hotpotqa/hotpot @ 3635853, hotpot_evaluate_v1.py
    "hotpotqa": {
        "em": 0.338,
        "f1": 0.4789439893439899,
        "precision": 0.4681976190476193,
        "recall": 0.5089000000000001,
        "sp_em": 0.095,
        "sp_f1": 0.3539511544011549,
        "sp_precision": 0.3769595238095237,
        "sp_recall": 0.3856666666666668,
        "joint_em": 0.049,
        "joint_f1": 0.18644056030778605,
        "joint_precision": 0.19536686507936502,
        "joint_recall": 0.2138333333333333,
    },
    # Alab-NII/2wikimultihop @ 13800e5, 2wikimultihop_evaluate_v1.1.py: per cent with two decimals
    "2wiki": {
        "em": 33.1,
        "f1": 50.92,
        "precision": 49.75,
        "recall": 55.0,
        "sp_em": 13.2,
        "sp_f1": 36.74,
        "sp_precision": 40.51,
        "sp_recall": 38.19,
        "evidence_em": 14.9,
        "evidence_f1": 64.34,
        "evidence_precision": 63.13,
        "evidence_recall": 75.17,
        "joint_em": 0.9,
        "joint_f1": 12.6,
        "joint_precision": 12.82,
        "joint_recall": 16.16,
    },
    # StonyBrookNLP/musique @ 922ac98, evaluate_v1.0.py: three decimals
    "musique": {
        "em": 0.3,
        "f1": 0.528,
        "sp_f1": 0.493,
        "group_answer_sufficiency_f1": 0.248,
        "group_support_sufficiency_f1": 0.227,
    },
    # facebookresearch/KILT @ 2664322, kilt/eval_downstream.py
    "kilt": {"em": 0.327, "f1": 0.5250518648018658, "accuracy": 0.176},
    # RUC-NLPIR/FlashRAG @ 1ee5249, flashrag/evaluator with its data set
    "flashrag": {
        "em": 0.294,
        "f1": 0.451866211566212,
        "precision": 0.44545238095238127,
        "recall": 0.47925,
        "acc": 0.521,
    },
}
"""What `python benchmarks/official_scripts.py FOLDER` saw the official scripts print for these made-up rows."""
REAL = {
    "em": 0.26,
    "f1": 0.5251147186147186,
    "precision": 0.5118333333333333,
    "recall": 0.5666666666666667,
    "sp_em": 0.08,
    "sp_f1": 0.33409523809523806,
    "sp_precision": 0.3391666666666667,
    "sp_recall": 0.374,
    "joint_em": 0.04,
    "joint_f1": 0.19453042708925064,
    "joint_precision": 0.20027777777777778,
    "joint_recall": 0.21941666666666668,
}
"""The same of hotpot_evaluate_v1.py for made-up answers to the 100 real questions."""


def gold_file(folder, format, rows):
    """Writes gold rows as the official file of a format has them."""
    path = folder / f"{format}-gold"
    if format in ("hotpotqa", "2wiki"):
        path.write_text(json.dumps(rows))
    else:
        write_jsonl(path, rows)
    return path


def scored(folder, format, rows):
    """Exports made-up predictions, reads them again, and returns them with the questions and their scores."""
    questions = read_questions(gold_file(folder, format, rows.gold))
    write_predictions(folder / "out", rows.predictions, questions, format)
    read = read_predictions(folder / "out", questions)
    names = None
    if rows.aliases:
        write_jsonl(folder / "aliases", rows.aliases)
        names = {id: frozenset(own) for id, own in read_aliases(folder / "aliases").items()}
    return read, questions, score_answers(read, questions, format, names)[0]


@pytest.mark.slow_cases
@pytest.mark.parametrize("format", FORMATS)
def test_exported_predictions_have_the_figures_of_the_official_scripts(format, tmp_path):
    rows = made(format)
    read, questions, scores = scored(tmp_path, format, rows)
    assert (len(questions), read) == (1000, {own.id: reduced_to_format(own, format) for own in rows.predictions})
    for name, official in OFFICIAL[format].items():
        value = {"2wiki": round(scores[name] * 100, 2), "musique": round(scores[name], 3)}.get(format, scores[name])
        assert value == pytest.approx(official, rel=0, abs=1e-12), name
    answers = [own.answer for own in rows.predictions]
    assert 10 < answers.count(None) < 100
    assert scores["answered"] == (1000 - answers.count(None)) / 1000


def test_exported_predictions_score_as_by_hotpotqas_script(tmp_path):
    base = os.environ.get("SEARCHGYM_DATA")
    if not base or not (Path(base) / "hotpotqa/questions.json").is_file():
        pytest.skip("SEARCHGYM_DATA names no folder with hotpotqa/questions.json")
    gold = read_json(Path(base) / "hotpotqa/questions.json")
    made_up = Made(gold, hotpotqa_predictions(random.Random("real/0"), gold), [])
    _, questions, scores = scored(tmp_path, "hotpotqa", made_up)
    assert len(questions) == 100
    for name, official in REAL.items():
        assert scores[name] == pytest.approx(official, rel=0, abs=1e-12), name


# -- round trips -----------------------------------------------------------------------------------------------------

PAGES = (Passage("7#0", "Dunmere", "A town.\nBy the sea."), Passage("7#1", "", ""), Passage("x", '"Q"\nR', "text\n"))
TWINS = [
    Question("m", "Where?", ("Dunmere",), answerable=True),
    Question("m" + UNANSWERABLE_SUFFIX, "Where?", ("Dunmere",), answerable=False),
]
FULL = Answer(
    "Dunmere ﬁ \ud800",
    (SupportingFact("Dunmere", 2), SupportingFact("Dunmere", 2), SupportingFact("Sarn")),
    (Triple("Dunmere", "country", "Sarn"),),
    (3, 0, 3),
    False,
)


def trip(folder, format, predictions, questions, **options):
    """Returns predictions after a round trip."""
    write_predictions(folder / "file", predictions, questions, format, **options)
    return list(read_predictions(folder / "file", questions, format).values())


@pytest.mark.parametrize("format", FORMATS)
def test_everything_a_format_has_a_place_for_comes_back(format, tmp_path):
    questions = [Question(id, f"{id}?", ("x",)) for id in ("1", "é", "b", "c")]
    predictions = [
        Prediction("1", FULL, PAGES),
        Prediction("é", None),
        Prediction("b", Answer("")),
        Prediction("c", Answer("c", (), (), (), True), PAGES[:1]),
    ]
    back = trip(tmp_path, format, predictions, questions)
    order = [0, 2, 3, 1] if format in ("hotpotqa", "2wiki") else [0, 1, 2, 3]  # a document lists the silent ids last
    assert back == [reduced_to_format(predictions[at], format) for at in order]
    assert (tmp_path / "file").read_bytes().isascii()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_format_keeps():
    own = Prediction("q", FULL, PAGES)
    facts, triples = FULL.supporting_facts, FULL.evidences
    assert reduced_to_format(own, "hotpotqa") == Prediction("q", Answer(FULL.text, facts))
    assert reduced_to_format(own, "2wiki") == Prediction("q", Answer(FULL.text, facts, triples))
    assert reduced_to_format(own, "musique") == Prediction(
        "q", Answer(FULL.text, paragraphs=(3, 0, 3), answerable=False)
    )
    assert (
        reduced_to_format(own, "kilt")
        == reduced_to_format(own, "flashrag")
        == Prediction("q", Answer(FULL.text), PAGES)
    )
    assert reduced_to_format(Prediction("q", None, PAGES), "2wiki") == Prediction("q", None)


TEXT = st.text(max_size=12)
ANSWERS = st.builds(
    Answer,
    TEXT,
    st.none() | st.lists(st.builds(SupportingFact, TEXT, st.none() | st.integers(-1, 9)), max_size=3).map(tuple),
    st.none() | st.lists(st.builds(Triple, TEXT, TEXT, TEXT), max_size=3).map(tuple),
    st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.none() | st.booleans(),
)
NAMES = TEXT.filter(str.strip)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(FORMATS), NAMES, st.none() | ANSWERS, st.lists(st.builds(Passage, NAMES, TEXT, TEXT), max_size=3)
)
def test_any_text_comes_back(tmp_path_factory, format, id, answer, pages):
    own = Prediction(id, answer, tuple(pages))
    (back,) = trip(tmp_path_factory.getbasetemp(), format, [own], [Question(id, "?", ("x",))])
    assert back == reduced_to_format(own, format)


def test_twins_of_musique_share_an_id_and_are_told_apart_by_order(tmp_path):
    own = [Prediction(q.id, Answer(q.id, paragraphs=(n,), answerable=n == 0)) for n, q in enumerate(TWINS)]
    assert trip(tmp_path, "musique", own, TWINS) == own
    turned = TWINS[::-1]
    assert trip(tmp_path, "musique", own, turned) == own[::-1]
    rows = [json.loads(line) for line in (tmp_path / "file").read_text().splitlines()]
    assert [(row["id"], row["predicted_answerable"]) for row in rows] == [("m", False), ("m", True)]
    assert trip(tmp_path, "hotpotqa", [Prediction(q.id, Answer("x")) for q in TWINS], TWINS)[1].id == TWINS[1].id


def test_the_official_form_of_each_format(tmp_path):
    questions = [Question("a", "Where?", ("Dunmere", "dun")), Question("b", "Who?", ("Sarn",))]
    own = [Prediction("a", FULL, PAGES[:1]), Prediction("b", None)]
    said, silent = FULL.text, ["predicted_answer", "predicted_support_idxs", "predicted_answerable"]
    document = {
        "answer": {"a": said},
        "sp": {"a": [["Dunmere", 2], ["Dunmere", 2], ["Sarn", None]]},
        "not_stated": {"answer": ["b"]},
    }
    found = {"id": "7#0", "title": "Dunmere", "contents": "Dunmere\nA town.\nBy the sea."}
    page = {"title": "Dunmere", "text": "A town.\nBy the sea.", "meta": {"passage_id": "7#0"}}
    blank = {"answer": ""}
    expected = {
        "hotpotqa": [document],
        "2wiki": [document | {"evidence": {"a": [["Dunmere", "country", "Sarn"]]}}],
        "musique": [
            {
                "id": "a",
                "predicted_answer": said,
                "predicted_support_idxs": [3, 0, 3],
                "predicted_answerable": False,
            },
            {
                "id": "b",
                "predicted_answer": "",
                "predicted_support_idxs": [],
                "predicted_answerable": True,
                "not_stated": silent,
            },
        ],
        "kilt": [
            {"id": "a", "input": "Where?", "output": [{"answer": said, "provenance": [page]}]},
            {"id": "b", "input": "Who?", "output": [blank], "not_stated": ["answer"]},
        ],
        "flashrag": [
            {
                "id": "a",
                "question": "Where?",
                "golden_answers": ["Dunmere", "dun"],
                "output": {"pred": said, "retrieval_result": [found]},
            },
            {
                "id": "b",
                "question": "Who?",
                "golden_answers": ["Sarn"],
                "output": {"pred": "", "retrieval_result": []},
                "not_stated": ["pred"],
            },
        ],
    }
    for format in FORMATS:
        write_predictions(tmp_path / "file", own, questions, format)
        assert [json.loads(line) for line in (tmp_path / "file").read_text().splitlines()] == expected[format], format
    write_predictions(tmp_path / "file", own, questions, "kilt", wikipedia_ids=True)
    provenance = json.loads((tmp_path / "file").read_text().splitlines()[0])["output"][0]["provenance"]
    assert provenance == [page | {"wikipedia_id": "7"}]
    assert list(read_predictions(tmp_path / "file", questions).values()) == [reduced_to_format(p, "kilt") for p in own]


def test_files_of_other_systems(tmp_path):
    """Pretty-printed documents, FlashRAG's own saved list, KILT's pages, and columns that are not read."""
    questions = [Question("1", "?", ("x",))]
    path = tmp_path / "file"
    own = {"answer": {"1": "x"}, "sp": {}, "evidence": {}, "model": "ours"}
    path.write_text(json.dumps(own, indent=4))
    assert read_predictions(path, questions) == {"1": Prediction("1", Answer("x"))}
    assert read_predictions(path, questions, "hotpotqa") == {"1": Prediction("1", Answer("x"))}
    docs = [{"id": 5, "contents": '"The Sarn"\nIslands.', "score": float("nan")}]
    saved = {"id": "1", "golden_answers": [], "output": {"pred": "x", "retrieval_result": docs, "metric_score": {}}}
    path.write_text(json.dumps([saved], indent=4))
    assert read_predictions(path)["1"].pages == (Passage("5", "The Sarn", "Islands."),)
    pages = [{"wikipedia_id": "12", "title": "Sarn", "bleu_score": 1.0}, {"wikipedia_id": 13}, {"title": "Only"}]
    path.write_text(json.dumps({"id": 1, "input": "?", "output": [{"answer": "x", "provenance": pages}]}))
    found = (Passage("12", "Sarn", ""), Passage("13", "", ""), Passage("Only", "Only", ""))
    assert read_predictions(path, questions) == {"1": Prediction("1", Answer("x"), found)}


# -- predictions of a run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo():
    return load_task(find_env("Demo"))


@pytest.mark.parametrize("agent", ["oracle", "evidence-oracle", "single-search", "closed-book"])
def test_a_run_comes_back_through_every_format(demo, agent, tmp_path):
    evaluate(demo, load_agent(agent), tmp_path / "run")
    predictions, asked = predictions_of(tmp_path / "run", demo.questions)
    assert asked == list(demo.questions)
    run_scores = read_json(tmp_path / "run/scores.json")
    for format in FORMATS:
        back = trip(tmp_path, format, predictions, asked)
        assert {own.id: own for own in back} == {own.id: reduced_to_format(own, format) for own in predictions}
    write_predictions(tmp_path / "file", predictions, asked, "2wiki")
    scores, _ = score_answers(read_predictions(tmp_path / "file", asked), asked, demo.card.scorer)
    for name, value in scores.items():
        assert value == run_scores[name], name


def test_pages_are_in_order_of_their_first_hit(demo, tmp_path):
    evaluate(demo, load_agent("evidence-oracle"), tmp_path / "run")
    predictions, _ = predictions_of(tmp_path / "run", demo.questions)
    lines = [json.loads(line) for line in (tmp_path / "run/episodes.jsonl").read_text().split("\n")[:-1]]
    hits = {e["question_id"]: [h["passage"]["id"] for s in e["searches"] for h in s["hits"]] for e in lines}
    assert any(len(set(own)) < len(own) for own in hits.values())  # some page was returned twice
    for own in predictions:
        assert [page.id for page in own.pages] == list(dict.fromkeys(hits[own.id]))


def test_a_run_with_a_part_of_the_questions_and_several_attempts(demo, tmp_path):
    few = demo.asking(demo.questions[3:8])
    evaluate(few, load_agent("random"), tmp_path / "run", options=EvalOptions(samples=2))
    found = [predictions_of(tmp_path / "run", demo.questions, attempt) for attempt in (0, 1)]
    assert [own.id for own in found[1][0]] == [question.id for question in demo.questions[3:8]]
    assert found[0][0] != found[1][0]
    with pytest.raises(UsageError, match=r"attempt 2: .* holds 2 for each question"):
        predictions_of(tmp_path / "run", demo.questions, 2)


def test_pages_as_support(tmp_path):
    texts = (("Sarn", "no"), ("Dunmere", "A town.\nBy  the sea."), ("Dunmere", "other"))
    own = tuple(Paragraph(title, (text,)) for title, text in texts)
    question = Question("q", "?", ("x",), paragraphs=own)
    bare = Prediction("q", Answer("x"), (*PAGES[:1], Passage("8", "Dunmere", "again")))
    support = with_pages_as_support(bare, question).answer
    assert support == Answer("x", (SupportingFact("Dunmere"),), paragraphs=(1,))
    stated = Prediction("q", FULL, PAGES)
    assert with_pages_as_support(stated, question) == stated
    for same in (Prediction("q", None, PAGES), Prediction("q", Answer("x"))):
        assert with_pages_as_support(same, question) == same


def test_runs_that_are_refused(demo, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(DataMissingError, match="no such run"):
        predictions_of(run, demo.questions)
    evaluate(demo, load_agent("single-search"), run)
    for others in (demo.questions[1:], [Question(q.id, "other?", q.answers) for q in demo.questions]):
        with pytest.raises(DataError, match=r"the run asked 12 questions, of which 1[12] are .* --questions"):
            predictions_of(run, others)
    lines = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    (run / "episodes.jsonl").write_text("".join(lines[:-1]) + lines[-1][:40])
    with pytest.raises(DataError, match=r"episodes\.jsonl:12: not JSON"):
        predictions_of(run, demo.questions)
    (run / "episodes.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match="12 questions, of which 11"):
        predictions_of(run, demo.questions)
    (run / "scores.json").unlink()
    with pytest.raises(UsageError, match="unfinished run: end it with `searchgym eval --resume`"):
        predictions_of(run, demo.questions)
    (run / "run.json").write_text("[]")
    (run / "scores.json").write_text("{}")
    with pytest.raises(DataError, match=r"run\.json: damaged"):
        predictions_of(run, demo.questions)
    (run / "suite.json").write_text("{}")
    with pytest.raises(UsageError, match="the run of a suite: name the folder of one of its parts"):
        predictions_of(run, demo.questions)


# -- what is refused -------------------------------------------------------------------------------------------------

ASKED = [Question("1", "?", ("x",)), Question("2", "?", ("x",))]
GOOD = {
    "musique": {"id": "1", "predicted_answer": "x", "predicted_support_idxs": [1], "predicted_answerable": True},
    "kilt": {"id": "1", "input": "?", "output": [{"answer": "x", "provenance": [{"wikipedia_id": "1", "title": "T"}]}]},
    "flashrag": {"id": "1", "question": "?", "golden_answers": ["x"], "output": {"pred": "x"}},
}


def refused(path, content, *args, **options):
    """The error of a file with this content."""
    if isinstance(content, list):
        write_jsonl(path, content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError) as caught:
        read_predictions(path, *args, **options)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("format", "change", "reason"),
    [
        ("musique", {"predicted_answer": float("nan")}, "'predicted_answer': expected text, got nan"),
        ("musique", {"predicted_answer": None}, "no 'predicted_answer'"),
        ("musique", {"predicted_support_idxs": [1.0]}, "'predicted_support_idxs': expected a list of numbers"),
        ("musique", {"predicted_support_idxs": [True]}, "'predicted_support_idxs': expected a list of numbers"),
        ("musique", {"predicted_support_idxs": None}, "'predicted_support_idxs': expected a list of numbers"),
        ("musique", {"predicted_answerable": "yes"}, "'predicted_answerable': expected true or false, got 'yes'"),
        ("musique", {"id": float("nan")}, "'id': expected an id, got nan"),
        ("musique", {"id": " "}, "'id': expected an id"),
        ("musique", {"not_stated": "all"}, "'not_stated': expected a list of texts"),
        ("kilt", {"output": []}, "'output': expected a list of one object"),
        ("kilt", {"output": [{"answer": "x"}, {"answer": "y"}]}, "'output': expected a list of one object"),
        ("kilt", {"output": [{"provenance": []}]}, "no 'answer'"),
        ("kilt", {"output": [{"answer": ["x"]}]}, "'answer': expected text, got ['x']"),
        ("kilt", {"output": [{"answer": "x", "provenance": [1]}]}, "'provenance': expected a list of objects"),
        ("kilt", {"output": [{"answer": "x", "provenance": [{}]}]}, "no 'passage_id' or 'wikipedia_id' or 'title'"),
        ("kilt", {"id": None}, "no 'id'"),
        ("flashrag", {"output": {"pred": float("nan")}}, "'pred': expected text, got nan"),
        ("flashrag", {"output": {"prd": "x"}}, "no 'pred': got keys prd"),
        ("flashrag", {"output": {"pred": "x", "retrieval_result": [{"id": 1}]}}, "no 'contents'"),
        ("flashrag", {"output": "x"}, "'output': expected an object with the prediction, got 'x'"),
    ],
)
def test_wrong_values_in_a_row_have_file_and_line(format, change, reason, tmp_path):
    rows = [GOOD[format], GOOD[format] | {"id": "2"} | change]
    assert refused(tmp_path / "f", rows, ASKED).startswith(f"FILE:2: {reason}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": {"1": float("nan")}}, "id '1': 'answer': expected text, got nan"),
        ({"sp": None}, "no 'sp': expected {id: ...}, got None"),
        ({"sp": {"1": None}}, "id '1': 'sp': expected a list of [title, sentence], got None"),
        ({"sp": {"1": [["T"]]}}, "id '1': 'sp': expected a list of [title, sentence]"),
        ({"sp": {"1": [["T", float("nan")]]}}, "id '1': 'sp': expected [title, index of the sentence from 0]"),
        ({"sp": {"1": [["T", True]]}}, "id '1': 'sp': expected [title, index"),
        ({"sp": {"1": [[3, 0]]}}, "id '1': 'sp': expected [title, index"),
        ({"sp": {"9": []}}, "id '9' has no answer, but other statements"),
        ({"evidence": {"1": [["a", "b"]]}}, "id '1': 'evidence': expected a list of [subject, relation, object]"),
        ({"evidence": {"1": [["a", "b", 3]]}}, "id '1': 'evidence': expected a list of texts"),
        ({"not_stated": {"answer": ["1"]}}, "id '1' has an answer but is listed as one without"),
        ({"not_stated": {"answer": [1]}}, "not_stated: 'answer': expected a list of texts, got [1]"),
        ({"answer": {"1": "x", "3": "x"}}, "unknown id '3': none of the 2 questions has it"),
        ({"answer": {"1": "x"}}, "1 of 2 questions have no prediction (first: '2')"),
    ],
)
def test_wrong_values_in_a_document_name_the_id(change, reason, tmp_path):
    good = {"answer": {"1": "x", "2": "y"}, "sp": {}, "evidence": {}}
    assert refused(tmp_path / "f", good | change, ASKED).startswith(f"FILE: {reason}")


def test_ids_that_do_not_match(tmp_path):
    path, row = tmp_path / "f", GOOD["musique"]
    assert refused(path, [row, row | {"id": 2}, row], ASKED) == "FILE:3: duplicate id '1': an earlier line has it too"
    kilt = GOOD["kilt"]
    assert refused(path, [kilt, kilt | {"id": "2"}, kilt], ASKED) == "FILE:3: duplicate id '1': line 1 has it too"
    assert refused(path, [row, row | {"id": "3"}], ASKED) == "FILE:2: unknown id '3': none of the 2 questions has it"
    assert refused(path, [row], ASKED) == "FILE: 1 of 2 questions have no prediction (first: '2')"
    assert read_predictions(path, ASKED, missing="zero")["2"] == Prediction("2", None)
    assert refused(path, [row, row], ASKED[:1]).startswith("FILE:2: duplicate id")
    two = '{"answer": {"1": "x", "1": "y"}, "sp": {}}'
    path.write_text(f"{two[:20]}\n{two[20:]}")
    with pytest.raises(DataError, match="an object has the key '1' twice"):
        read_predictions(path)


def test_files_of_another_format_are_named(tmp_path):
    path = tmp_path / "f"
    assert "this is a file of format 'kilt' (keys id, input, output), not of 'musique'" in refused(
        path, [GOOD["kilt"]], ASKED, "musique"
    )
    assert "no 'evidence'" in refused(path, {"answer": {"1": "x"}, "sp": {}}, ASKED, "2wiki")
    typo = {"id": "1", "predicted_answr": "x", "predicted_support_idxs": []}
    found = refused(path, [typo])
    assert found.startswith("FILE:1: predictions of no known format: got keys id, predicted_answr, predicted_support_")
    assert "; the nearest is musique, which has id, predicted_answer," in found
    gold = {"id": "1", "question": "?", "golden_answers": ["x"]}
    assert "the nearest is flashrag, which has id, question, golden_answers, output" in refused(path, [gold])
    assert "of no known format: got keys t; Known" not in refused(path, [{"t": 1}])
    assert refused(path, [{"t": 1}]) == "FILE:1: predictions of no known format: got keys t. Known: " + ", ".join(
        PREDICTION_FORMATS
    )
    assert "expected a list of objects, the first item is 1" in refused(path, "[1]")
    assert "the first item is None" in refused(path, "[]")
    with pytest.raises(UnknownNameError, match="did you mean 'hotpotqa'"):
        read_predictions(path, format="hotpot")


def test_files_that_were_cut(tmp_path):
    path = tmp_path / "f"
    for format in FORMATS:
        rows = made(format, 20)
        questions = read_questions(gold_file(tmp_path, format, rows.gold))
        write_predictions(path, rows.predictions, questions, format)
        whole = path.read_text()
        for share in (0.01, 0.3, 0.999):
            found = refused(path, whole[: int(len(whole) * share)], questions)
            assert found.startswith("FILE:"), found
            assert "not JSON" in found or "have no prediction" in found
    for content, reason in (("", "the file is empty"), ("\n \n", "neither JSON"), ("\x00\x01", "neither JSON")):
        assert reason in refused(path, content)
    with pytest.raises(DataMissingError, match="no such file"):
        read_predictions(tmp_path / "nothing")


def test_answers_of_a_megabyte_come_back_and_stay_short_in_errors(tmp_path):
    long = "é\n" * 500_000
    for format in FORMATS:
        own = [Prediction("1", Answer(long)), Prediction("2", Answer("x"))]
        assert trip(tmp_path, format, own, ASKED) == own
    message = refused(tmp_path / "f", [GOOD["musique"] | {"predicted_answer": [long]}])
    assert len(message) < 200
    assert len(refused(tmp_path / "f", [GOOD["musique"] | {"id": long}], ASKED)) < 300
    assert len(refused(tmp_path / "f", [{long: 1}])) < 500


def test_nothing_is_half_written(tmp_path):
    path = tmp_path / "f"
    path.write_text("before")
    own = [Prediction("1", Answer("x")), Prediction("2", Answer("x", paragraphs=(float("nan"),)))]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_predictions(path, own, ASKED, "musique")
    for wrong in (own[:1], [*own, own[0]], [own[0], Prediction("3", None)]):
        with pytest.raises(ScoringError, match="do not match 2 questions"):
            write_predictions(path, wrong, ASKED, "musique")
    with pytest.raises(UsageError, match="only KILT's format has ids of Wikipedia pages"):
        write_predictions(path, own, ASKED, "musique", wikipedia_ids=True)
    with pytest.raises(UnknownNameError, match="did you mean 'musique'"):
        write_predictions(path, own, ASKED, "musiq")
    assert (path.read_text(), [own.name for own in tmp_path.iterdir()]) == ("before", ["f"])


def test_no_answer_does_not_match_a_gold_of_articles(tmp_path):
    """The one figure that the formats of rows cannot keep: for the official scripts the answer is an empty text."""
    band = [Question("1", "Which band?", ("The The",))]
    for format, em in (("musique", 1.0), ("flashrag", 1.0), ("kilt", 0.0), ("hotpotqa", 0.0)):
        (back,) = trip(tmp_path, format, [Prediction("1", None)], band)
        assert score_answers({"1": back}, band, format)[0]["em"] == 0.0
        if format in ("musique", "flashrag", "kilt"):
            assert score_answers({"1": Prediction("1", Answer(""))}, band, format)[0]["em"] == em

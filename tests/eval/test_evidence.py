"""Gold evidence by title and by passage, and what an episode made of it, on cases worked by hand."""

import asyncio
import dataclasses
import json

import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever, command_line, json_of

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.agents.scripted import gold_answer
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import parse_questions, write_questions
from searchgym.corpora.rows import Rows
from searchgym.envs.task import load_task
from searchgym.errors import BadLines, ScoringError, UsageError
from searchgym.eval.ceilings import OtherHits, add_ceilings, gold_pages
from searchgym.eval.evidence import find_golds, recall_by_turn, turns_of_golds, unreachable_golds
from searchgym.eval.retrieval import evaluate_run, qrels_from_questions
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import score_episodes
from searchgym.records import Answer, Episode, Hit, Paragraph, Passage, Question, Search, Searched, title_key
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine

PAGES = {
    "history": Passage("s1", "Springfield", "Springfield was founded in 1821 by Elisha Kelly."),
    "sport": Passage("s2", "Springfield", "Springfield has a baseball team, the Isotopes."),
    "team": Passage("t1", "Isotopes", "The Isotopes play at Duff Stadium."),
    "other": Passage("o1", "Shelbyville", "Shelbyville is a town."),
}
REPEATED = Question(
    "m1",
    "Where does the team of Springfield play?",
    ("Duff Stadium",),
    paragraphs=tuple(
        Paragraph(PAGES[name].title, (PAGES[name].text,), name in ("sport", "team"))
        for name in ("history", "sport", "team")
    ),
)
"""A MuSiQue question: two of its paragraphs are called Springfield, and one of them is gold."""
BOTH = Question(
    "m2",
    "Who founded the town of the Isotopes?",
    ("Elisha Kelly",),
    paragraphs=tuple(Paragraph("Springfield", (PAGES[name].text,), True) for name in ("history", "sport")),
)
"""A MuSiQue question with two gold passages of one title."""


def episode(question, *turns, answer=None, stop=None):
    """Returns an episode whose n-th turn found the named pages."""
    searches = [
        Searched(turn, "q", tuple(Hit(PAGES[name], 1.0) for name in names)) for turn, names in enumerate(turns, start=1)
    ]
    stop = stop or ("answer" if answer is not None else "turns")
    done = None if answer is None else Answer(answer)
    return Episode(f"{question.id}#0", question.id, "a", "e", searches=searches, turns=len(turns) + 1, answer=done,
                   stop_reason=stop)  # fmt: skip


def passages(*names):
    return [PAGES[name] for name in names]


def test_a_repeated_title_is_judged_by_the_passage():
    wrong = episode(REPEATED, ["history"], ["other"])
    right = episode(REPEATED, ["history"], ["sport", "team"])
    golds = find_golds([REPEATED], [wrong, right])
    assert turns_of_golds(wrong, golds["m1"]) == [None, None]
    assert turns_of_golds(right, golds["m1"]) == [2, 2]
    assert recall_by_turn([wrong, right], golds, 3).tolist() == [[0, 0, 0], [0, 1, 1]]
    titles = find_golds([REPEATED], [])  # nothing shows how the corpus cuts pages: the title decides, and is fooled
    assert recall_by_turn([wrong, right], titles, 3).tolist() == [[0.5, 0.5, 0.5], [0.5, 1, 1]]


def test_two_gold_passages_of_one_title_are_two():
    one = episode(BOTH, ["sport"])
    assert recall_by_turn([one], find_golds([BOTH], [one]), 2).tolist() == [[0.5, 0.5]]
    assert recall_by_turn([one], find_golds([BOTH], []), 2).tolist() == [[1, 1]]


def test_the_distractor_setting_is_judged_by_the_passage():
    task = load_task(CARD, questions=[REPEATED, BOTH], distractors=True)
    found = task.retriever.search_for(["m1"], ["Springfield team"], 3)[0]
    own = Episode("m1#0", "m1", "a", "e", searches=[Searched(1, "Springfield team", tuple(found))])
    golds = find_golds([REPEATED, BOTH], [own])
    assert [len(golds[id]) for id in ("m1", "m2")] == [2, 2]
    assert all(gold.text for own in golds.values() for gold in own)


def test_a_corpus_that_cuts_pages_otherwise_is_judged_by_title():
    chunks = [Passage("c1", "Springfield", "Springfield has a"), Passage("c2", "Isotopes", "The Isotopes play")]
    cut = [Searched(1, "q", tuple(Hit(chunk, 1.0) for chunk in (*chunks, PAGES["team"])))]  # one page is whole
    golds = find_golds([REPEATED], [Episode("m1#0", "m1", "a", "e", searches=cut)])
    assert [(gold.title, gold.text) for gold in golds["m1"]] == [("Springfield", None), ("Isotopes", None)]
    assert qrels_from_questions([REPEATED], chunks) == {"m1": {"c1": 1, "c2": 1}}


def test_qrels_of_repeated_titles_understate_no_recall():
    qrels = qrels_from_questions([REPEATED], PAGES.values())
    assert qrels == {"m1": {"s2": 1, "t1": 1}}
    run = {"m1": [("s2", 2.0), ("t1", 1.0)]}
    assert evaluate_run(qrels, run, [2])["recall@2"] == 1.0
    bare = Question("m1", REPEATED.text, REPEATED.answers, supporting_facts=None, paragraphs=tuple(
        Paragraph(p.title, (), p.supporting) for p in REPEATED.paragraphs))  # fmt: skip
    by_title = qrels_from_questions([bare], PAGES.values())  # without texts: all three passages of the two titles
    assert evaluate_run(by_title, run, [2])["recall@2"] == pytest.approx(2 / 3)


def test_scores_tell_title_and_passage_apart():
    task = load_task(CARD, questions=[REPEATED], retriever=build_in_memory(PAGES.values()))
    scores = score_episodes(task, [episode(REPEATED, ["history"], ["other"], answer="Duff Stadium")])
    assert (scores["title_recall"][-1], scores["passage_recall"][-1]) == (0.5, 0.0)
    assert (scores["right_without_evidence"], scores["under_search"], scores["gold_found"]) == (1.0, 1.0, 0.0)
    assert scores["splits"]["evidence"]["none"] == {"n": 1, "em": 1.0, "f1": 1.0, "legal": None, "searches": 2.0}


def test_searching_too_much_and_too_little_by_hand():
    questions = [REPEATED, BOTH, Question("bare", "Who?", ("x",))]
    task = load_task(CARD, questions=questions, retriever=build_in_memory(PAGES.values()), max_turns=4)
    episodes = [
        episode(REPEATED, ["sport", "team"], ["other"], ["other"], answer="no"),  # two searches after all was found
        episode(BOTH, ["sport"], answer="Elisha Kelly"),  # answers with one page missing and turns left
        Episode("bare#0", "bare", "a", "e", turns=1, answer=Answer("x"), stop_reason="answer"),  # names no gold page
    ]
    scores = score_episodes(task, episodes)
    assert (scores["over_search"], scores["under_search"], scores["gold_found"]) == (1.0, 0.5, 0.5)
    assert scores["right_without_evidence"] == 0.0  # one page was found; the bare question does not count
    assert {name: own["n"] for name, own in scores["splits"]["evidence"].items()} == {"all": 1, "some": 1}
    last = episode(BOTH, ["sport"], ["other"], ["other"], answer="x")  # the last turn: it could not search again
    scores = score_episodes(task, [episodes[0], last, episodes[2]])
    assert scores["under_search"] == 0.0


def test_ceilings_give_the_gold_pages_and_ask_for_their_titles(tmp_path):
    class Reads:
        async def run(self, question, io):
            hits = (await io.step(Search(("anything",)))).hits
            text = " ".join(hit.passage.text for hit in hits)
            await io.step(Answer(next((word.strip(".") for word in text.split() if word[0].isdigit()), "yes")))

    task = load_task(CARD, questions=QUESTIONS, retriever=build_in_memory(PASSAGES), max_turns=4)
    agent = LoadedAgent("reads", Reads())
    scores = evaluate(task, agent, tmp_path / "run")
    scores = add_ceilings(task, agent, tmp_path / "run", scores, None, EvalOptions())
    found = scores["ceilings"]
    assert found["gold_pages"]["em"] == pytest.approx(2 / 3)  # 1901 and yes; it cannot read names
    assert found["evidence_oracle"]["em"] == 1.0
    assert found["reading_gap"] == pytest.approx(2 / 3 - scores["em"])
    assert found["retrieval_gap"] == pytest.approx(1 - scores["em"])
    assert (tmp_path / "run" / "gold_pages" / "scores.json").exists()
    assert found["hits_gain"] == pytest.approx(scores["em"] - found["other_hits"]["em"])


def test_the_floor_returns_what_is_found_for_another_question():
    inner = build_in_memory([*PASSAGES, *PAGES.values()])
    questions = [*QUESTIONS, REPEATED]
    other = OtherHits(inner, questions)
    own = {q.id: {title_key(title) for title in q.gold_titles} for q in questions}
    assert other.titles.keys() == own.keys()
    for id, titles in other.titles.items():
        assert own[id].isdisjoint(map(title_key, titles))
        (hits,) = other.search_for([id], ["any query"], 2)
        assert hits in inner.search(titles, 2)  # the hits of one of that question's titles, whole
        assert other.search_for(["nobody's", id], ["any query", "any query"], 2) == [[], hits]
    with pytest.raises(UsageError, match="different gold titles"):
        OtherHits(inner, [REPEATED, dataclasses.replace(REPEATED, id="again")])


def test_gold_pages_are_the_questions_own_paragraphs_or_the_corpuss_pages():
    found = gold_pages([REPEATED, QUESTIONS[1]], PASSAGES)
    assert [page.text for page in found["m1"]] == [PAGES["sport"].text, PAGES["team"].text]
    assert [page.title for page in found["q1"]] == ["Beta", "Gamma"]


def test_a_title_retriever_has_no_corpus_to_read():
    task, episodes = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever()), []

    class Asks:
        async def run(self, question, io):
            await io.step(Search(("Beta",)))
            await io.step(Answer("Gamma"))

    asyncio.run(Engine(task, LoadedAgent("a", Asks())).run(QUESTIONS, episodes.append))
    scores = score_episodes(task, episodes)
    assert (scores["passage_recall"], scores["title_recall"][0]) == (None, pytest.approx(0.5))


# -- titles that stand twice, and golds that cannot be found -------------------------------------------------------

GULLS = [
    Passage("g1", "Gull", "It nests. It is white."),
    Passage("g2", "Gull", "A band."),
    Passage("t", "Tern", "A tern."),
]
"""Two pages of one title, and another one."""


def gull(*facts, id="q"):
    """A HotpotQA question whose paragraphs are these pages."""
    context = [["Gull", ["It nests.", " It is white."]], ["Gull", ["A band."]], ["Tern", ["A tern."]]]
    row = {"_id": id, "question": "?", "answer": "x", "supporting_facts": list(facts), "context": context}
    return parse_questions(Rows("rows", "item", [(1, row)]), None, BadLines())[0]


def hits_of(question, *passages):
    return Episode(f"{question.id}#0", question.id, "a", "e", searches=[
        Searched(1, "q", tuple(Hit(passage, 1.0) for passage in passages))])  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "marked"),
    [
        ([["Gull", 1]], [True, False, False]),  # the second has no such sentence
        ([["Gull", 0], ["Gull", 1]], [True, False, False]),  # the first has both
        ([["Gull", 0]], [True, True, False]),  # nothing tells the two apart
        ([["Gull", 7]], [True, True, False]),
        ([["Gull", None], ["Tern", 0]], [True, True, True]),
        ([["Pelican", 0]], [False, False, False]),
    ],
)
def test_the_paragraph_that_has_the_sentence_is_gold(facts, marked):
    assert [paragraph.supporting for paragraph in gull(*facts).paragraphs] == marked


@pytest.mark.parametrize(
    ("facts", "right", "wrong"),
    [
        ([["Gull", 1]], 1.0, 0.0),  # by hand: the page with the sentence, or the other one
        ([["Gull", 1], ["Tern", 0]], 0.5, 0.0),
        ([["Gull", 0]], 1.0, 1.0),  # either is taken for the page
        ([["Gull", 7]], 1.0, 1.0),
        ([["Gull", 1], ["Pelican", 0]], 0.5, 0.0),
    ],
)
def test_recall_of_a_title_that_stands_twice(facts, right, wrong):
    question = gull(*facts)
    found, other = hits_of(question, GULLS[0]), hits_of(question, GULLS[1])
    golds = find_golds([question], [found, other])
    assert recall_by_turn([found, other], golds, 1).tolist() == [[right], [wrong]]


def test_qrels_of_a_title_that_stands_twice():
    assert qrels_from_questions([gull(["Gull", 1])], GULLS) == {"q": {"g1": 1}}
    assert qrels_from_questions([gull(["Gull", 0])], GULLS) == {"q": {"g1": 1, "g2": 1}}


def test_the_oracle_names_the_paragraph_that_has_the_sentence():
    assert gold_answer(gull(["Gull", 1], ["Tern", 0])).paragraphs == (0, 2)


BROKEN = [
    gull(["Gull", 1], id="good"),
    gull(["Pelican", 0], id="page"),
    gull(["Gull", 7], id="sentence"),
    gull(["Gull", -1], ["Pelican", 3], id="both"),
]
NAMED = [
    "page: page 'Pelican'",
    "sentence: sentence 7 of 'Gull'",
    "both: page 'Pelican'",
    "both: sentence -1 of 'Gull'",
]


@pytest.mark.parametrize(
    "options", [{"distractors": True}, {"retriever": build_in_memory(GULLS)}], ids=["own", "corpus"]
)
def test_golds_that_no_search_can_find_are_counted(options):
    assert unreachable_golds(load_task(CARD, questions=BROKEN, **options)) == NAMED
    assert unreachable_golds(load_task(CARD, questions=BROKEN[:1], **options)) == []


def test_paragraphs_of_another_question_are_not_returned():
    other = dataclasses.replace(
        BROKEN[1], id="o", paragraphs=(Paragraph("Pelican", ("A bird.",)),), supporting_facts=None
    )
    assert unreachable_golds(load_task(CARD, questions=[BROKEN[1], other], distractors=True)) == NAMED[:1]


def test_a_gold_paragraph_that_a_corpus_of_paragraphs_lacks_is_not_found():
    """MuSiQue's: the title alone is there, with another passage of the page."""
    index = build_in_memory([PAGES["history"], PAGES["team"], PAGES["other"]])
    assert unreachable_golds(load_task(CARD, questions=[REPEATED], retriever=index)) == ["m1: page 'Springfield'"]


def test_what_a_server_holds_is_not_known():
    sentences = ["sentence: sentence 7 of 'Gull'", "both: sentence -1 of 'Gull'"]
    assert unreachable_golds(load_task(CARD, questions=BROKEN, retriever=TitleRetriever())) == sentences


def test_scores_count_what_cannot_be_found(tmp_path):
    agent = load_agent("single-search")
    scores = evaluate(load_task(CARD, questions=BROKEN, distractors=True), agent, tmp_path / "run")
    assert scores["unreachable_golds"] == {"n": 4, "first": NAMED}
    usual = evaluate(load_task(CARD, questions=BROKEN[:1], distractors=True), agent, tmp_path / "usual")
    assert "unreachable_golds" not in usual


def test_ceilings_give_what_the_corpus_has_of_golds_that_are_no_paragraphs():
    pelican = Passage("p", "Pelican", "A bird.")
    question = gull(["Gull", 1], ["Pelican", 0])
    assert [page.text for page in gold_pages([question], [*GULLS, pelican])["q"]] == [
        "It nests. It is white.",
        "A bird.",
    ]


@pytest.mark.slow
def test_the_commands_count_what_cannot_be_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    write_questions("broken.jsonl", BROKEN)
    write_corpus("pages.jsonl", GULLS)
    run, given = command_line(monkeypatch, capsys), ["--questions", "broken.jsonl", "--corpus", "pages.jsonl"]
    status, out, err = run("eval", *given, "--agent", "single-search", "--json")
    assert status == 0, err
    assert json.loads(out)["unreachable_golds"]["n"] == 4
    assert "4 gold pages or sentences cannot be found" in err and NAMED[0] in err
    status, out, err = run("retrieval", *given, "--qrels-out", "qrels", "--out", "run", "--json", "--top-k", "3")
    assert status == 0, err
    scores = json.loads(out)
    assert (scores["unreachable_golds"], scores["n"]) == (4, 4)
    assert "4 gold pages or sentences cannot be found" in err and NAMED[0] in err
    again = json_of(run("retrieval", "--qrels", "qrels", "--run", "run", "--json", "--top-k", "3"))
    assert again["recall@3"] == scores["recall@3"]


def test_a_corpus_without_one_gold_page_is_refused():
    with pytest.raises(ScoringError, match="none of the 3 gold pages is in the corpus, such as 'Pelican' of question"):
        qrels_from_questions([BROKEN[1], gull(["Pelican", 1], ["Albatross", 0], id="z")], GULLS)


def test_judgements_that_cannot_be_scored_are_refused_before_the_search(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    write_questions("q.jsonl", [BROKEN[0]])
    write_corpus("pages.jsonl", GULLS)
    (tmp_path / "qrels").write_text("good 0 g1 0\n")
    monkeypatch.setattr("searchgym.eval.retrieval.retrieve_run", None)
    given = ["--questions", "q.jsonl", "--corpus", "pages.jsonl", "--qrels", "qrels"]
    status, _, err = command_line(monkeypatch, capsys)("retrieval", *given)
    assert status == 1 and "query 'good' has no relevant passage" in err

"""Gold evidence by title and by passage, and what an episode made of it, on cases worked by hand."""

import asyncio
import dataclasses

import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.retrieval.index.index import build_in_memory
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.eval.ceilings import OtherHits, add_ceilings, gold_pages
from searchgym.eval.evidence import find_golds, found_at, recall_by_turn
from searchgym.eval.retrieval import evaluate_run, qrels_from_questions
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import score_episodes
from searchgym.records import Answer, Episode, Hit, Paragraph, Passage, Question, Search, Searched, title_key
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
    assert found_at(wrong, golds["m1"]) == [None, None]
    assert found_at(right, golds["m1"]) == [2, 2]
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

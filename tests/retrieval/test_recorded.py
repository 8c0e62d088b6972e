"""Replays of runs: the same hits to the bit, and an error for whatever was not recorded."""

import json

import pytest
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataError, DataMissingError, RetrieverError
from searchgym.eval.runner import evaluate
from searchgym.records import Answer, Hit
from searchgym.records import Search as Asks
from searchgym.retrieval.cards import Sources, find_retriever
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.kinds.cache import CacheRetriever
from searchgym.retrieval.kinds.recorded import RecordedRetriever
from searchgym.retrieval.kinds.recorded import RecordedSearch as Search
from searchgym.retrieval.retriever import CorpusRetriever, QuestionRetriever, identify, retrieve
from searchgym.rollout.storage import read_episodes

A, B = (Hit(p, 0.1 + n) for n, p in enumerate(PASSAGES[:2]))


class AsksTwice:
    """Searches the question's text, and two of its words at once."""

    async def run(self, question, io):
        await io.step(Asks((question.text,)))
        await io.step(Asks(tuple(question.text.split()[-2:])))
        await io.step(Answer("?"))


def run(out, **options):
    task = load_task(find_env("searchgym/Demo-v0"), max_queries=2, **options)
    evaluate(task, LoadedAgent("own", AsksTwice()), out)
    return {episode.question_id: episode for episode in read_episodes(out / "episodes.jsonl")}


def test_an_evaluation_is_replayed_to_the_bit(tmp_path):
    first = run(tmp_path / "first")
    again = run(tmp_path / "again", retriever=RecordedRetriever.of_run(tmp_path / "first"))
    assert sum(len(searched.hits) for episode in first.values() for searched in episode.searches) > 50
    assert again == first
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("first", "again")]
    assert records[0]["corpus_sha256"]
    assert records[1]["corpus_sha256"] == records[0]["corpus_sha256"]


def test_a_card_names_the_file_or_its_folder(tmp_path):
    first = run(tmp_path / "first")
    question, episode = next(iter(first.items()))
    searched = episode.searches[0]
    for path in (tmp_path / "first", tmp_path / "first" / "episodes.jsonl"):
        recorded = Sources().open(find_retriever({"kind": "recorded", "episodes": str(path)}))
        assert recorded.search_for([question], [searched.query], 3) == [list(searched.hits[:3])]
    with pytest.raises(DataMissingError):
        RecordedRetriever.of_run(tmp_path / "nothing")
    said = identify(recorded)
    assert (said["kind"], len(said["episodes_sha256"])) == ("recorded", 64)


def test_a_question_that_was_not_asked_ends_in_a_retriever_error(tmp_path):
    evaluate(load_task(CARD, questions=QUESTIONS[:2], retriever=TitleRetriever()), load_agent("oracle"), tmp_path / "a")
    recorded = RecordedRetriever.of_run(tmp_path / "a")
    task = load_task(CARD, questions=QUESTIONS, retriever=recorded)
    scores = evaluate(task, load_agent("oracle"), tmp_path / "b")
    assert scores["retriever_errors"] == 1
    errors = [episode.error for episode in read_episodes(tmp_path / "b" / "episodes.jsonl") if episode.error]
    assert len(errors) == 1
    assert "RecordedRetriever failed 1 time(s)" in errors[0]
    assert "has no search for 'Alpha' for question 'q2'" in errors[0]


def test_questions_come_before_queries():
    recorded = RecordedRetriever(
        [
            Search("q0", "x", (A,)),
            Search("q1", "x", (B,)),
            Search("q0", "y", (A, B)),
            Search("q1", "y", (A, B)),
        ]
    )
    assert isinstance(recorded, QuestionRetriever)
    assert not isinstance(recorded, CorpusRetriever)
    assert retrieve(recorded, ["q1", "q0"], ["x", "x"], 1, 1.0) == [[B], [A]]
    assert recorded.search(["y"], 5) == [[A, B]]
    with pytest.raises(RetrieverError, match="several searches for 'x' for any question, which differ"):
        recorded.search(["y", "x"], 5)
    with pytest.raises(RetrieverError, match="no search for 'z' for any question"):
        recorded.search(["z"], 5)
    with pytest.raises(RetrieverError, match="no search for 'x' for question 'q2'"):
        recorded.search_for(["q2"], ["x"], 5)


def test_records_that_differ_are_refused_when_they_are_asked_for():
    recorded = RecordedRetriever([Search("q", "x", (A,)), Search("q", "x", (B,)), Search("q", "x", (A,))])
    with pytest.raises(RetrieverError, match="several searches for 'x' for question 'q', which differ"):
        recorded.search_for(["q"], ["x"], 5)
    same = RecordedRetriever([Search("q", "x", (A,)), Search("q", "x", (A,))])
    assert same.search_for(["q"], ["x"], 5) == [[A]]


def test_fewer_hits_are_asked_for_than_recorded_never_more():
    searches = [Search("q", "x", (A, B)), Search("q", "rare", (A,))]
    recorded = RecordedRetriever(searches, top_k=2)
    assert recorded.search_for(["q"], ["x"], 1) == [[A]]
    assert recorded.search_for(["q"], ["rare"], 2) == [[A]]  # no more were found
    with pytest.raises(RetrieverError, match="the first 2 hits of each query, not 3: ask for at most 2"):
        recorded.search_for(["q"], ["x"], 3)
    assert RecordedRetriever(searches).search_for(["q"], ["x"], 3) == [[A, B]]  # nothing says how many were asked for


def test_what_was_not_recorded_is_not_asked_again():
    class Noting(RecordedRetriever):
        calls = 0

        def search(self, queries, k):
            self.calls += 1
            return super().search(queries, k)

    inner = Noting([])
    with pytest.raises(RetrieverError, match="CacheRetriever failed 1 time"):
        retrieve(CacheRetriever(inner), ["q"], ["x"], 1, 10.0)
    assert inner.calls == 1


def test_a_line_that_is_no_episode_is_named(tmp_path):
    bm25 = build_in_memory(PASSAGES)
    evaluate(load_task(CARD, questions=QUESTIONS, retriever=bm25), load_agent("oracle"), tmp_path)
    lines = (tmp_path / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    row = json.loads(lines[1])
    row["searches"][0]["hits"][0]["passage"].pop("id")
    (tmp_path / "episodes.jsonl").write_bytes(lines[0] + json.dumps(row).encode() + b"\n")
    with pytest.raises(DataError, match=r"episodes\.jsonl:2: not an episode: TypeError"):
        RecordedRetriever.of_run(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(DataError, match=r"run\.json: expected an object"):
        RecordedRetriever.of_run(tmp_path)

"""Practice from masked spans: demonstrations of their oracle, and the first stage of warm starts."""

import dataclasses

import pytest
from linked_pages import linked_pages

from searchgym.corpora.questions import write_questions
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.protocol import get_protocol
from searchgym.questions.masked.generate import SearchLimits, generate
from searchgym.questions.masked.hiding import HidingRetriever
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.records import Question, SupportingFact
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.text import holds, norm
from searchgym.train.demonstrations.held_out import without_held_out
from searchgym.train.demonstrations.oracle import demonstrate_search

PAGES = linked_pages(12, seed=4)


@pytest.fixture(scope="module")
def form():
    return TokenFormat(load_tokenizer("tiny"), get_protocol("tags"), chat=True)


def task_of(source, **fields):
    index = build_in_memory(PAGES)
    spec = MaskedSpec(**({"n": 40, "split": "all", "source": source} | fields))
    made = generate(PAGES, spec, SearchLimits(), index)
    questions = [question for own in made.questions.values() for question in own]
    return load_task(find_env("searchgym/MaskedSpan-v0"), questions=questions, retriever=index)


# -- demonstrations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["kept", "hidden"])
def test_the_oracle_demonstrates_both_modes(source, form):
    task = task_of(source)
    shown = demonstrate_search(task, form, 1000)
    assert shown.counts["kept"] == len(shown.episodes) == len(task.questions) >= 10  # those of several masks too
    for episode in shown.episodes:
        asked = task.find(episode.question_id)
        assert episode.reward == 1.0 and episode.answer.text == asked.answers[0]
        assert [searched.query for searched in episode.searches] == asked.metadata["queries"]
        assert all(holds(asked.text, searched.query) for searched in episode.searches)  # nothing is guessed
        titles = {hit.passage.title for searched in episode.searches for hit in searched.hits}
        assert (asked.metadata["page"] in titles) == (source == "kept")


def test_no_demonstration_stops_early(form):
    """A masked text has no first hop whose answer could be given too soon."""
    shown = demonstrate_search(task_of("hidden"), form, 20, early=1.0)
    assert shown.counts["early"] == 0 and all(episode.reward == 1.0 for episode in shown.episodes)


def test_a_span_that_is_not_shown_is_not_taught(form):
    task = task_of("kept")
    cut = dataclasses.replace(task.rules, max_observation_words=8)
    with pytest.raises(UsageError, match="the answer was not shown"):
        demonstrate_search(dataclasses.replace(task, rules=cut), form, 20)


def test_pages_that_are_held_out_stay_apart_and_sources_stay_hidden(form, tmp_path):
    task = task_of("hidden")
    gone = task.questions[0].metadata["page"]
    kept = [Question("e", "Who?", ("somebody",), supporting_facts=(SupportingFact(gone),))]
    write_questions(tmp_path / "eval.jsonl", kept)
    less, pages = without_held_out(task, [tmp_path / "eval.jsonl"])
    assert pages == 1 and isinstance(less.retriever, HidingRetriever) and 0 < len(less.questions) < len(task.questions)
    for asked in less.questions:
        said = {norm(part) for part in asked.answers[0].split(";")}
        assert norm(gone) not in {norm(asked.metadata["page"]), *map(norm, asked.gold_titles), *said}
        (hits,) = less.retriever.search_for([asked.id], [f"{asked.metadata['page']} {gone}"], 40)
        titles = {hit.passage.title for hit in hits}
        assert titles and not {asked.metadata["page"], gone} & titles

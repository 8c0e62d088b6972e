"""Practice from masked spans: demonstrations of their oracle, and the first stage of warm starts."""

import dataclasses

import pytest
from linked_pages import linked_pages

from searchgym.corpora.questions import write_questions
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataError, UsageError
from searchgym.protocol import get_protocol
from searchgym.questions.masked.generate import Rules, generate
from searchgym.questions.masked.hiding import HidingRetriever
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question, SupportingFact
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.text import holds, norm
from searchgym.train.demonstrations.held_out import without_held_out
from searchgym.train.demonstrations.oracle import demonstrate_search
from searchgym.train.tiny.masked import demonstrate_spans, masked_samples, masked_task
from searchgym.train.tiny.model import STAGES, Stage, masked_first
from searchgym.train.tiny.training import lessons

PAGES = linked_pages(12, seed=4)


@pytest.fixture(scope="module")
def form():
    return TokenFormat(load_tokenizer("tiny"), get_protocol("tags"), chat=True)


def task_of(source, **fields):
    index = build_in_memory(PAGES)
    spec = MaskedSpec(**({"n": 40, "split": "all", "source": source} | fields))
    made = generate(PAGES, spec, Rules(), index)
    questions = [question for own in made.questions.values() for question in own]
    return load_task(find_env("searchgym/MaskedSpan-v0"), questions=questions, retriever=index)


def world(seed=5):
    return build_world(WorldSpec("simple", size=40, seed=seed, split="train"))


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


# -- the tiny model ------------------------------------------------------------------------------------------------


def test_turns_by_hand():
    text = "Fill in what is hidden behind [mask1] and [mask2], in this order and separated by semicolons: "
    text += "Zor is a man. Zor was born in [mask2]. Zor works for [mask1]."
    asked = Question("q", text, ("Fetec; 1931",), metadata={"masks": 2, "queries": ["Zor"]})
    assert demonstrate_spans(asked).turns == (
        "<think> Zor was born in [mask2]. Zor works for [mask1].</think><search> Zor</search>",
        "<think> Zor was born in 1931. Zor works for Fetec.</think><answer> Fetec; 1931</answer>",
    )


@pytest.mark.slow
def test_samples_of_a_world_teach_the_turns_and_nothing_else(form):
    task = masked_task(world(), 2)
    samples = masked_samples(world(), 2, form)
    assert len(samples) == len(task.questions) > 20
    said = {"".join(demonstrate_spans(question).turns) for question in task.questions}
    assert {form.decode(sample.ids[sample.mask]) for sample in samples} == said
    again = masked_samples(world(), 2, form)
    assert all((a.ids == b.ids).all() for a, b in zip(samples, again, strict=True))


def test_hidden_facts_of_a_world_are_marriages():
    for question in masked_task(world(), 1, "hidden").questions:
        assert "is married to [mask1]" in question.text


def test_a_world_without_as_many_facts_is_refused():
    small = world()
    small = dataclasses.replace(small, triples=small.triples[:1])
    with pytest.raises(DataError, match="gives no masked spans"):
        masked_task(small, 4)


def test_masked_stages_come_before_the_demonstrations_at_equal_tokens():
    stages = masked_first(STAGES, 2.0)
    assert sum(stage.share for stage in stages) == pytest.approx(sum(stage.share for stage in STAGES))
    lessons_in_order = [stage.lesson for stage in stages]
    assert lessons_in_order == ["exercise"] * 2 + ["masked"] * 4 + ["single", "episode", "episode"]
    assert [stage.masks for stage in stages[2:6]] == [1, 2, 3, 4]
    assert stages[:2] == STAGES[:2]
    # the demonstrations keep their proportions: 13.8 less 2 in all
    assert [s.share for s in stages[6:]] == pytest.approx([s.share * 11.8 / 13.8 for s in STAGES[2:]])
    for share in (0, 13.8, -1):
        with pytest.raises(UsageError, match="between 0 and"):
            masked_first(STAGES, share)


def test_a_stage_trains_on_masked_spans(form):
    updates = list(lessons(Stage(share=1, lesson="masked", masks=3), [world()], form, 0, 2048))
    texts = [form.decode(sample.ids) for update in updates for sample in update]
    assert texts and all("[mask3]" in text and "[mask4]" not in text for text in texts)

"""The tiny model's masked stage: demonstrations of masked spans on generated worlds."""

import dataclasses

import pytest
from tiny import lessons
from tiny_masked import demonstrate_spans, masked_samples, masked_task
from tiny_model import STAGES, Stage, masked_first

from searchgym.errors import DataError, UsageError
from searchgym.protocol import get_protocol
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def form():
    return TokenFormat(load_tokenizer("tiny"), get_protocol("tags"), chat=True)


def world(seed=5):
    return build_world(WorldSpec("simple", size=40, seed=seed, split="train"))


def test_turns_by_hand():
    text = "Fill in what is hidden behind [mask1] and [mask2], in this order and separated by semicolons: "
    text += "Zor is a man. Zor was born in [mask2]. Zor works for [mask1]."
    asked = Question("q", text, ("Fetec; 1931",), metadata={"masks": 2, "queries": ["Zor"]})
    assert demonstrate_spans(asked).turns == (
        "<think> Zor was born in [mask2]. Zor works for [mask1].</think><search> Zor</search>",
        "<think> Zor was born in 1931. Zor works for Fetec.</think><answer> Fetec; 1931</answer>",
    )


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

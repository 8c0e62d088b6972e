"""Curricula: the mix of questions by stage, the way from stage to stage, and harder searches."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CARD, TitleRetriever

from searchgym.envs.task import load_task
from searchgym.errors import CardError, UsageError
from searchgym.records import Episode, Hop, Passage, Question, SupportingFact
from searchgym.retrieval.index.index import build_in_memory
from searchgym.train.curriculum.kinds.pass_rate import PassRate
from searchgym.train.curriculum.kinds.steps import Steps
from searchgym.train.curriculum.retriever import StagedRetriever
from searchgym.train.curriculum.source import Curriculum, curriculum_of, shared_out, staged, value_of
from searchgym.train.curriculum.stages import StageOptions
from searchgym.train.recipe.load import load_recipe

QUESTIONS = [
    Question(f"{hops}-{number}", f"{hops} {number}?", ("yes",), metadata={"hops": hops})
    for hops, count in ((1, 20), (2, 30), (3, 9))
    for number in range(count)
]
THREE = [StageOptions(mix={1: 1.0}), StageOptions(mix={1: 1, 2: 1}), StageOptions(mix={2: 0.5, 3: 0.5}, share=2.0)]


def curriculum(stages=None, steps=12, batch=8, seed=0, kind=Steps, **options):
    return Curriculum(QUESTIONS, kind(stages=stages or THREE, **options), seed, batch, steps)


def answered(questions, right, stop="answer"):
    """Returns an episode per question, of which the first ones are right."""
    return [
        Episode(id=q.id, question_id=q.id, agent="a", env="e", stop_reason=stop, scores={"em": float(place < right)})
        for place, q in enumerate(questions)
    ]


def hops(questions):
    return Counter(question.metadata["hops"] for question in questions)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 40),
    st.lists(st.floats(0, 5), min_size=1, max_size=5).filter(lambda weights: sum(weights) > 0.1),
    st.floats(0, 0.999),
)
def test_shares_add_up_and_are_within_one_of_exact(count, weights, start):
    shares = shared_out(count, weights, start)
    assert sum(shares) == count
    exact = [count * weight / sum(weights) for weight in weights]
    assert all(abs(share - own) < 1 + 1e-9 for share, own in zip(shares, exact, strict=True))


def test_shares_are_exact_on_average():
    drawn = np.mean([shared_out(5, [1, 1, 2], start) for start in np.linspace(0, 1, 400, endpoint=False)], axis=0)
    assert drawn == pytest.approx([1.25, 1.25, 2.5])


def test_the_mix_follows_the_schedule():
    source, seen = curriculum(), {}
    for step in range(12):
        drawn = source.draw(step, 8)
        assert len({question.id for question in drawn}) == 8
        seen[step] = hops(drawn)
        row = source.learn(step, drawn, answered(drawn, 4))
        assert row["pass_rate"] == 0.5
        assert [row[f"share/{value}"] * 8 for value in "123"] == [seen[step][value] for value in (1, 2, 3)]
    assert [source.stage_at(step) for step in range(12)] == [0] * 3 + [1] * 3 + [2] * 6  # shares 1, 1 and 2 of 12 steps
    assert all(seen[step] == {1: 8} for step in range(3))
    assert all(seen[step] == {1: 4, 2: 4} for step in range(3, 6))
    assert all(seen[step] == {2: 4, 3: 4} for step in range(6, 12))


def test_without_a_mix_all_questions_come_as_often_as_they_are():
    source = curriculum([StageOptions()])
    total = sum((hops(source.draw(step, 8)) for step in range(59)), Counter())
    assert {value: total[value] / 8 for value in (1, 2, 3)} == pytest.approx({1: 20, 2: 30, 3: 9}, abs=1)


def test_an_epoch_asks_every_question_once_in_an_order_of_its_own():
    source = curriculum([StageOptions(mix={1: 1.0})])
    order = [question.id for step in range(10) for question in source.draw(step, 4)]
    first, second = order[:20], order[20:]
    assert sorted(first) == sorted(second) and first != second
    assert [q.id for q in curriculum([StageOptions(mix={1: 1.0})], seed=1).draw(0, 4)] != order[:4]


def test_more_questions_are_of_the_same_stage_and_new():
    source = curriculum()
    drawn = source.draw(3, 8)
    more = source.more(3, 1, 5, drawn)
    assert len(more) == 5 and not {q.id for q in more} & {q.id for q in drawn}
    assert set(hops(more)) <= {1, 2}


def test_stages_follow_pass_rates():
    source = curriculum(kind=PassRate, up=0.75, down=0.25, window=2)
    stages = []
    for step, right in enumerate([8, 4, 8, 8, 6, 6, 1, 1, 8, 8, 8]):
        drawn = source.draw(step, 8)
        stages.append(source.learn(step, drawn, answered(drawn, right))["stage"])
    # means of two steps of a stage: 0.75 goes on, then 1 and 0.75 go on, then 1/8 and 1/8 go back, then on again
    assert stages == [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 2]


def test_failed_retrievals_are_no_pass_rate():
    source = curriculum(kind=PassRate, up=0.5, down=0.25, window=1)
    drawn = source.draw(0, 8)
    row = source.learn(0, drawn, answered(drawn, 0, stop="retriever_error"))
    assert "pass_rate" not in row and source.state()["window"] == []
    mixed = answered(drawn[:4], 4) + answered(drawn[4:], 0, stop="retriever_error")
    assert source.learn(0, drawn, mixed)["pass_rate"] == 1.0
    assert source.state()["stage"] == 1


def test_questions_without_an_answer_are_no_pass_rate():
    source = curriculum(kind=PassRate, up=0.5, down=0.25, window=1)
    drawn = source.draw(0, 8)
    mixed = answered(drawn[:4], 4) + [replace(e, scores={}) for e in answered(drawn[4:], 0)]
    assert source.learn(0, drawn, mixed)["pass_rate"] == 1.0


@pytest.mark.parametrize("advance", [{}, {"kind": PassRate, "up": 0.5, "down": 0.2, "window": 2}])
def test_a_state_goes_on_with_the_same_questions(advance):
    def run(source, steps):
        rows = []
        for step in steps:
            drawn = source.draw(step, 8)
            drawn += source.more(step, 1, 2, drawn)
            source.learn(step, drawn, answered(drawn, (7 * step) % 9))
            rows.append([question.id for question in drawn])
        return rows

    whole = run(curriculum(**advance), range(12))
    for cut in range(1, 12):
        first = curriculum(**advance)
        run(first, range(cut))
        second = curriculum(**advance)
        second.restore(first.state())
        assert run(second, range(cut, 12)) == whole[cut:]


def test_a_schedule_that_asks_for_what_does_not_exist():
    with pytest.raises(UsageError, match=r"stages\[0\] needs up to 8 questions of hops 7 a step, there are 1 \(20\), "):
        curriculum([StageOptions(mix={7: 1.0})])
    with pytest.raises(UsageError, match=r"stages\[1\] needs up to 16 questions of hops 3 a step, there are .*3 \(9\)"):
        curriculum([StageOptions(), StageOptions(mix={3: 1.0, 2: 1.0})], batch=32)
    with pytest.raises(UsageError, match=r"of kind bridge a step, there are \? \(59\)"):
        curriculum([StageOptions(mix={"bridge": 1.0})], by="kind")


def test_values_of_questions():
    hop = Hop("?", "x")
    facts = (SupportingFact("A", 0), SupportingFact("A", 1), SupportingFact("B", 0))
    assert value_of(Question("a", "?", ("x",), metadata={"hops": 3, "masks": 2}), "hops") == "3"
    assert value_of(Question("a", "?", ("x",), metadata={"masks": 2}), "masks") == "2"
    assert value_of(Question("a", "?", ("x",), hops=(hop, hop)), "hops") == "2"
    assert value_of(Question("a", "?", ("x",), supporting_facts=facts), "hops") == "2"
    assert value_of(Question("a", "?", ("x",), kind="bridge"), "kind") == "bridge"
    assert value_of(Question("a", "?", ("x",)), "hops") == "?"


PASSAGES = [Passage(str(n), f"Town {n}", f"town number {n} lies at the river") for n in range(40)]


def hits_of(stage, queries, step=0, seed=0):
    retriever = StagedRetriever(build_in_memory(PASSAGES), lambda _: stage, seed)
    retriever.at_step(step, 10)
    return [[hit.passage.id for hit in hits] for hits in retriever.search(queries, 5)]


def test_distractors_take_the_places_of_the_last_hits():
    queries = [f"town number {n}" for n in range(20)]
    plain = hits_of(StageOptions(), queries)
    mixed = hits_of(StageOptions(distractors=2), queries)
    for before, after in zip(plain, mixed, strict=True):
        assert len(after) == len(set(after)) == 5
        assert [id for id in after if id in before] == before[:3]  # in their order; the others were not found
    ranks = Counter(rank for before, after in zip(plain, mixed, strict=True)
                    for rank, id in enumerate(after) if id not in before)  # fmt: skip
    assert set(ranks) == {0, 1, 2, 3, 4}
    assert hits_of(StageOptions(distractors=2), queries) == mixed
    assert hits_of(StageOptions(distractors=2), queries[::-1]) == mixed[::-1]
    assert hits_of(StageOptions(distractors=2), queries, step=1) != mixed
    assert hits_of(StageOptions(distractors=2), queries, seed=1) != mixed


def test_noise_has_its_probability_and_validation_none():
    queries = [f"town number {n % 40} {n}" for n in range(400)]
    plain = hits_of(StageOptions(), queries)
    noisy = hits_of(StageOptions(noise=0.3), queries)
    replaced = sum(not set(a) & set(b) for a, b in zip(plain, noisy, strict=True))
    assert 400 * 0.3 - 4 * np.sqrt(400 * 0.21) < replaced < 400 * 0.3 + 4 * np.sqrt(400 * 0.21)
    assert hits_of(StageOptions(noise=1.0, distractors=3), queries[:20], step=None) == plain[:20]


def recipe(*values):
    return load_recipe("tiny-grpo", values)


PASS_RATE = ["curriculum={kind: pass-rate, stages: [{}]}"]


@pytest.mark.slow
def test_recipes_and_their_mistakes():
    staged_recipe = recipe(
        "curriculum={kind: steps, stages: [{mix: {1: 1}}, {mix: {1: 0.5, 2: 0.5}, noise: 0.1}]}", "curriculum.by=hops"
    )
    assert staged_recipe.curriculum.stages[1].mix == {1: 0.5, 2: 0.5}
    for values, message in (
        (["curriculum.window=2"], "curriculum: missing key kind, one of learnability, pass-rate, steps"),
        (["curriculum=steps"], "curriculum: stages is empty"),
        ([*PASS_RATE, "curriculum.window=0"], "curriculum.window: expected at least 1, got 0"),
        ([*PASS_RATE, "curriculum.up=.nan"], "curriculum.up: expected a finite number"),
        ([*PASS_RATE, "curriculum.up=often"], "curriculum.up: expected a number"),
        ([*PASS_RATE, "curriculum.uup=1"], "curriculum.uup: unknown key; did you mean 'up'"),
        (["curriculum.advance=pass_rate"], "curriculum.advance is an old name: write curriculum: {kind: steps or pass"),
        (["curriculum.kind=step"], "unknown curriculum 'step'; did you mean 'steps'"),
        (["curriculum.kind=steps", "curriculum.stages=[{}]", "curriculum.up=0.5"], "curriculum.up: unknown key"),
        (
            ["curriculum.kind=steps", "curriculum.stages=[{noise: 1.5}]"],
            r"stages\[0\].noise: expected at most 1, got 1.5",
        ),
        (
            ["curriculum.kind=steps", "curriculum.stages=[{distractors: -1}]"],
            r"stages\[0\].distractors: expected at least 0, got -1",
        ),
        (["curriculum.kind=steps", "curriculum.stages=[{share: 0}]"], r"stages\[0\].share: expected above 0, got 0"),
        (
            ["curriculum.kind=steps", "curriculum.stages=[{mix: {1: -1, 2: 1}}]"],
            r"stages\[0\].mix\[1\]: expected at least 0, got -1",
        ),
        (["curriculum.kind=steps", "curriculum.stages=[{mix: {1: 0}}]"], r"stages\[0\]: mix is \{1: 0"),
        (
            ["curriculum.kind=steps", "curriculum.stages=[{}]", "proposer.kind=path"],
            "the proposer chooses the questions",
        ),
        (
            ["curriculum.kind=steps", "curriculum.stages=[{mixx: {}}]"],
            r"stages\[0\].mixx: unknown key; did you mean 'mix'",
        ),
    ):
        with pytest.raises(CardError, match=message):
            recipe(*values)


def source_of(made, task):
    return curriculum_of(made.curriculum, task, made.seed, made.rollout.questions, made.steps)


def test_a_task_gets_harder_searches_only_where_a_stage_asks_for_them():
    task = load_task(CARD, questions=QUESTIONS, retriever=build_in_memory(PASSAGES), top_k=3)
    plain = recipe("curriculum.kind=steps", "curriculum.stages=[{mix: {1: 1}}]", "rollout.questions=4")
    assert staged(task, source_of(plain, task), plain.curriculum, 0) is task
    noisy = recipe(
        "curriculum.kind=steps", "curriculum.stages=[{noise: 0.5}, {distractors: 1}]", "rollout.questions=4", "steps=4"
    )
    source = source_of(noisy, task)
    harder = staged(task, source, noisy.curriculum, 0).retriever
    for step, expected in ((0, (0.5, 0)), (2, (0.0, 1)), (None, (0.0, 0))):
        if step is not None:
            source.draw(step, 4)
        harder.at_step(step, 4)
        assert (harder.probability, harder._distractors) == expected
    with pytest.raises(UsageError, match="3 distractors among 3 hits"):
        source_of(recipe("curriculum.kind=steps", "curriculum.stages=[{distractors: 3}]"), task)
    with pytest.raises(UsageError, match="Remote has none on this machine"):
        staged(replace(task, retriever=Remote()), source, noisy.curriculum, 0)


class Remote(TitleRetriever):
    """A retriever whose corpus is elsewhere."""

    def __init__(self):
        super().__init__()
        del self.passages

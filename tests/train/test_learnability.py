"""The curriculum ``learnability``: its weights by hand, its way from kind to kind, and what it refuses and warns of."""

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import test_run
from scipy import integrate, stats
from toy_training import QUESTIONS as BANDIT
from toy_training import exact, toy_recipe, toy_trainer

from searchgym.errors import CardError, UsageError
from searchgym.records import Episode, Question
from searchgym.train.curriculum.kinds.learnability import Learnability, learnability
from searchgym.train.curriculum.source import Curriculum, value_of
from searchgym.train.curriculum.stages import StageOptions, Tally
from searchgym.train.loop.assembly import assemble
from searchgym.train.recipe.load import load_recipe

recipe = test_run.recipe  # a fixture: a recipe on the bundled questions with a small random model
QUESTIONS = [
    Question(f"{hops}-{number}", f"{hops} {number}?", ("yes",), metadata={"hops": hops})
    for hops in (1, 2, 3)
    for number in range(40)
]
EVEN = {1: 1.0, 2: 1.0, 3: 1.0}
BATCH, ATTEMPTS = 16, 8


def curriculum(mix=EVEN, batch=BATCH, seed=0, questions=QUESTIONS, **options):
    schedule = Learnability(stages=[StageOptions(mix=mix)], **options)
    return Curriculum(questions, schedule, seed, batch, 100, ATTEMPTS)


def hops(questions):
    return Counter(str(question.metadata["hops"]) for question in questions)


def answered(questions, rates, rng=None, stop="answer"):
    """Returns `ATTEMPTS` episodes per question: the first ones right in the rate of its hops, or at random."""
    episodes = []
    for question in questions:
        rate = rates[str(question.metadata["hops"])]
        right = rng.random(ATTEMPTS) < rate if rng is not None else np.arange(ATTEMPTS) < round(rate * ATTEMPTS)
        for attempt, em in enumerate(right):
            scores = {"em": float(em)}
            episodes.append(Episode(f"{question.id}#{attempt}", question.id, "a", "e", stop_reason=stop, scores=scores))
    return episodes


def step(source, number, rates, rng=None):
    """Makes one step of a training; returns its questions and metrics."""
    questions = source.draw(number, BATCH)
    return questions, source.learn(number, questions, answered(questions, rates, rng))


# -- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [2, 5, 8, 16])
@pytest.mark.parametrize(("right", "wrong"), [(0, 0), (3, 1), (0, 40), (40, 0), (7, 120)])
def test_learnability_is_the_mean_over_the_posterior(right, wrong, attempts):
    posterior = stats.beta(1 + right, 1 + wrong)
    mean, _ = integrate.quad(lambda p: (1 - p**attempts - (1 - p) ** attempts) * posterior.pdf(p), 0, 1, limit=200)
    assert learnability(right, wrong, attempts) == pytest.approx(mean, abs=1e-8)


def test_learnability_by_hand():
    assert learnability(0, 0, 8) == pytest.approx(7 / 9)  # 1 - 2 / (n + 1)
    assert learnability(0, 0, 2) == pytest.approx(1 / 3)  # 2 E[p (1 - p)] of a uniform p
    assert learnability(1, 1, 2) == pytest.approx(2 / 5)  # Beta(2, 2): 1 - 2 (2/4) (3/5)
    assert learnability(400, 100, 8) == pytest.approx(1 - 0.8**8 - 0.2**8, abs=0.01)


def test_weights_by_hand():
    """Two attempts: learnability is 1/3 if not measured, 2/5 after one right and one wrong answer."""
    options = Learnability(least=0.1, learnt=0.8)
    mix = {"a": 3.0, "b": 1.0, "c": 1.0}
    tallies = {"b": Tally(1.0, 2), "c": Tally(8.0, 10)}
    raw = {"a": 3 * 1 / 3, "b": 2 / 5, "c": 0.0}  # c is learnt
    expected = {value: 0.1 + 0.7 * weight / 1.4 for value, weight in raw.items()}
    assert options.weigh(mix, tallies, 2) == pytest.approx(expected)
    assert options.weigh(mix, tallies, 1) == pytest.approx(expected)  # a group of one counts as two
    almost = options.weigh(mix, tallies | {"c": Tally(7.0, 10)}, 2)
    assert almost["c"] > 0.2
    all_learnt = options.weigh(mix, dict.fromkeys(mix, Tally(9.0, 10)), 2)
    assert all_learnt == pytest.approx({"a": 0.1 + 0.7 * 3 / 5, "b": 0.1 + 0.7 / 5, "c": 0.1 + 0.7 / 5})


def test_a_rate_is_that_of_a_values_last_steps():
    source = curriculum(window=2, least=0.1)  # of 16 questions at least one of each value
    steps = []
    for number, rate in enumerate((1.0, 0.5, 0.25)):
        questions, row = step(source, number, {"1": rate, "2": 0.0, "3": 0.0})
        counts = hops(questions)
        assert {value: row[f"share/{value}"] * BATCH for value in "123"} == counts
        steps.append((counts["1"], counts["1"] * rate))
        asked, right = (sum(numbers) for numbers in zip(*steps[-2:], strict=True))
        assert row["pass_rate/1"] == pytest.approx(right / asked)
        tallies = {value: [Tally(*pair) for pair in source.state()["tallies"][value]] for value in "123"}
        pooled = {value: Tally(*map(sum, zip(*pairs, strict=True))) for value, pairs in tallies.items()}
        expected = Learnability(least=0.1).weigh(dict.fromkeys("123", 1.0), pooled, ATTEMPTS)
        assert {value: row[f"weight/{value}"] for value in "123"} == pytest.approx(expected)
        assert sum(row[f"weight/{value}"] for value in "123") == pytest.approx(1)


def test_failed_retrievals_do_not_count():
    source = curriculum()
    questions = source.draw(0, BATCH)
    row = source.learn(0, questions, answered(questions, dict.fromkeys("123", 1.0), stop="retriever_error"))
    assert not any(name.startswith("pass_rate") for name in row)
    assert [row[f"weight/{value}"] for value in "123"] == pytest.approx([1 / 3] * 3)


def test_drawn_shares_follow_the_weights():
    source, drawn, exact_share = curriculum(), Counter(), Counter()
    weights = dict.fromkeys("123", 1 / 3)
    for number in range(60):
        questions, row = step(source, number, {"1": 0.5, "2": 0.125, "3": 0.0})
        counts = hops(questions)
        assert all(abs(counts[value] - BATCH * weights[value]) < 1 + 1e-9 for value in weights)
        drawn += counts
        exact_share += Counter({value: BATCH * weight for value, weight in weights.items()})
        weights = {value: row[f"weight/{value}"] for value in weights}
    assert all(abs(drawn[value] - exact_share[value]) < 3 * np.sqrt(60) for value in weights)  # rounded at random


# -- simulated learners ---------------------------------------------------------------------------------------------


class Learner:
    """A made-up model: practice of a kind raises its pass rate, the faster the better it masters the kind before."""

    def __init__(self):
        self.skill = {"1": 0.3, "2": 0.02, "3": 0.0}

    def practise(self, counts):
        before = {"1": 1.0, "2": self.skill["1"], "3": self.skill["2"]}
        for value, count in counts.items():
            gain = 0.004 * count * before[value] ** 2
            self.skill[value] += (0.97 - self.skill[value]) * gain


def trained(least=0.05, steps=150, seed=0):
    """Trains the made-up model; returns the questions by hops of each step, its skills after it, and its metrics."""
    source, learner, rng, rows = curriculum(least=least, seed=seed), Learner(), np.random.default_rng(seed), []
    for number in range(steps):
        questions, row = step(source, number, learner.skill, rng)
        learner.practise(hops(questions))
        rows.append((hops(questions), dict(learner.skill), row))
    return rows


def test_the_curriculum_moves_from_single_facts_to_chains():
    rows = trained()
    most = [max("123", key=lambda value: row[f"weight/{value}"]) for _, _, row in rows]
    first = {value: most.index(value) for value in "123"}
    assert first["1"] < first["2"] < first["3"]
    learnt = next(number for number, (_, skill, _) in enumerate(rows) if skill["1"] > 0.9)
    assert all(row["weight/1"] == pytest.approx(0.05) for _, _, row in rows[learnt + 10 : learnt + 30])
    assert min(rows[-1][1].values()) > 0.8  # a mix that is even at all times leaves chains of three behind:
    even = Learner()
    for _ in range(150):
        even.practise(dict.fromkeys("123", BATCH / 3))
    assert rows[-1][1]["3"] > even.skill["3"]


def test_no_kind_falls_below_its_floor():
    rows = trained(least=0.08)
    assert all(row[f"weight/{value}"] >= 0.08 - 1e-12 for _, _, row in rows for value in "123")
    for start in range(0, 140, 10):  # 10 steps x 16 questions x 0.08 = 12.8, each step rounded down or up
        counts = sum((counts for counts, _, _ in rows[start : start + 10]), Counter())
        assert min(counts[value] for value in "123") >= 10  # a share of 1.28 is at least one question a step


def test_a_forgotten_kind_comes_back():
    source = curriculum(window=3)
    for number in range(10):
        _, row = step(source, number, {"1": 1.0, "2": 0.25, "3": 0.0})
    assert row["weight/1"] == pytest.approx(0.05)
    for number in range(10, 30):
        _, row = step(source, number, {"1": 0.25, "2": 0.25, "3": 0.0})
    assert row["weight/1"] > 0.3


# -- resuming -------------------------------------------------------------------------------------------------------


def test_a_state_goes_on_with_the_same_questions():
    def run(source, numbers):
        rng, rows = np.random.default_rng(1), []
        noise = [rng.random(3) for _ in range(12)]
        for number in numbers:
            drawn = source.draw(number, BATCH)
            drawn += source.more(number, 1, 3, drawn)
            row = source.learn(number, drawn, answered(drawn, dict(zip("123", noise[number], strict=True))))
            rows.append(([question.id for question in drawn], row))
        return rows

    whole = run(curriculum(window=2), range(12))
    assert len({row["weight/1"] for _, row in whole}) > 3
    for cut in range(1, 12):
        first, second = curriculum(window=2), curriculum(window=2)
        run(first, range(cut))
        second.restore(json.loads(json.dumps(first.state())))
        assert run(second, range(cut, 12)) == whole[cut:]


def test_a_state_of_an_earlier_version_has_no_tallies():
    source = curriculum()
    state = source.state()
    del state["tallies"]
    source.restore(state)
    assert source.state()["tallies"] == {}


def bandit_source(steps):
    questions = [replace(q, kind=("easy", "hard")[n % 2]) for n, q in enumerate(BANDIT)]
    return Curriculum(questions, Learnability(by="kind", window=2), 0, 2, steps, 8)


def test_a_resumed_training_has_the_same_bits(tmp_path):
    recipe = {"rollout": {"questions": 2, "attempts": 8}, "checkpoint": {"every": 1}, "validation": {"every": 0}}
    whole = toy_trainer(tmp_path / "whole", toy_recipe(steps=5, **recipe), questions=bandit_source(5)).run()
    weights = [row["curriculum/weight/easy"] for row in whole.rows if "curriculum/weight/easy" in row]
    assert len(set(weights)) > 3, "the weights must move for this test to say anything"
    toy_trainer(tmp_path / "cut", toy_recipe(steps=3, **recipe), questions=bandit_source(5)).run()
    again = toy_trainer(tmp_path / "cut", toy_recipe(steps=5, **recipe), questions=bandit_source(5), resume=True).run()
    assert exact(again.rows) == exact(whole.rows)


# -- mistakes -------------------------------------------------------------------------------------------------------


def kinds(*counts):
    """Returns questions of the kinds bridge, comparison, ...: so many of each."""
    names = ("bridge", "comparison", "chain")
    return [
        Question(f"{name}{n}", "?", ("x",), kind=name)
        for name, count in zip(names, counts, strict=False)
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("mix", "questions", "options", "message"),
    [
        (
            {"bridge": 1, "comparisn": 1},
            kinds(20, 20),
            {},
            r"needs up to 16 questions of kind comparisn a step, there are bridge \(20\), comparison \(20\): change "
            r"its mix, or add questions; did you mean 'comparison'\?",
        ),
        ({}, kinds(20, 1), {}, r"needs up to 16 questions of kind comparison a step, there are .*comparison \(1\): "),
        ({}, kinds(20, 20, 12), {"least": 0.1}, r"needs up to 13 questions of kind chain a step"),
        ({}, kinds(20), {}, "kind has one value, bridge, and needs two: set curriculum.by or mix"),
        ({"bridge": 1, "comparison": 0}, kinds(20, 20), {}, "kind has one value, bridge"),
        ({}, kinds(20, 20, 20), {"least": 0.35}, r"least is 0.35: for 3 values of kind .* must be below 0.333"),
    ],
)
def test_questions_that_do_not_fit_are_refused(mix, questions, options, message):
    with pytest.raises(UsageError, match=message):
        curriculum(mix, questions=questions, by="kind", **options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("learnt: 0", "curriculum.learnt: expected above 0, got 0"),
        ("learnt: -0.5", "curriculum.learnt: expected above 0, got -0.5"),
        ("learnt: 1.5", "curriculum.learnt: expected at most 1, got 1.5"),
        ("least: 0", "curriculum.least: expected above 0, got 0"),
        ("least: 1", "curriculum.least: expected below 1, got 1"),
        ("window: 0", "curriculum.window: expected at least 1, got 0"),
        ("stages: []", "curriculum: stages is empty"),
        ("stages: [{}, {}]", "curriculum: stages has 2 stages: expected one"),
        ("stages: [{mix: {1: 0, 2: 0}}]", r"stages\[0\]: mix is \{1: 0.0, 2: 0.0\}: expected a weight above 0"),
        ("stages: [{mix: {1: -1}}]", r"stages\[0\].mix\[1\]: expected at least 0, got -1"),
        ("leest: 0.1", "curriculum.leest: unknown key; did you mean 'least'"),
    ],
)
def test_options_that_cannot_work_are_refused(values, message):
    with pytest.raises(CardError, match=message):
        load_recipe("tiny-grpo", [f"curriculum={{kind: learnability, {values}}}"])


def test_the_name_alone_is_a_curriculum():
    assert load_recipe("tiny-grpo", ["curriculum=learnability"]).curriculum == Learnability()


def test_a_recipes_curriculum_counts_its_attempts(recipe, tmp_path):
    """The demonstration's questions are of several numbers of hops; learnability depends on the attempts, here 4."""
    values = ["curriculum=learnability", "rollout.questions=1", "rollout.attempts=4"]
    with closing(assemble(load_recipe(str(recipe), values), tmp_path / "run")) as parts:
        (question,) = parts.source.draw(0, 1)
        episodes = [Episode(f"{n}", question.id, "a", "e", stop_reason="answer", scores={"em": 0.0}) for n in range(4)]
        row = parts.source.learn(0, [question], episodes)
        counts = Counter(value_of(question, "hops") for question in parts.task.questions)
    expected = Learnability().weigh(counts, {value_of(question, "hops"): Tally(0.0, 4)}, 4)
    assert {value: row[f"weight/{value}"] for value in counts} == pytest.approx(expected)


# -- warnings -------------------------------------------------------------------------------------------------------


def row(**rates):
    """Returns metrics of a step; None is a value that is not measured."""
    rated = {f"curriculum/pass_rate/{value}": rate for value, rate in rates.items() if rate is not None}
    return rated | {f"curriculum/weight/{value}": 0.5 for value in rates}


def warnings(rows, **options):
    """Returns the numbers of the steps that warn, with their warnings."""
    schedule = Learnability(window=2, **options)
    texts = {number: schedule.warning(rows[:number]) for number in range(1, len(rows) + 1)}
    return {number: text for number, text in texts.items() if text}


def test_what_is_learnt_is_told_once():
    rows = [{}, row(a=0.9, b=0.9), row(a=0.9, b=0.7), row(a=0.9, b=None), row(a=0.9, b=0.8), row(a=1.0, b=1.0)]
    told = warnings([*rows, row(a=0.5, b=0.5), row(a=1.0, b=1.0)])
    assert list(told) == [5]  # not in the first step, which is under the window, and not without a rate
    assert "every value of hops is learnt (a: 90%, b: 80% right)" in told[5] and "add harder questions" in told[5]


def test_what_does_not_move_is_told_once():
    rows = [{}, row(a=0.0, b=0.0), row(a=0.0, b=0.1), row(a=0.0, b=0.0), row(a=0.0, b=0.0)]
    told = warnings(rows)
    assert list(told) == [4]
    assert "hops a, b: no right answer in the last 2 steps" in told[4] and "searchgym demonstrate" in told[4]
    beside = warnings([{}, row(a=0.5, b=0.0), row(a=0.5, b=0.0), row(a=0.85, b=0.0)])
    assert list(beside) == [4] and "hops b: no right answer" in beside[4]  # the other kind is learnt


def test_a_training_that_does_not_move_says_so(tmp_path, capsys):
    """No arm is ever right: the curriculum and the loop say so, each once."""
    questions = [replace(q, kind=("easy", "hard")[n % 2], answers=("none",)) for n, q in enumerate(BANDIT)]
    source = Curriculum(questions, Learnability(by="kind", window=2), 0, 2, 8, 8)
    recipe = toy_recipe(
        steps=8,
        rollout={"questions": 2},
        validation={"every": 0},
        curriculum={"kind": "learnability", "by": "kind", "window": 2},
    )
    toy_trainer(tmp_path / "run", recipe, questions=source).run()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 2
    assert lines[0].startswith("warning: curriculum: kind easy, hard: no right answer in the last 2 steps")
    assert lines[1].startswith("warning: no group had signal in 5 steps")

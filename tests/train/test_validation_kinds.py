"""The validation by kind of question: against counts by hand, and in what a training writes."""

from dataclasses import replace

import pytest
from toy_training import QUESTIONS, toy_recipe, toy_trainer

from searchgym.corpora.files import iter_jsonl
from searchgym.records import Episode, Hit, Passage, Question, Searched
from searchgym.train.loop.rollout import MAX_KINDS, rollout_metrics, validation_metrics

HIT = Searched(1, "x", (Hit(Passage("p", "T", "t"), 1.0),))


def question(id, kind=None, hops=None):
    return Question(id, "?", ("x",), kind=kind, metadata={} if hops is None else {"hops": hops})


def episode(id, em, searches):
    return Episode(id, id, "a", "e", searches=[HIT] * searches, scores={} if em is None else {"em": em})


EPISODES = [episode("a", 1.0, 1), episode("b", 0.0, 3), episode("c", 1.0, 2), episode("d", None, 4)]


def by_kind(questions, *by):
    """Returns the metrics by kind alone."""
    metrics = validation_metrics(EPISODES, questions, *by)
    assert rollout_metrics(EPISODES).items() <= metrics.items()
    return {name: value for name, value in metrics.items() if "/" in name}


def test_scores_by_kind_by_hand():
    chains = [question("a", "chain"), question("b", "chain"), question("c", "fact"), question("d", "open")]
    assert by_kind(chains) == {
        "em/chain": 0.5, "searches/chain": 2.0, "em/fact": 1.0, "searches/fact": 2.0, "searches/open": 4.0
    }  # fmt: skip
    assert list(by_kind(chains)) == ["em/chain", "searches/chain", "em/fact", "searches/fact", "searches/open"]


def test_the_property_that_divides_the_questions():
    same = [question(id, "chain", hops) for id, hops in zip("abcd", (1, 2, 2, 2), strict=True)]
    assert by_kind(same) == {"em/1": 1.0, "searches/1": 1.0, "em/2": 0.5, "searches/2": 3.0}
    both = [replace(same[0], kind="fact"), *same[1:]]
    assert by_kind(both).keys() == {"em/fact", "searches/fact", "em/chain", "searches/chain"}
    assert by_kind(both, ["hops"]).keys() == {"em/1", "searches/1", "em/2", "searches/2"}
    assert by_kind([question(id) for id in "abcd"]) == by_kind(both, ["masks"]) == {}


def test_of_many_kinds_the_most_frequent_are_reported():
    questions = [question(f"q{n}", f"kind-{min(n, MAX_KINDS + 3):02}") for n in range(MAX_KINDS + 6)]
    episodes = [episode(question.id, 1.0, 1) for question in questions]
    metrics = validation_metrics(episodes, questions)
    names = [name.removeprefix("em/") for name in metrics if name.startswith("em/")]
    frequent, rest = f"kind-{MAX_KINDS + 3:02}", [f"kind-{n:02}" for n in range(MAX_KINDS - 1)]
    assert names == [frequent, *rest]


@pytest.mark.parametrize(
    ("by", "kinds"),
    [
        (None, {"even", "odd"}),
        ("hops", {"1", "2"}),
    ],
)
def test_a_training_writes_scores_by_kind(by, kinds, tmp_path):
    """By the curriculum's property if there is a curriculum; the mean over kinds is that over questions."""
    mixed = [replace(q, kind=("even", "odd")[n % 2], metadata={"hops": 1 + (n == 3)}) for n, q in enumerate(QUESTIONS)]
    curriculum = {} if by is None else {"curriculum": {"kind": "steps", "by": by, "stages": [{}]}}
    recipe = toy_recipe(steps=2, log={"tensorboard": True}, **curriculum)
    toy_trainer(tmp_path / "run", recipe, validation=mixed).run()
    rows = [row for _, row in iter_jsonl(tmp_path / "run/metrics.jsonl") if "validation/em" in row]
    assert len(rows) == 2
    for row in rows:
        assert {name for name in row if name.startswith("validation/em/")} == {f"validation/em/{k}" for k in kinds}
        weights = {"1": 3, "2": 1, "even": 2, "odd": 2}
        assert sum(weights[kind] * row[f"validation/em/{kind}"] for kind in kinds) == 4 * row["validation/em"]
    (events,) = (tmp_path / "run/tensorboard").iterdir()
    assert all(f"validation/searches/{kind}".encode() in events.read_bytes() for kind in kinds)

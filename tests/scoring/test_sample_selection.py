"""Selection among samples: by hand, never better than the best of all, and the same as EM with one sample."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.scoring.selection import Sampled, selected, shortest, vote


def samples(*answers, confidences=(), tokens=()):
    return [
        Sampled(answer, (tokens or [9] * len(answers))[n], (confidences or [None] * len(answers))[n])
        for n, answer in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (("Ulm",), 0),
        (("Bonn", "Ulm", "the ULM."), 1),  # compared as EM compares
        (("Bonn", "Ulm"), 0),  # equal votes: the first
        (("", "I do not know", "unknown", "Ulm"), 3),  # abstentions do not vote
        (("", "unknown"), 0),
    ],
)
def test_votes_by_hand(answers, expected):
    assert vote(samples(*answers)) == expected


def test_a_vote_by_confidence_and_the_most_confident():
    three = samples("Bonn", "Bonn", "Ulm", confidences=[0.2, 0.3, 0.9])
    assert vote(three) == 0 and vote(three, weighted=True) == 2
    assert selected(three) == {"vote": 0, "shortest": 0, "confident": 2, "weighted_vote": 2}
    assert selected(samples("Bonn", "Ulm", confidences=[0.2, None])) == {"vote": 0, "shortest": 0}


def test_the_shortest_has_an_answer():
    assert shortest(samples("", "Ulm", "Bonn", tokens=[1, 7, 5])) == 2
    assert shortest(samples("", "", tokens=[3, 1])) == 0


@given(st.lists(st.sampled_from(["", "Ulm", "ulm", "Bonn", "unknown"]), min_size=1, max_size=8))
def test_what_is_selected_is_one_of_the_samples_and_the_first_of_its_kind(answers):
    for index in selected(samples(*answers)).values():
        assert 0 <= index < len(answers)
    chosen = answers[vote(samples(*answers))]
    counts = {text: sum(a.casefold() == text for a in answers) for text in ("ulm", "bonn")}
    if max(counts.values()):
        assert counts[chosen.casefold()] == max(counts.values())

"""Controls: rewards that are exchanged within their group, and rewards for form alone."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from credit_terms import terms_of

from searchgym.cli.pipeline.controls import Permuted
from searchgym.records import Answer, Call, Context, Episode, Span
from searchgym.train.credit.credit import Credit


def attempt(number, reward, group="g"):
    """An episode of two calls in one context: its outcome is on the second."""
    spans = [Span("prompt", np.array([1, 2], np.int32))]
    spans += [Span("model", np.array([3, 4], np.int32), np.zeros(2, np.float32)) for _ in range(2)]
    calls = [Call(0, 2, 4, turn=1, role="searcher", model_key="policy"),
             Call(0, 4, 6, turn=2, role="searcher", model_key="policy")]  # fmt: skip
    return Episode(
        f"q#{number}", "q", "a", "env", contexts=[Context(None, 0, spans)], calls=calls, reward=reward, group_uid=group
    )


def test_a_group_keeps_its_rewards_and_chance_says_whose_they_are():
    rewards = [0.0, 0.25, 0.5, 1.0]
    seen = Counter()
    credit = Credit(terms_of("searchgym.cli.pipeline.controls:Permuted"))
    for draw in range(400):
        group = [attempt(number, reward, f"g{draw}") for number, reward in enumerate(rewards)]
        rows = credit.allocate(group)
        assert all(row[0] == 0.0 for row in rows)
        assert sorted(row[1] for row in rows) == rewards
        assert rows == Permuted().rewards(group, None)  # the same draw for the same group
        seen.update((number, row[1]) for number, row in enumerate(rows))
    # every attempt gets every reward a quarter of the time, its own too
    assert len(seen) == 16 and all(70 < count < 130 for count in seen.values())


@pytest.mark.parametrize(
    ("text", "illegal", "stop_reason", "expected"),
    [
        ("Paris", None, "answer", 1.0),
        ("wrong but short", None, "answer", 1.0),
        ("one two three four five six", None, "answer", 1.0),
        ("one two three four five six seven", None, "answer", 0.0),
        ("", None, "answer", 0.0),
        ("Paris", 0, "answer", 0.0),
        ("Paris", None, "turns", 0.0),
    ],
)
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_form_alone_pays_legal_short_answers_whatever_they_say(text, illegal, stop_reason, expected, reward):
    episode = attempt(0, reward)
    episode.answer, episode.stop_reason = Answer(text), stop_reason
    if illegal is not None:
        episode.calls[illegal] = dataclasses.replace(episode.calls[illegal], legal=False)
    assert Credit(terms_of("searchgym.cli.pipeline.controls:FormOnly")).allocate([episode]) == [[0.0, expected]]

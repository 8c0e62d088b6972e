import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.errors import DataError
from searchgym.records import Call, Context, Episode, Searched, Span
from searchgym.train.algorithms.samples import is_overlong, retokenisation_mismatches, samples_from, with_all_targets


def span(kind, *ids, logp=True):
    values = np.array([-i / 8 for i in ids], np.float32) if kind == "model" and logp else None
    return Span(kind, np.array(ids, np.int32), values)


def call(context, start, end, turn=1, **changes):
    return Call(context, start, end, **({"role": "searcher", "model_key": "policy", "turn": turn} | changes))


def episode(contexts, calls, **changes):
    return Episode(
        **(
            {"id": "q#0@3", "question_id": "q", "agent": "a", "env": "e", "group_uid": "g", "reward": 0.5}
            | {"contexts": contexts, "calls": calls}
            | changes
        )
    )


def chain():
    spans = [span("prompt", 1, 2), span("model", 3, 4, 5), span("observation", 6, 7), span("model", 8, 9)]
    calls = [call(0, 2, 5, 1, policy_version=4), call(0, 7, 9, 2, policy_version=5)]
    return episode([Context(None, 0, spans)], calls)


def test_a_chain_becomes_one_sequence_with_every_model_token_in_the_mask():
    (sample,) = samples_from(chain())
    assert sample.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert sample.mask.tolist() == [False, False, True, True, True, False, False, True, True]
    assert sample.reward.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0.5]
    assert sample.sampler_logp.tolist() == [0, 0, -3 / 8, -4 / 8, -5 / 8, 0, 0, -1, -9 / 8]
    assert not sample.advantage.any()
    dtypes = [a.dtype for a in (sample.ids, sample.mask, sample.reward, sample.advantage, sample.sampler_logp)]
    assert dtypes == [np.int32, np.bool_, np.float32, np.float32, np.float32]
    assert [(c.start, c.end, c.role, c.turn) for c in sample.calls] == [(2, 5, "searcher", 1), (7, 9, "searcher", 2)]
    assert sample.call_ids == ("q#0@3/0", "q#0@3/1")
    assert (sample.model_key, sample.group_uid, sample.question_id, sample.attempt) == ("policy", "g", "q", 0)
    assert (sample.policy_version, sample.weight, sample.kind) == (4, 1.0, "policy")


@pytest.mark.parametrize(
    ("stop_reason", "cut", "overlong"),
    [
        ("answer", (False, False), False),
        ("context", (False, False), True),
        ("turns", (False, False), False),
        ("turns", (True, False), False),  # it went on after the cut
        ("turns", (False, True), True),
        ("answer", (False, True), False),  # what was cut off came after the answer
    ],
)
def test_an_episode_is_overlong_if_a_limit_ended_it(stop_reason, cut, overlong):
    own = chain()
    own.stop_reason = stop_reason
    own.calls = [dataclasses.replace(call, cut=short) for call, short in zip(own.calls, cut, strict=True)]
    assert is_overlong(own) == overlong
    own.searches = [Searched(1, "a", ()), Searched(2, "b", ())]
    (sample,) = samples_from(own)
    assert (sample.overlong, sample.searches) == (overlong, 2)
    assert not is_overlong(episode([], []))


def test_a_team_becomes_one_sequence_per_context():
    contexts = [Context(None, 0, [span("prompt", 1), span("model", 2 + i)]) for i in range(3)]
    calls = [call(i, 1, 2, role=f"role{i}", model_key=f"m{i}") for i in range(3)]
    samples = samples_from(episode(contexts, calls))
    assert [s.model_key for s in samples] == ["m0", "m1", "m2"]
    assert [s.ids.tolist() for s in samples] == [[1, 2], [1, 3], [1, 4]]
    assert [float(s.reward.sum()) for s in samples] == [0.5, 0.5, 0.5]


def test_a_fork_off_a_chain_trains_its_own_call_only():
    trunk = Context(None, 0, [span("prompt", 1), span("model", 2), span("observation", 3), span("model", 4)])
    prefix_answer = Context(0, 3, [span("model", 9)])
    calls = [call(0, 1, 2, 1), call(1, 3, 4, 1), call(0, 3, 4, 2)]
    main, fork = samples_from(episode([trunk, prefix_answer], calls))
    assert main.ids.tolist() == [1, 2, 3, 4]
    assert main.mask.tolist() == [False, True, False, True]
    assert fork.ids.tolist() == [1, 2, 3, 9]
    assert fork.mask.tolist() == [False, False, False, True]
    assert fork.call_ids == ("q#0@3/1",)


def test_a_trunk_that_two_leaves_share_is_trained_once():
    trunk = Context(None, 0, [span("prompt", 1), span("model", 2), span("observation", 3)])
    leaves = [Context(0, 3, [span("model", 8)]), Context(0, 3, [span("model", 9)])]
    calls = [call(0, 1, 2), call(1, 3, 4), call(2, 3, 4)]
    first, second = samples_from(episode([trunk, *leaves], calls))
    assert first.mask.tolist() == [False, True, False, True]
    assert second.mask.tolist() == [False, False, False, True]


def test_a_fork_inside_a_call_leaves_the_cut_call_to_its_own_context():
    trunk = Context(None, 0, [span("prompt", 1), span("model", 2, 3, 4)])
    calls = [call(0, 1, 4), call(1, 3, 4)]
    whole, cut = samples_from(episode([trunk, Context(0, 3, [span("model", 9)])], calls))
    assert whole.mask.tolist() == [False, True, True, True]
    assert cut.ids.tolist() == [1, 2, 3, 9]
    assert cut.mask.tolist() == [False, False, False, True]


@st.composite
def trees(draw):
    """Random token trees whose calls are their model spans."""
    contexts, calls, lengths = [], [], []
    for index in range(draw(st.integers(1, 5))):
        parent = draw(st.sampled_from([None, *range(index)])) if index else None
        fork = 0 if parent is None else draw(st.integers(1, lengths[parent]))
        spans = [span("prompt", *[7] * draw(st.integers(1, 3)))]
        for _ in range(draw(st.integers(0, 3))):
            spans += [span("model", *[5] * draw(st.integers(1, 4))), span("observation", 6)]
        place = fork
        for part in spans:
            if part.kind == "model":
                calls.append(call(index, place, place + len(part.ids)))
            place += len(part.ids)
        contexts.append(Context(parent, fork, spans))
        lengths.append(place)
    return episode(contexts, calls)


@given(trees())
def test_every_call_is_trained_on_exactly_once_and_nothing_else_is(tree):
    samples = samples_from(tree)
    assert sorted(c.index for s in samples for c in s.calls) == list(range(len(tree.calls)))
    for sample in samples:
        expected = np.zeros(len(sample.ids), bool)
        for own in sample.calls:
            expected[own.start : own.end] = True
        assert (sample.mask == expected).all()
        assert sample.mask[sample.mask].size == sum(own.end - own.start for own in sample.calls)
    assert retokenisation_mismatches(samples, tree) == 0


def test_an_episode_without_a_model_token_gives_no_sample():
    assert samples_from(episode([Context(None, 0, [span("prompt", 1, 2)])], [])) == []
    assert samples_from(episode([], [])) == []


def test_a_planted_change_of_a_token_or_of_the_mask_is_counted():
    own = chain()
    (sample,) = samples_from(own)
    assert retokenisation_mismatches([sample], own) == 0
    ids, mask = sample.ids.copy(), sample.mask.copy()
    ids[3], mask[8] = 99, False
    assert retokenisation_mismatches([dataclasses.replace(sample, ids=ids)], own) == 1
    assert retokenisation_mismatches([dataclasses.replace(sample, mask=mask)], own) == 1
    assert retokenisation_mismatches([dataclasses.replace(sample, ids=ids, mask=mask)], own) == 2
    assert retokenisation_mismatches([dataclasses.replace(sample, mask=~sample.mask)], own) == 2
    assert retokenisation_mismatches([dataclasses.replace(sample, mask=np.roll(sample.mask, 1))], own) == 2


def test_demonstrations_need_no_log_probs():
    own = episode([Context(None, 0, [span("prompt", 1), span("model", 2, 3, logp=False)])], [call(0, 1, 3)])
    with pytest.raises(DataError, match=r"episode q#0@3, context 0: log-probs of a model span are missing"):
        samples_from(own)
    (sample,) = samples_from(own, "demonstration")
    assert sample.kind == "demonstration"
    assert with_all_targets(sample).mask.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("contexts", "calls", "message"),
    [
        ([Context(None, 0, [span("model", 2)])], [call(0, 0, 1)], "begins with a model's token"),
        (
            [Context(None, 0, [span("prompt", 1), span("model", 2), span("observation", 3)])],
            [call(0, 1, 3)],
            "call 0 has tokens 1:3, which are not all the model's",
        ),
        ([Context(None, 0, [span("prompt", 1), span("model", 2)])], [call(0, 1, 3)], "call 0 ends at token 3 of 2"),
        ([Context(None, 0, [span("prompt", 1, 1), span("model", 2)])], [call(0, 1, 3)], "not all the model's"),
        (
            [Context(None, 0, [span("prompt", 1), span("model", 2), span("model", 3)])],
            [call(0, 1, 2), call(0, 2, 3, model_key="other")],
            r"several model keys \(other, policy\)",
        ),
    ],
)
def test_calls_that_do_not_fit_the_spans_are_refused(contexts, calls, message):
    with pytest.raises(DataError, match=message):
        samples_from(episode(contexts, calls))


def test_three_contexts_of_one_tree_share_a_call_that_the_first_trains_on():
    trunk = Context(
        None, 0, [span("prompt", *range(2)), span("model", 1, 2), span("observation", 3, 3), span("model", 4)]
    )
    forks = [Context(0, 4, [span("model", 5, 6)]), Context(0, 6, [span("observation", 7), span("model", 8)])]
    calls = [call(0, 2, 4), call(0, 6, 7), call(1, 4, 6), call(2, 7, 8)]
    samples = samples_from(episode([trunk, *forks], calls))
    assert [[c.index for c in sample.calls] for sample in samples] == [[0, 1], [2], [3]]
    assert [np.flatnonzero(sample.mask).tolist() for sample in samples] == [[2, 3, 6], [4, 5], [7]]
    alone = samples_from(episode([trunk, *forks], [calls[0], *calls[2:]]))
    assert [[c.index for c in sample.calls] for sample in alone] == [[0, 1], [2]]  # context 0 makes no sequence

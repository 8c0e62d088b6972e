"""Credit: each term by hand, where its numbers land, and what a wrong term is told."""

import dataclasses
import itertools

import numpy as np
import pytest
from credit_terms import read_terms, terms_of
from hypothesis import given
from hypothesis import strategies as st

from searchgym.agents.roles import Role
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import CardError, DataError, RewardError
from searchgym.records import Call, Context, Episode, Searched, Span
from searchgym.train.algorithms.samples import outcome_rewards, samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext, Term


def team(calls, **fields):
    """Returns an episode whose calls are contexts of their own: two prompt tokens, three of the model."""
    contexts, made = [], []
    for number, call in enumerate(calls):
        logp = np.full(3, -1, np.float32)
        contexts.append(
            Context(
                None,
                0,
                [Span("prompt", np.array([1, 2], np.int32)), Span("model", np.array([3, 4, 5], np.int32), logp)],
            )
        )
        made.append(Call(number, 2, 5, turn=1, model_key="policy", **call))
    return Episode("q#0", "q", "team", "env", contexts=contexts, calls=made, group_uid="g", **fields)


def numbers(text):
    """A score for tests: the answer is a number."""
    return float(text or 0)


def credit(*names, penalties=None, **options):
    context = CreditContext(penalties or {}, lambda episode, text: numbers(text))
    return Credit(terms_of(*names, **options), context)


MASK = [
    {"role": "planning", "answer": "0.2"},
    {"role": "search"}, {"role": "summary"}, {"role": "update"}, {"role": "answer", "answer": "0.5"},
    {"role": "search"}, {"role": "summary"}, {"role": "update"}, {"role": "answer", "answer": "0.4"},
    {"role": "search"},
]  # fmt: skip


def test_differences_by_hand():
    """M-ASK's table: plan and answers absolute, the calls between two answers their difference, the end 0."""
    (row,) = credit("difference").allocate([team(MASK)])
    assert row == pytest.approx([0.2, 0.3, 0.3, 0.3, 0.5, -0.1, -0.1, -0.1, 0.4, 0.0])
    first = [MASK[0], {"role": "answer", "answer": "0.3"}, *MASK[1:]]  # UnityMAS-O: s_0 is the first answer's
    (row,) = credit("difference").allocate([team(first)])
    assert row[:3] == pytest.approx([0.2, 0.3, 0.2])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_differences_telescope(scores):
    calls = [{"role": "planning", "answer": str(scores[0])}]
    for score in scores[1:]:
        calls += [{"role": "search"}, {"role": "answer", "answer": str(score)}]
    (row,) = credit("difference").allocate([team(calls)])
    gained = sum(r for call, r in zip(calls, row, strict=True) if call["role"] == "search")
    assert gained == pytest.approx(scores[-1] - scores[0], abs=1e-9)


def test_gains_by_hand():
    (row,) = credit("gain").allocate([team(MASK)])
    assert row == pytest.approx([0.2, 0, 0, 0, 0.3, 0, 0, 0, -0.1, 0])
    trial = [MASK[0], {"role": "prefix", "prefix": True, "answer": "0.9"}, *MASK[1:]]
    (row,) = credit("gain").allocate([team(trial)])
    assert row[:6] == pytest.approx([0.2, 0, 0, 0, 0, 0.3])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_gains_sum_to_the_last_score(scores):
    calls = [call for score in scores for call in ({"role": "search"}, {"role": "answer", "answer": str(score)})]
    (row,) = credit("gain").allocate([team(calls)])
    assert sum(row) == pytest.approx(scores[-1], abs=1e-9)


def test_gains_need_calls_that_propose_answers():
    with pytest.raises(DataError, match="no call proposes an answer"):
        credit("gain").allocate([team([{"role": "a"}], stop_reason="answer")])
    assert credit("gain").allocate([team([{"role": "a"}], stop_reason="context")]) == [[0.0]]


def test_weights_and_roles():
    """UnityMAS-O mixes terms by weights; M-ASK's plan credited with the final score is a mixture by roles."""
    terms = {"outcome": 0.5, "difference": 0.5}
    (row,) = credit(**terms).allocate([team(MASK, reward=0.4)])
    assert row == pytest.approx([0.3, 0.35, 0.35, 0.35, 0.45, 0.15, 0.15, 0.15, 0.4, 0.2])
    rest = ["search", "summary", "update", "answer"]
    terms = {"outcome": {"roles": ["planning"]}, "difference": {"roles": rest}}
    (row,) = credit(**terms).allocate([team(MASK, reward=0.4)])
    assert row == pytest.approx([0.4, 0.3, 0.3, 0.3, 0.5, -0.1, -0.1, -0.1, 0.4, 0.0])
    named = credit("difference").parts([team(MASK)])["difference"]
    assert credit(difference=1.0).parts([team(MASK)])["difference"] == named


def test_an_outcome_may_be_split_among_the_calls_that_get_it():
    """UnityMAS-O's ``outcome_share_mode``: full, or divided by the number of the calls that share it."""
    (row,) = credit(outcome={"split": True}).allocate([team(MASK, reward=0.4)])
    assert row == pytest.approx([0.04] * 10)
    some = {"split": True, "roles": ["search", "answer"], "weight": 2.0}
    (row,) = credit(outcome=some).allocate([team(MASK, reward=0.4)])
    assert row == pytest.approx([0.16 if call["role"] in ("search", "answer") else 0.0 for call in MASK])
    assert credit(outcome={"split": True}).allocate([team(MASK)]) == [[0.0] * 10]


@pytest.mark.parametrize(("limit", "cache", "reward"), [(10, 4, 0.0), (7, 4, 0.0), (6, 4, -0.25), (4, 4, -0.75)])
def test_an_overlong_response_is_charged_little_by_little(limit, cache, reward):
    """DAPO, equation 13: each call of a team is a sequence of three tokens."""
    (row,) = credit(overlong={"limit": limit, "cache": cache}).allocate([team([{"role": "a"}, {"role": "b"}])])
    assert row == pytest.approx([reward, reward])


def test_an_overlong_response_is_never_charged_more_than_one():
    (row,) = credit(overlong={"limit": 2, "cache": 1}).allocate([team([{"role": "a"}])])
    assert row == [-1.0]


def test_penalties_for_a_calls_own_form_are_kept_apart():
    calls = [{"role": "a", "legal": False}, {"role": "b", "answer": "0.7"}]
    made = credit("gain", "format", overlong={"limit": 4, "cache": 2}, penalties={"a": -1.0})
    (given,) = made.rewards([team(calls)])
    assert given.total == pytest.approx([-1.5, 0.7 - 0.5])
    assert given.local_rewards == pytest.approx([-1.5, -0.5])
    first, second = samples_from(team(calls), rewards=given.total, local_rewards=given.local_rewards)
    assert first.local_reward.tolist() == [0, 0, 0, 0, -1.5]
    assert second.local_reward.tolist() == [0, 0, 0, 0, -0.5]


def test_calls_before_any_answer_share_its_score():
    (row,) = credit("difference").allocate([team([{"role": "a"}, {"role": "b"}, {"role": "c", "answer": "0.7"}])])
    assert row == pytest.approx([0.7, 0.7, 0.7])


def chain(scores, answer_reward, invalid=()):
    """Returns a monolithic episode with a prefix answer before each search turn and after the last one."""
    contexts = [Context(None, 0, [Span("prompt", np.array([1, 2], np.int32))])]
    calls, place = [], 2

    def act(**fields):
        nonlocal place
        contexts[0].spans.append(Span("model", np.array([7, 8], np.int32), np.full(2, -1, np.float32)))
        calls.append(Call(0, place, place + 2, "searcher", "policy", 1, **fields))
        place += 2

    def observe():
        nonlocal place
        contexts[0].spans.append(Span("observation", np.array([9], np.int32)))
        place += 1

    for number, score in enumerate(scores):
        if number:
            if number in invalid:
                act(legal=False)
                observe()
            act()
            observe()
        for one in score if isinstance(score, list) else [score]:
            fork = [
                Span("observation", np.array([6], np.int32)),
                Span("model", np.array([5], np.int32), np.full(1, -1, np.float32)),
            ]
            contexts.append(Context(0, place, fork))
            calls.append(
                Call(len(contexts) - 1, place + 1, place + 2, "prefix", "policy", 1, answer=str(one), prefix=True)
            )
    act(answer="x")
    return Episode("q#0", "q", "praise", "env", contexts=contexts, calls=calls, reward=answer_reward, group_uid="g")


def test_praise_by_hand():
    episode = chain([0.0, 0.4, 1.0], 1.0, invalid=[2])
    assert [call.role for call in episode.calls] == [
        "prefix",
        "searcher",
        "prefix",
        "searcher",
        "searcher",
        "prefix",
        "searcher",
    ]
    (row,) = credit(praise={"alpha": 0.5}).allocate([episode])
    assert row == pytest.approx([0.0, 0.2, 0.4, 0.0, 0.3, 1.0, 0.0])
    (row,) = credit("outcome", praise={"alpha": 0.5}).allocate([episode])
    assert row == pytest.approx([0.0, 0.2, 0.4, 0.0, 0.3, 1.0, 1.0])


def test_the_progress_under_a_prover_by_hand():
    """Of four trial answers none, one, two and four are right: best of 2 is 0, 1/2, 5/6 and 1; their mean is c / 4."""
    episode = chain([[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], 1.0)
    for prover, values in ((1, [0, 1 / 4, 1 / 2, 1]), (2, [0, 1 / 2, 5 / 6, 1]), (4, [0, 1, 1, 1])):
        (row,) = credit(praise={"alpha": 1.0, "prover": prover}).allocate([episode])
        process = [value for call, value in zip(episode.calls, row, strict=True) if not call.prefix]
        assert process == pytest.approx([*np.diff(values), 0.0])
        assert [row[i] for i, call in enumerate(episode.calls) if call.prefix] == [
            0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1, 1,
        ]  # fmt: skip
    with pytest.raises(DataError, match=r"has 4 prefix answers at a time, praise\.prover needs 5: use agent pav"):
        credit(praise={"prover": 5}).allocate([episode])


def test_the_best_of_k_is_estimated_without_bias():
    """Over all outcomes of four trials that are right with probability p, the mean is 1 - (1 - p) ** 2."""
    p, expected = 0.3, 0.0
    for trials in itertools.product((0, 1), repeat=4):
        (row,) = credit(praise={"alpha": 1.0, "prover": 2}).allocate([chain([[0] * 4, list(trials)], 1.0)])
        expected += p ** sum(trials) * (1 - p) ** (4 - sum(trials)) * row[4]
    assert expected == pytest.approx(1 - (1 - p) ** 2)


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.01, 2))
def test_process_rewards_sum_to_what_the_prefixes_gained(scores, alpha):
    episode = chain(scores, 1.0)
    (row,) = credit(praise={"alpha": alpha}).allocate([episode])
    process = sum(r for call, r in zip(episode.calls, row, strict=True) if not call.prefix)
    assert process == pytest.approx(alpha * (scores[-1] - scores[0]), abs=1e-9)


def test_prefixes_become_samples_of_their_own_and_leave_the_episode_alone():
    episode = chain([0.0, 0.4, 1.0], 0.5)
    (row,) = credit("outcome", "praise").allocate([episode])
    samples = samples_from(episode, rewards=row)
    main, *forks = samples
    assert [call.role for call in main.calls] == ["searcher"] * 3
    assert main.reward[main.mask].sum() == pytest.approx(0.5 * (0.4 + 0.6) + 0.5)
    assert [fork.reward.sum() for fork in forks] == pytest.approx([0.0, 0.4, 1.0])
    assert [int(fork.mask.sum()) for fork in forks] == [1, 1, 1]
    assert outcome_rewards(episode) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.5]
    plain = samples_from(dataclasses.replace(episode, contexts=episode.contexts[:1], calls=without_prefixes(episode)))
    assert np.array_equal(plain[0].ids, main.ids) and np.array_equal(plain[0].mask, main.mask)


def without_prefixes(episode):
    return [call for call in episode.calls if not call.prefix]


def test_praise_needs_prefix_answers():
    with pytest.raises(DataError, match="agent praise"):
        credit("praise").allocate([team(MASK)])


def test_each_reward_lands_on_its_own_last_token():
    calls = [{"role": "a", "legal": False}, {"role": "b"}, {"role": "c", "answer": "0.7"}]
    episode = team(calls, reward=0.25, turns=3, searches=[Searched(1, "x", ())] * 2)
    costs = {"turn": 0.3, "search": 0.6}
    made = credit("outcome", "difference", "format", costs=costs, penalties={"a": -1.0})
    (row,) = made.allocate([episode])
    cost = -0.3 * 2 / 3 - 0.6 * 2 / 3
    assert row == pytest.approx([0.25 + 0.7 - 1 + cost, 0.25 + 0.7 + cost, 0.25 + 0.7 + cost])
    for sample, reward in zip(samples_from(episode, rewards=row), row, strict=True):
        assert sample.reward.tolist() == pytest.approx([0, 0, 0, 0, reward])


@pytest.mark.parametrize(
    ("rounds", "searches", "cost"),
    [(1, 0, 0.0), (1, 1, 0.2), (2, 1, 0.1 + 0.2), (4, 3, 0.3 + 0.6), (8, 9, 0.3 + 0.6)],
)
def test_costs_are_jades(rounds, searches, cost):
    """alpha min(turns - 1, 3) / 3 + beta min(retrievals, 3) / 3, alpha 0.3, beta 0.6."""
    episode = team([{"role": "a"}], notes={"rounds": float(rounds)}, searches=[Searched(1, "x", ())] * searches)
    (row,) = credit(costs={"turn": 0.3, "search": 0.6}).allocate([episode])
    assert row == pytest.approx([-cost])


def test_the_score_is_the_environments_reward():
    task = load_task(find_env("searchgym/Demo-v0"), reward="f1")
    question = task.questions[0]
    roles = {"planning": Role("planning", "", 1, penalty=-1.0)}
    made = Credit.of(terms_of("difference", "format"), roles, lambda: task)
    half = f"{question.answers[0]} zzz"
    calls = [{"role": "planning", "answer": question.answers[0], "legal": False}, {"role": "answer", "answer": half}]
    (row,) = made.allocate([dataclasses.replace(team(calls), question_id=question.id)])
    words = len(question.answers[0].split())
    assert row == pytest.approx([1.0 - 1.0, 2 * words / (2 * words + 1)])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mine(Term):
    """A user's term with an option."""

    alpha: float = 0.5

    def rewards(self, group, context):
        return [[self.alpha * len(group)] * len(episode.calls) for episode in group]


def returning(function, **options):
    """Returns a term whose rewards are what a function makes of the group."""
    made = dataclasses.make_dataclass("Returning", [], bases=(Term,), frozen=True, kw_only=True)
    made.rewards = lambda self, group, context: function(group)
    return made(**options)


def test_a_users_own_term_is_told_what_is_wrong_with_it():
    group = [team(MASK), team(MASK)]
    rows = credit(**{"test_credit:Mine": {"alpha": 0.25}}).allocate(group)
    assert rows == [[0.5] * 10] * 2
    for wrong, said in [
        (lambda group: [[0.0]], "credit wrong returned 1 rows for 2 episodes"),
        (lambda group: [[0.0]] * 2, "credit wrong returned .* for episode q#0: expected 10 finite numbers"),
        (lambda group: [[float("nan")] * 10] * 2, "10 finite numbers"),
        (lambda group: [["1"] * 10] * 2, "10 finite numbers"),
        (lambda group: ["0123456789"] * 2, "10 finite numbers"),
        (lambda group: [[True] * 10] * 2, "10 finite numbers"),
        (lambda group: [[None] * 10] * 2, "10 finite numbers"),
        (lambda group: [None] * 2, "10 finite numbers"),
        (lambda group: [0.5] * 2, "10 finite numbers"),
        (lambda group: [[1e308] * 10] * 2, "10 finite numbers"),
        (lambda group: None, "credit wrong returned None for 2 episodes: expected a list of rows"),
        (lambda group: 1.0, "credit wrong returned 1.0 for 2 episodes: expected a list of rows"),
        (lambda group: "ab", "10 finite numbers"),
    ]:
        with pytest.raises(RewardError, match=said):
            Credit({"wrong": returning(wrong)}).allocate(group)
    with pytest.raises(CardError, match="did you mean 'difference'"):
        read_terms({"diference": 1})


def test_rows_of_numpy_are_numbers_like_others():
    made = returning(lambda group: np.full((len(group), 10), 0.5, np.float32))
    (row,) = Credit({"own": made}).allocate([team(MASK)])
    assert row == [0.5] * 10 and all(type(value) is float for value in row)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"one": 1.0, "other": 1.0}, r"credit one, other: call 0 of episode q#0 gets 6e\+38: expected a finite number"),
        ({"one": 2.0, "other": 0.0}, r"credit one: call 0 of episode q#0 gets 6e\+38"),
        ({"one": 1e300, "other": 1.0}, "credit one: call 0 of episode q#0 gets inf"),
    ],
)
def test_a_sum_that_no_number_of_the_trainer_holds_is_an_error(weights, said):
    made = {name: returning(lambda group: [[3e38] * 10 for _ in group], weight=w) for name, w in weights.items()}
    with pytest.raises(RewardError, match=said):
        Credit(made).allocate([team(MASK)])


def test_terms_add_up_in_any_order():
    group = [team(MASK, reward=0.4)]
    every = [credit(*order).allocate(group)[0] for order in itertools.permutations(["outcome", "difference", "costs"])]
    for row in every:
        assert row == pytest.approx(every[0])

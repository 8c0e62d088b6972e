"""The self-check's formulas by hand, beside the trainer's own, and on small cases in which one thing is wrong."""

import dataclasses
import itertools
import random
from collections import Counter

import numpy as np
import pytest
import torch
from credit_terms import terms_of
from test_credit import team

from searchgym.options import find_kind
from searchgym.records import (
    Answer,
    Context,
    Hit,
    Hop,
    Opened,
    Passage,
    Question,
    Searched,
    Span,
    SupportingFact,
    Triple,
)
from searchgym.testing.reference.case import Case
from searchgym.testing.reference.losses import departures, shortfalls
from searchgym.testing.reference.rewards import call_rewards
from searchgym.testing.reference.terms import FURTHER as TERMS
from searchgym.testing.reference.terms import names_of
from searchgym.testing.reference.update import Gradient, compare, minibatches
from searchgym.testing.selfcheck.sources import never_drawn, stages_by_rates, stages_by_steps
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext, Term
from searchgym.train.credit.waypoints import Names
from searchgym.train.learner import batching
from searchgym.train.recipe.options import OptimizerOptions

# -- credit terms -----------------------------------------------------------------------------------------------------

PATH = ["Zor (film)", "Ulo Bel", "Ada Bel", "Rox"]
FACTS = tuple(Triple(a.split(" (")[0], "r", b) for a, b in itertools.pairwise(PATH))
QUESTIONS = [
    Question("q", "Who is the mother of the director of Zor?", ("Rox",), kind=kind,
             supporting_facts=tuple(SupportingFact(title) for title in PATH[:-1]), evidences=FACTS)
    for kind in ("bridge", "comparison", None)
] + [Question("q", "Who is her?", ("Rox", "Ada Bel"), kind="bridge", metadata={"wanted": [["Rox"], ["Ada Bel", "Bel"]]},
              hops=(Hop("Who directed Zor?", "Ulo Bel"), Hop("Who is the mother of #1?", "Rox"),
                    Hop("Where was she born?", "Ada")))]  # fmt: skip
TEXTS = [f"{title} r {title}. {fact.subject} r {fact.object}" for title, fact in zip(PATH, FACTS, strict=False)]
WRITTEN_BY_MODELS = [
    "<think>a</think><search>Zor</search>", "<think>b</think><answer>Rox</answer>", "<answer>Rox</answer>",
    "<think></think>", "Ada Bel", "<think>a<b>c</b></think>", "<search>two\nlines</search>",
    "<think>first</think><q1>Who is the mother of Ulo Bel?</q1><q2>Who directed Zor?</q2>", "<q1>Who directed #1?</q1>",
]  # fmt: skip
OPTIONS = {
    "waypoint": [{"most_names": 1}, {"rules": ["page", "led"]}, {"answered": True}],
    "evidence": [{"measure": "supported", "where": "all", "scaled": True},
                 {"measure": "entities", "where": "wrong"}],
    "hiersearch": [{"local_first": True}],
    "decision": [{"known": 0.9}],
    "ranking": [{"measure": "hits"}, {"gate": 0.9}],
    "judgement": [{"summed": True}, {"with_answer": 0.0, "wrong_no": -0.7}],
    "ranks": [{"optimistic": True}, {"decay": 0.6, "bonus": 0.5, "bonus_ranks": 1}],
    "completeness": [{"grounded": False}, {"right": 0.3}],
    "boundary": [{"min_right": 0.9, "repeat": 0.1}],
    "any-of": [{"most": 2}],
    "pages": [{"of": "opened", "eta": 0.5}, {"beta": 0.5}],
}  # fmt: skip


ANSWERS = ["", "Rox", "Rox", "Rox (0.7); Ulo Bel (0.2)", "Rox; rox", "A (0.9); B (0.9)", "Bel (50 %); Rox (.5)",
           "a;b;c;d", "Rox (nan)", "Ulo Bel (1.5)"]  # fmt: skip


def attempt(rng, number):
    """Returns an episode of random searches, outputs and ends, of one context or of one for each call."""
    pages = [Passage(title, title, TEXTS[n % len(TEXTS)]) for n, title in enumerate(PATH)]
    turns, searches = 0, []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5])):
        turns += rng.choice([0, 1, 1]) or not searches
        found = tuple(Hit(page, 1.0) for page in rng.sample(pages, rng.choice([0, 1, 2])))
        query = rng.choice(["Zor", "ulo  bel", "Ulo Bel", "Ada Bel and Rox", "the mother of Ada Bel", "x"])
        searches.append(Searched(turns, query, found, rng.choice(["", "", "web"])))
    calls = [
        {
            "role": rng.choice(["planner", "searcher"]),
            "legal": rng.random() < 0.8,
            "cut": rng.random() < 0.2,
            "text": rng.choice(WRITTEN_BY_MODELS),
            "answer": rng.choice([None, "0.2", "0.9"]),
            "prefix": not n or rng.random() < 0.2,
        }
        for n in range(rng.choice([2, 3, 4]))
    ]
    trial = ["0.2", "0.9", "1"]
    calls = [{"role": "knower", "prefix": True, "answer": rng.choice(trial)}, *calls,
             {"role": "reader", "prefix": True, "answer": rng.choice(trial)}]  # fmt: skip
    made = team(
        calls, searches=searches, opens=[Opened(1, "x", rng.choice(PATH), part=1)] * rng.choice([0, 0, 1]),
        reward=rng.choice([0.0, 0.0, 0.4, 1.0]), scores={"em": float(rng.random() < 0.5)},
        stop_reason=rng.choice(["answer", "turns", "context"]), answer=rng.choice([None, *map(Answer, ANSWERS)]),
        turns=turns + 1, notes={"tools": rng.choice([0.0, 0.5, 1.0])},
    )  # fmt: skip
    for n, call in enumerate(made.calls):
        call.turn = n + 1
        there = {hit.passage.id for search in searches if search.turn == n for hit in search.hits}
        if there and rng.random() < 0.7:
            call.ranked = tuple(rng.sample(range(len(there)), rng.randint(1, len(there))))
    rows = [[n] for n in range(len(made.calls))]
    if rng.random() < 0.5:  # one context, whose trial answers branch off
        own = [n for n, call in enumerate(made.calls) if not call.prefix]
        if own:
            made, rows = joined(made, own), [own, *([n] for n in range(len(made.calls)) if n not in own)]
    return dataclasses.replace(made, id=f"q#{number}", attempt=number), rows


def joined(episode, own):
    """Returns the episode with some of its calls in one context."""
    logp, place = np.full(3, -1, np.float32), 2
    spans = [Span("prompt", np.array([1, 2], np.int32))]
    contexts, calls = [Context(None, 0, spans)], []
    for n, call in enumerate(episode.calls):
        if n in own:
            spans += [Span("model", np.array([3, 4, 5], np.int32), logp), Span("observation", np.array([6], np.int32))]
            calls.append(dataclasses.replace(call, context=0, start=place, end=place + 3))
            place += 4
        else:
            contexts.append(episode.contexts[call.context])
            calls.append(dataclasses.replace(call, context=len(contexts) - 1))
    return dataclasses.replace(episode, contexts=contexts, calls=calls)


def number(episode, text):
    """Scores an answer that is a number."""
    return float(text or 0)


def differences(term):
    """Compares a term with its formula on random groups; returns how many differ, and the rewards that were seen."""
    rng, wrong, seen = random.Random(term), 0, set()
    for options in [{}, *OPTIONS.get(term, [])] * 12:
        for question in QUESTIONS:
            made = terms_of(**{term: options})
            group = [attempt(rng, n) for n in range(3)]
            context = CreditContext({}, number, lambda episode, own=question: own, lambda own=question: Names.of([own]))
            found = Credit(made, context).allocate([episode for episode, _ in group])
            for (episode, rows), own in zip(group, found, strict=True):
                peers = [other for other, _ in group]
                case = Case(episode, rows, question, peers, names_of([question]), made, number)
                right = [total for total, _ in call_rewards(case)]
                wrong += right != pytest.approx(own, abs=1e-9)
                seen |= {round(value, 6) for value in own}
    return wrong, seen


@pytest.mark.slow_cases
@pytest.mark.parametrize("term", sorted(TERMS))
def test_a_term_and_its_formula_agree_on_random_episodes(term):
    wrong, seen = differences(term)
    assert not wrong
    assert len(seen) > 1, "the episodes must earn different rewards for this test to say anything"


@pytest.mark.slow_cases
@pytest.mark.parametrize("term", sorted(TERMS))
def test_a_term_that_is_changed_in_a_few_episodes_is_found(term, monkeypatch):
    cls = find_kind(Term, term)
    right = cls.rewards

    def changed(self, group, context):
        """The term, but for a tenth less of its largest rewards."""
        rows = right(self, group, context)
        most = max((value for row in rows for value in row), key=abs)
        return [[value - 0.1 * (value == most != 0) for value in row] for row in rows]

    monkeypatch.setattr(cls, "rewards", changed)
    assert differences(term)[0] > 0


# -- minibatches and gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [OptimizerOptions(epochs=2), OptimizerOptions(minibatches=3, epochs=2), OptimizerOptions(minibatch_samples=4)],
)
@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_minibatches_by_epochs_are_the_trainers(options, count):
    own = minibatches(count, options, 5, 3)
    each = len(own) // options.epochs
    for epoch in range(options.epochs):
        parts = own[epoch * each : (epoch + 1) * each]
        assert sorted(i for part in parts for i in part) == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert own == [part.tolist() for part in batching.minibatches(count, options, 5, 3)]


def gradient(**parts):
    """A gradient whose samples do not cancel."""
    made = {name: torch.tensor(values) for name, values in parts.items()}
    return Gradient(0.0, made, {name: float(part.norm()) for name, part in made.items()}, 1.0)


def test_gradients_are_compared_weight_by_weight():
    made, noise = [gradient(a=[3.0, 4.0], b=[12.0], zero=[1e-9])], torch.tensor([2e-9])
    same = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([12.0]), "zero": noise}
    assert max(off for off, _ in compare([same], made)) < 1e-6  # what is rounding does not count
    turned = same | {"a": torch.tensor([4.0, 3.0])}  # of the same norm
    assert compare([turned], made)[0] == (pytest.approx(2**0.5 / 5), "a")
    assert compare([{name: part for name, part in same.items() if name != "b"}], made)[0] == (1.0, "b")
    assert compare([same | {"c": torch.tensor([1.0])}], made)[0] == (float("inf"), "c")
    assert compare([], made)[0][0] == float("inf")


def test_the_first_and_the_last_gradient_are_compared():
    made = [gradient(a=[1.0]), gradient(a=[2.0]), gradient(a=[5.0])]
    kept = [{"a": torch.tensor([1.0])}, {"a": torch.tensor([4.0])}]
    assert [off for off, _ in compare(kept, made)] == [0.0, pytest.approx(0.2)]


def test_tokens_less_likely_than_chance_makes_them_by_hand():
    """Of a coin whose sides have shares of 1/4 and 3/4: surprise has mean h and variance v."""
    share = np.array([0.25, 0.75])
    h = -(share * np.log(share)).sum()
    v = (share * np.log(share) ** 2).sum() - h**2
    drawn = np.log(share[[0, 1, 1, 1]])  # as often as expected
    none = np.zeros(4)
    assert departures([(drawn, np.full(4, h), np.full(4, v), none, none, none)])[0][0] == pytest.approx(0)
    rare = np.log(share[[0] * 4])
    rows = [(rare[:n], np.full(n, h), np.full(n, v), none[:n], none[:n], none[:n]) for n in (1, 3)]
    assert departures(rows)[0][0] == pytest.approx(4 * (np.log(4) - h) / np.sqrt(4 * v))


def test_neighbouring_tokens_that_depend_on_each_other_by_hand():
    """Quantiles x and their products with the next: of equal ones (3 x 0.16), of alternating ones none is left."""
    equal, alternating, uniform = np.full(4, 0.4), np.array([0.4, 0.4, -0.4]), 1 / 12
    rows = [(np.zeros(4), np.zeros(4), np.zeros(4), equal, np.zeros(4), np.full(4, uniform))]
    rows += [(np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3), alternating, np.full(3, uniform))]
    (_, by_id, ranked) = (off for off, _ in departures(rows))
    assert by_id == pytest.approx(3 * 0.16 / np.sqrt(5 * uniform**2)) and ranked == pytest.approx(0)


def test_nearly_certain_tokens_are_no_dependence():
    """Each token is the one of probability 0.99 of two: 300 such pairs are likely, though all quantiles are equal."""
    share = np.array([0.01, 0.99])
    logp, entropy = np.full(301, np.log(0.99)), np.full(301, -(share * np.log(share)).sum())
    quantiles = np.full(301, 0.01 + 0.99 / 2 - 0.5)
    variance = float((share * (np.array([0.005, 0.505]) - 0.5) ** 2).sum())
    assert variance == pytest.approx((1 - (share**3).sum()) / 12)
    row = (logp, entropy, np.zeros(301), quantiles, quantiles, np.full(301, variance))
    assert all(abs(off) < 0.2 for off, _ in departures([row])[1:])


def test_tokens_below_the_likeliest():
    logits = torch.tensor([[0.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    told = torch.log_softmax(logits, -1)[torch.arange(2), torch.tensor([1, 1])]
    (one, two) = shortfalls(logits, torch.tensor([1, 1]), told, 2.0)
    assert one == (0.0, pytest.approx(0), pytest.approx(abs(np.log1p(np.exp(-2)) - np.log1p(np.exp(-1)))))
    assert two[:2] == (1.0, pytest.approx(0))


# -- sources of questions ----------------------------------------------------------------------------------------------


def test_stages_by_steps_by_hand():
    assert stages_by_steps([1, 1, 1, 1], 8) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert stages_by_steps([1, 2], 10) == [0] * 3 + [1] * 7
    assert stages_by_steps([1, 1, 1], 2) == [0, 2]  # rounded to 1, 1 and 2 steps: the second has none


def test_stages_by_rates_by_hand():
    rates = [0.6, 0.6, 1.0, 0.0, 0.5, 1.0, 0.9, 0.9, 0.1, 0.1, 0.1]
    #        0    0    1    1    1    1    2    2    2    2    1: from 2 down after 0.1, 0.1; no higher than 2
    assert stages_by_rates(rates, 3, up=0.6, down=0.2, window=2) == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 1]


@pytest.mark.parametrize(("count", "batch", "steps"), [(12, 4, 2), (12, 5, 2), (12, 5, 5), (40, 12, 9)])
def test_the_number_that_is_never_drawn(count, batch, steps):
    """Against the mean of many seeds."""
    left = []
    for seed in range(400):
        drawn = set()
        for step in range(steps):
            epoch, place = divmod(step, count // batch)
            order = np.random.default_rng([seed, epoch]).permutation(count)
            drawn |= set(order[place * batch : (place + 1) * batch].tolist())
        left.append(count - len(drawn))
    assert never_drawn(count, batch, steps) == pytest.approx(np.mean(left), abs=0.2)
    assert Counter(left)

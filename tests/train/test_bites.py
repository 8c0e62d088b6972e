"""Every credit term, and every estimator that gives credit of its own, changes what is learnt from recorded episodes.

A term bites if it changes the advantage of at least 5 % of the calls of 200 episodes, towards what it is there for. The
check is itself checked: with the term at zero, or turned round, it fails.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import stumbling
import torch
from advantage_options import advantage_options
from credit_terms import read_terms

from searchgym.agents import load_agent
from searchgym.options import find_kind, kinds
from searchgym.retrieval.kinds.hybrid import fuse
from searchgym.scoring.selection import Sampled, selected
from searchgym.text import norm
from searchgym.train.algorithms import advantages as comparison
from searchgym.train.algorithms.advantages import assign_advantages
from searchgym.train.algorithms.by_call import CallAdvantages
from searchgym.train.algorithms.estimator import AdvantageOptions, Estimator
from searchgym.train.algorithms.estimators import stratified, tree
from searchgym.train.algorithms.estimators.deepsearch import Deepsearch
from searchgym.train.algorithms.estimators.grpo import Grpo
from searchgym.train.algorithms.estimators.shaped import Shaped
from searchgym.train.algorithms.estimators.stages import Stages
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import policy_sums, token_weights
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.algorithms.value_losses.hl_gauss import HlGauss
from searchgym.train.algorithms.value_losses.squared import Squared
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import Term

LEAST = 0.05
"""Share of the calls whose advantage a term must change."""


def right(question, text):
    """Tells whether a text is a gold answer."""
    return float(norm(text or "") in {norm(gold) for gold in question.golds})


def found(question, episode):
    """Returns the share of the gold pages that an episode found."""
    titles = {hit.passage.title for search in episode.searches for hit in search.hits}
    return len(titles & set(question.gold_titles)) / len(question.gold_titles)


def before(episode, index):
    """Returns the searches that an episode had made before a call."""
    return [search.query for search in episode.searches if search.turn < episode.calls[index].turn]


def finds(question, episode, index):
    """Tells whether a call's own search has a gold page among its hits that no earlier search had."""
    turn = episode.calls[index].turn
    hits = {True: set(), False: set()}
    for search in episode.searches:
        if search.turn <= turn:
            hits[search.turn == turn] |= {hit.passage.title for hit in search.hits}
    return float(bool((hits[True] - hits[False]) & set(question.gold_titles)))


def ends(episode, index):
    """Tells whether a call is the last of its episode."""
    return index == len(episode.calls) - 1


# What each term is there for, said without it: a number for each call that should rise with its advantage, None where
# the term says nothing of the call.


def of_outcome(question, episode, index, group):
    return right(question, episode.answer.text)


def of_waypoint(question, episode, index, group):
    return None if of_outcome(question, episode, index, group) else found(question, episode)


def of_evidence(question, episode, index, group):
    return found(question, episode) if of_outcome(question, episode, index, group) else None


def of_search(question, episode, index, group):
    return None if ends(episode, index) else finds(question, episode, index)


def of_oracle(question, episode, index, group):
    if not ends(episode, index):
        return finds(question, episode, index)
    return of_outcome(question, episode, index, group) * (found(question, episode) == 1)


def of_proposal(question, episode, index, group):
    return None if episode.calls[index].answer is None else right(question, episode.calls[index].answer)


def of_trial(question, episode, index, group):
    call = episode.calls[index]
    return right(question, call.answer) if call.prefix else None


def of_progress(question, episode, index, group):
    """Whether a search finds the last gold page, after which all trial answers are right."""
    if episode.calls[index].prefix or ends(episode, index):
        return None
    turn = episode.calls[index].turn
    until = dataclasses.replace(episode, searches=[search for search in episode.searches if search.turn <= turn])
    return float(finds(question, episode, index) and found(question, until) == 1)


def of_second_answer(question, episode, index, group):
    """Whether the reader's answer is right, in episodes whose own answer is right too."""
    second = [call.answer for call in episode.calls if call.role == "reader"]
    return right(question, second[-1]) if second and right(question, episode.answer.text) else None


def of_form(question, episode, index, group):
    return float(episode.calls[index].legal)


def of_brevity(question, episode, index, group):
    return -float(sum(call.end - call.start for call in episode.calls))


def of_cheap_evidence(question, episode, index, group):
    """Pages found, and few tokens to find them."""
    return found(question, episode) - 0.001 * sum(len(span.ids) for c in episode.contexts for span in c.spans)


def of_thrift(question, episode, index, group):
    return -float(min(len(episode.searches), 3))


def of_stratum(question, episode, index, group):
    same = [other.reward for other in group if len(other.searches) == len(episode.searches)]
    return -float(np.mean(same)) if len(same) > 1 else None


def of_branch(question, episode, index, group):
    if ends(episode, index):
        return episode.reward
    begun = [call.text for call in episode.calls[: index + 1]]
    return float(np.mean([o.reward for o in group if [c.text for c in o.calls[: index + 1]] == begun]))


def of_density(question, episode, index, group):
    """The share of an episode's searches that found a new gold page, if its answer is right."""
    calls = [n for n, call in enumerate(episode.calls) if any(s.turn == call.turn for s in episode.searches)]
    useful = [finds(question, episode, n) for n in calls]
    return float(np.mean(useful)) if useful and of_outcome(question, episode, index, group) else None


def of_pages(question, episode, index, group):
    return found(question, episode)


def of_boundary(question, episode, index, group):
    """Fewer searches, where the answer is right."""
    return -float(len(episode.searches)) if of_outcome(question, episode, index, group) else None


def of_plan(question, episode, index, group):
    call = episode.calls[index]
    return float(call.legal) if call.role == "planning" else None


def of_candidates(question, episode, index, group):
    return max(right(question, part.split("(")[0]) for part in episode.answer.text.split(";"))


def of_ranks(question, episode, index, group):
    return found(question, episode)


def of_judgement(question, episode, index, group):
    """The share of the searches that are judged as they were."""
    said = {call.turn - 1: "Yes" if "Yes</judge>" in call.text else "No" for call in episode.calls}
    numbers = [n for n, call in enumerate(episode.calls) if any(s.turn == call.turn for s in episode.searches)]
    right = [said[episode.calls[n].turn] == ("Yes" if finds(question, episode, n) else "No") for n in numbers]
    return float(np.mean(right)) if right else None


def of_confidence(question, episode, index, group):
    """The negative distance between the first candidate's confidence and whether it is right."""
    text, _, number = episode.answer.text.split(";")[0].partition("(")
    return -abs(right(question, text) - float(number.rstrip(") ")))


def of_state(question, episode, index, group):
    """The reward, less for each call left; more than that of other calls after the same pages."""
    return episode.reward * 0.95 ** (len(episode.calls) - 1 - index)


NOTHING = {"costs": 1.0}
"""Terms that reward nothing: what the only term of a mixture is compared with."""
ROLES = advantage_options(normalise="role", drop_zero_variance=False)


@dataclass(frozen=True)
class Case:
    """A term beside others: what it is added to, and what should rise with the advantages that it changes."""

    term: str
    wanted: Callable
    agent: str = "search-r1"
    beside: Mapping[str, float] = field(default_factory=lambda: {"outcome": 1.0})
    credit: Mapping[str, object] = field(default_factory=dict)
    options: AdvantageOptions = field(default_factory=lambda: advantage_options(drop_zero_variance=False))
    without: AdvantageOptions | None = None
    """Options of the advantages that are compared with; None: the same."""
    name: str = ""

    def __str__(self):
        return self.name or self.term


def options(**given):
    return advantage_options(drop_zero_variance=False, **given)


TURNS = options(normalise="role-turn", chain="none")
STAGES = {"plan": ["planning"], "research": ["search", "summary", "update"], "answer": ["answer"]}
CASES = [
    Case("outcome", of_outcome, beside=NOTHING),
    Case("waypoint", of_waypoint, options=options(std="none")),
    Case("evidence", of_evidence),
    Case("evidence", of_evidence, name="evidence by entities", credit={"measure": "entities"}),
    Case("evidence", of_waypoint, name="evidence of wrong answers", options=options(std="none"),
         credit={"measure": "supported", "where": "wrong"}),
    Case("vpr", of_search, options=TURNS),
    Case("difference", of_proposal, "m-ask", NOTHING, options=ROLES),
    Case("gain", of_outcome, "m-ask", {"format": 1.0}, options=options(normalise="role", chain="episode")),
    Case("praise", of_trial, "praise", options=ROLES),
    Case("praise", of_progress, "pav", beside=NOTHING, credit={"prover": 4}, options=TURNS, name="prover"),
    Case("format", of_form, "m-ask", options=ROLES),
    Case("overlong", of_brevity, credit={"limit": 60, "cache": 50}, options=ROLES),
    Case("costs", of_thrift, credit={"search": 0.5}, options=options(std="none")),
    Case("efficiency", of_cheap_evidence, beside=NOTHING, options=options(std="none")),
    Case("rubric", of_outcome, beside=NOTHING),
    Case("gated", of_outcome, beside=NOTHING),
    Case("tournament", of_outcome, beside=NOTHING),
    Case("candidates", of_outcome, beside=NOTHING),
    Case("density", of_density),
    Case("pages", of_pages, options=options(std="none")),
    Case("completeness", of_second_answer, "search-r1-reread"),
    Case("boundary", of_boundary, "saas", options=options(std="none")),
    Case("plan", of_plan, "m-ask", NOTHING, options=ROLES),
    Case("judgement", of_judgement, "reseek", NOTHING),
    Case("ranks", of_ranks, beside=NOTHING, credit={"bonus": 1.0}),
    Case("any-of", of_candidates, "search-r1, candidates", NOTHING),
    Case("calibrated", of_confidence, "search-r1, candidates", NOTHING),
    Case("stratified", of_stratum, beside={}, options=options(estimator="stratified", alpha=1.0), without=options()),
    Case("siblings", of_branch, beside={}, options=options(estimator="siblings"),
         without=options(eps=1e-4)),
    Case("gigpo", of_state, beside={}, options=options(estimator="gigpo"), without=options()),
    Case("stages", of_outcome, "m-ask", {"gain": 1.0, "format": 1.0}, options=options(
        estimator="stages", stages=STAGES, normalise="role", chain="none")),
    Case("rescale", of_outcome, beside={}, options=options(std="none", rescale="batch"), without=options(std="none")),
    Case("shaped", of_outcome, beside={}, options=options(estimator="shaped", std="none"), without=options(std="none")),
    Case("deepsearch", of_outcome, beside={}, options=options(estimator="deepsearch")),
    Case("tree", of_branch, beside={}, options=options(estimator="tree"), without=options(estimator="rloo")),
    Case("searchgym.cli.pipeline.controls:OracleCredit", of_oracle, beside=NOTHING, options=TURNS, name="oracle"),
]  # fmt: skip
ALONE = ("tree", "stages", "deepsearch")
"""Estimators that replace the comparison as a whole."""
ESTIMATORS = (*ALONE, "shaped", "stratified", "siblings", "gigpo", "rescale")
"""Estimators and options of the comparison, whose cases name the terms that they compare; see `check`."""


@pytest.fixture(scope="module")
def recorded():
    """The world of the episodes, and a function that returns an agent's groups of attempts."""
    task, form = stumbling.world()
    made = {}

    def groups(agent):
        if agent not in made:
            made[agent] = stumbling.team(task, form) if agent == "m-ask" else stumbling.monolithic(task, form, agent)
        return made[agent]

    return task, groups


def advantages(groups, task, agent, terms, options):
    """Returns the advantage of each call by its id."""
    made = Credit.of(read_terms(terms), load_agent(agent.split(",")[0]).roles, lambda: task)
    episodes = [episode for group in groups for episode in group]
    samples = [
        sample
        for episode, given in zip(episodes, made.rewards(episodes), strict=True)
        for sample in samples_from(episode, rewards=given.total, local_rewards=given.local_rewards)
        if made.trains_prefixes or not all(call.prefix for call in sample.calls)
    ]
    assigned, _ = options.estimator.assign(samples, options)
    return {
        name: float(sample.advantage[call.start])
        for sample in assigned
        for call, name in zip(sample.calls, sample.call_ids, strict=True)
    }


def check(case, recorded):
    """Raises an AssertionError unless a term bites."""
    task, by_agent = recorded
    groups = by_agent(case.agent)
    assert sum(map(len, groups)) == 200
    own = {case.term: {"weight": 1.0, **case.credit}}
    terms = case.beside or {"outcome": 1.0} if case.term in ESTIMATORS else {**case.beside, **own}
    count = partial(advantages, groups, task, case.agent)
    after = count(terms, case.options)
    if case.term in ALONE:
        without = dict.fromkeys(after, 0.0)
    else:
        without = count(terms if case.term in ESTIMATORS else case.beside, case.without or case.options)
    change = {name: after[name] - without.get(name, 0.0) for name in after}
    share = np.mean([abs(value) > 1e-6 for value in change.values()])
    assert share >= LEAST, f"{case} changes {share:.3f} of the advantages"
    moved, wanted = [], []
    for group in groups:
        said = {
            f"{episode.id}/{index}": value
            for episode in group
            for index in range(len(episode.calls))
            if f"{episode.id}/{index}" in change
            and (value := case.wanted(task.find(episode.question_id), episode, index, group)) is not None
        }
        mean = np.mean(list(said.values())) if said else 0.0
        moved += [change[name] for name in said]
        wanted += [value - mean for value in said.values()]
    together = np.corrcoef(moved, wanted)[0, 1]
    assert together > 0.1, f"{case} moves the advantages the other way: correlation {together:.3f}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_term_bites(case, recorded):
    check(case, recorded)


@pytest.mark.slow_cases
@pytest.mark.parametrize("factor", [0.0, -1.0], ids=["zeroed", "negated"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_check_fails_without_the_term_and_with_its_opposite(case, factor, recorded, monkeypatch):
    cut(case.term, factor, monkeypatch)
    with pytest.raises(AssertionError, match="changes 0.000" if factor == 0 else "the other way"):
        check(case, recorded)


def cut(term, factor, monkeypatch):
    """Multiplies what a term or an estimator gives by a factor."""
    if term == "tree":
        real = tree.branch_rewards
        monkeypatch.setattr(tree, "branch_rewards", lambda *given: [[factor * v for v in row] for row in real(*given)])
    elif term == "stages":
        matrix = Stages.matrix
        weighted_rows = lambda self: [[factor * weight for weight in row] for row in matrix(self)]  # noqa: E731
        monkeypatch.setattr(Stages, "matrix", weighted_rows)
    elif term == "rescale":
        real = comparison.whiten
        partly = lambda values, divisor: [  # noqa: E731
            row + factor * (white - row) for row, white in zip(values, real(values, divisor), strict=True)
        ]
        monkeypatch.setattr(comparison, "whiten", partly)
    elif term == "deepsearch":
        right = Deepsearch.compare_calls
        monkeypatch.setattr(Deepsearch, "compare_calls", lambda *given: CallAdvantages(
            [[factor * value for value in row] for row in right(*given).rows], right(*given).counts
        ))  # fmt: skip
    elif term == "shaped":
        shaped = Shaped.compare_calls
        by_gain = lambda self, *given: shaped(dataclasses.replace(self, gain=factor * self.gain), *given)  # noqa: E731
        monkeypatch.setattr(Shaped, "compare_calls", by_gain)
    elif term in ("siblings", "gigpo"):
        cls = find_kind(Estimator, term)
        compare_calls = cls.compare_calls

        def weighted(self, rewards, paths):
            return compare_calls(dataclasses.replace(self, weight=factor), rewards, paths)

        monkeypatch.setattr(cls, "compare_calls", weighted)
    elif term == "stratified":
        real = stratified.Stratified.compare

        def scaled(self, group):
            plain = Grpo(std=self.std, eps=self.eps, std_floor=self.std_floor).compare(group)
            return plain + factor * (real(self, group) - plain)

        monkeypatch.setattr(stratified.Stratified, "compare", scaled)
    else:
        cls = find_kind(Term, term)
        rewards = cls.rewards
        monkeypatch.setattr(
            cls, "rewards", lambda *given: [[factor * value for value in row] for row in rewards(*given)]
        )


OF_AGENTS = {"process", "decomposition", "search-count", "hiersearch", "ikea", "decision", "ranking", "ssrl-form"}
"""Terms of single kinds of agents, which the episodes here do not have."""


def test_no_term_is_left_out():
    assert {case.term for case in CASES if ":" not in case.term} == kinds(Term).keys() - OF_AGENTS | set(ESTIMATORS)


# -- LLDS, a term of the loss --------------------------------------------------------------------------------------


def llds_gradients(recorded, coef):
    """Returns the gradient of each token's log-prob without LLDS and with it, and which likelihoods have fallen.

    Log-ratios are as after some minibatches: drawn, with a standard deviation of 0.1.
    """
    task, groups = recorded
    made = Credit.of(read_terms({"outcome": 1}), load_agent("search-r1").roles, lambda: task)
    episodes = [episode for group in groups("search-r1") for episode in group]
    samples = [
        s for e, r in zip(episodes, made.rewards(episodes), strict=True) for s in samples_from(e, rewards=r.total)
    ]
    assigned, _ = assign_advantages(samples, options())
    weights, _ = token_weights(assigned)
    advantage = torch.from_numpy(np.concatenate([s.advantage[s.mask] for s in assigned]))
    runs = [call.end - call.start for s in assigned for call in s.calls]
    logp = 0.1 * torch.randn(len(advantage), generator=torch.Generator().manual_seed(0))
    gradients = []
    for own in (0.0, coef):
        leaf = logp.clone().requires_grad_()
        zeros, weight = torch.zeros(len(leaf)), torch.from_numpy(np.concatenate(weights))
        loss = LossOptions(llds_coef=own)
        policy_sums(leaf, zeros, zeros, advantage, weight, None, loss, runs=runs, rows=runs)[0].backward()
        gradients.append(leaf.grad.numpy())
    return (*gradients, (logp < 0).numpy())


def check_llds(recorded, coef):
    plain, with_llds, fallen = llds_gradients(recorded, coef)
    changed = np.abs(with_llds - plain) > 1e-6
    assert changed.mean() >= LEAST, f"LLDS changes {changed.mean():.3f} of the gradients"
    assert (with_llds[changed] < plain[changed]).all(), "LLDS moves likelihoods the other way"
    assert fallen[changed].all()


def test_llds_bites(recorded):
    check_llds(recorded, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("coef", "said"), [(0.0, "changes 0.000"), (-0.2, "the other way")])
def test_the_check_of_llds_fails_without_it_and_with_its_opposite(coef, said, recorded):
    with pytest.raises(AssertionError, match=said):
        check_llds(recorded, coef)


# -- the losses of the critic --------------------------------------------------------------------------------------


VALUE_LOSSES = {"squared": Squared(), "hl-gauss": HlGauss()}


def check_value_loss(name, recorded, factor=1.0):
    """Raises an AssertionError unless a step along a loss's gradient moves values towards recorded returns.

    Each token has outputs of its own, those with which the critic starts; its return is its episode's reward.
    """
    (task, groups), loss = recorded, VALUE_LOSSES[name]
    rewards = [of_outcome(task.find(e.question_id), e, 0, group) for group in groups("search-r1") for e in group]
    returns = torch.tensor(rewards)
    outputs = torch.tensor([loss.start()] * len(returns)).requires_grad_()
    before = loss.values(outputs.detach())
    total, _ = loss.sums(outputs, before, returns, torch.ones(len(returns)), None)
    (factor * total).backward()
    change = loss.values(outputs.detach() - 0.5 * outputs.grad) - before
    share = float((change.abs() > 1e-6).float().mean())
    assert share >= LEAST, f"{name} changes {share:.3f} of the values"
    together = np.corrcoef(change.numpy(), rewards)[0, 1]
    assert together > 0.1, f"{name} moves values the other way: correlation {together:.3f}"


@pytest.mark.parametrize("name", VALUE_LOSSES)
def test_every_value_loss_bites(name, recorded):
    check_value_loss(name, recorded)


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "said"), [(0.0, "changes 0.000"), (-1.0, "the other way")])
@pytest.mark.parametrize("name", VALUE_LOSSES)
def test_the_check_of_a_value_loss_fails_without_it_and_with_its_opposite(name, factor, said, recorded):
    with pytest.raises(AssertionError, match=said):
        check_value_loss(name, recorded, factor)


# -- decisions that are no training: which sample counts, which hit comes first ------------------------------------


def test_every_selection_decides_otherwise_than_the_first_sample(recorded):
    """At least 5 % of the decisions of each differ; a vote gains answers, the shortest and the stated odds as named."""
    task, groups = recorded
    changed, gained = defaultdict(list), defaultdict(list)
    for group in groups("search-r1, candidates"):
        first = [candidate.partition(";")[0].partition(" (") for candidate in (e.answer.text for e in group)]
        lengths = [sum(call.end - call.start for call in e.calls) for e in group]
        samples = [
            Sampled(text, tokens, float(odds.rstrip(") ")))
            for (text, _, odds), tokens in zip(first, lengths, strict=True)
        ]
        hits = [right(task.find(group[0].question_id), sample.answer) for sample in samples]
        for name, index in selected(samples).items():
            changed[name].append(index != 0)
            of_sample = {"shortest": [-n for n in lengths], "confident": [s.confidence for s in samples]}
            values = of_sample.get(name, hits)
            gained[name].append(values[index] - np.mean(values))
    assert changed.keys() == {"vote", "shortest", "confident", "weighted_vote"}
    assert all(np.mean(values) >= LEAST for values in changed.values())
    assert all(np.mean(values) > 0 for values in gained.values())


def test_ties_by_score_change_what_searches_find(recorded):
    """Of the fused hits of two searches, the first five change in at least 5 % of the cases, and scores do not fall."""
    _, groups = recorded
    episodes = [e for group in groups("search-r1") for e in group if len(e.searches) > 1]
    changed = []
    for episode in episodes:
        lists = [search.hits for search in episode.searches[:2]]
        score = {hit.passage.id: hit.score for hits in lists for hit in hits}
        by_rank, by_score = ([hit.passage.id for hit in fuse(lists, 5, 0, ties)] for ties in ("rank", "score"))
        changed.append(by_rank != by_score)
        assert sum(score[id] for id in by_score) >= sum(score[id] for id in by_rank) - 1e-9
    assert np.mean(changed) >= LEAST

"""Waypoint coverage: worked by hand, against searchers that spray names, and in groups that are all wrong."""

import random
import re

import numpy as np
import pytest
from advantage_options import advantage_options
from credit_terms import terms_of

from searchgym.errors import CardError
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Call, Context, Episode, Hit, Passage, Question, Searched, Span, SupportingFact, Triple
from searchgym.retrieval.index.index import build_in_memory
from searchgym.text import norm
from searchgym.train.algorithms.advantages import assign_advantages
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext
from searchgym.train.credit.waypoints import RULES, Names, coverage, waypoints_of
from searchgym.train.recipe.load import load_recipe

QUESTION = Question(
    "q",
    "Who is the mother of the director of the film Zor?",
    ("Ada Bel",),
    supporting_facts=tuple(SupportingFact(title) for title in ("Zor (film)", "Ulo Bel (painter)")),
    evidences=(Triple("Zor", "director", "Ulo Bel"), Triple("Ulo Bel", "mother", "Ada Bel")),
)
PAGES = {
    "Zor (film)": "Zor is a film. The director of Zor is Ulo Bel.",
    "Ulo Bel (painter)": "Ulo Bel is a painter. The mother of Ulo Bel is Ada Bel.",
    "Ada Bel": "Ada Bel is a sailor.",
}
NAMES = Names([*PAGES, "Kim Vos", "Rox"])


def searched(turn, query, *titles):
    hits = tuple(Hit(Passage(title, title, PAGES[title]), 1.0) for title in titles)
    return Searched(turn, query, hits)


def covered(*searches, rules=RULES, most=2):
    return coverage(waypoints_of(QUESTION), searches, NAMES, rules, most)


FOLLOWED = (searched(1, "Zor", "Zor (film)"), searched(2, "mother of Ulo Bel", "Ulo Bel (painter)"))


def test_a_waypoint_is_on_the_path_and_neither_named_nor_the_answer():
    (point,) = waypoints_of(QUESTION)
    assert (point.name, point.pages) == ("Ulo Bel", {"Ulo Bel (painter)"})


def test_questions_without_a_path_have_none():
    assert waypoints_of(Question("q", "Who?", ("a",))) == ()
    assert covered() == 0
    assert coverage((), FOLLOWED, NAMES, RULES, 2) == 0


@pytest.mark.parametrize(
    ("searches", "rule"),
    [
        (FOLLOWED, None),
        ((FOLLOWED[0], searched(2, "the painter", "Ulo Bel (painter)")), "query"),
        ((FOLLOWED[0], searched(2, "Ulo Bel", "Ada Bel")), "page"),
        ((searched(1, "Ulo Bel", "Ulo Bel (painter)"),), "led"),
        ((FOLLOWED[0], searched(2, "Ulo Bel Kim Vos Rox", "Ulo Bel (painter)")), "few"),
    ],
)
def test_each_rule_by_a_search_that_breaks_it_alone(searches, rule):
    assert covered(*searches) == (rule is None)
    assert covered(*searches, rules=[name for name in RULES if name != rule]) == 1


def test_queries_of_one_turn_do_not_see_each_others_hits():
    both = [searched(1, "Zor", "Zor (film)"), searched(1, "Ulo Bel", "Ulo Bel (painter)")]
    assert covered(*both) == 0
    assert covered(*both, searched(2, "Ulo Bel", "Ulo Bel (painter)")) == 1


def test_names_are_counted_once_the_longest_first_and_in_any_case():
    names = Names(["Ada Bel", "Ada Bel Vos", "Bel", "Her", "Zor (film)"], ordinary={"her"})
    assert names.count("ada bel vos") == 1
    assert names.count("Zor, ZOR and the Bel of Ada Bel") == 3
    assert names.count("her mother") == 0
    assert names.count("Kim Vos", more=["Kim Vos (painter)"]) == 1
    assert Names(()).count("Ada Bel") == 0


# -- the credit term ------------------------------------------------------------------------------------------------


def attempt(number, reward, searches, stop="answer"):
    """Returns an episode of one context with two calls of the model."""
    logp = np.full(2, -1, np.float32)
    spans = [
        Span("prompt", np.array([1], np.int32)),
        Span("model", np.array([2, 3], np.int32), logp),
        Span("observation", np.array([4], np.int32)),
        Span("model", np.array([5, 6], np.int32), logp),
    ]
    calls = [Call(0, 1, 3, "agent", "policy", 1), Call(0, 4, 6, "agent", "policy", 2)]
    return Episode(
        f"q#{number}", "q", "a", "env", number, "g", contexts=[Context(None, 0, spans)], calls=calls,
        searches=list(searches), reward=reward, stop_reason=stop,
    )  # fmt: skip


def credit(*names, question=QUESTION, **options):
    context = CreditContext(question=lambda episode: question, names=lambda: NAMES)
    return Credit(terms_of(*names, **options), context)


def test_right_earns_one_and_wrong_lambda_times_coverage():
    group = [attempt(0, 1.0, ()), attempt(1, 0.0, FOLLOWED), attempt(2, 0.0, FOLLOWED[:1]), attempt(3, 0.5, FOLLOWED)]
    rows = credit("outcome", "waypoint").allocate(group)
    assert rows == [[0, 1.0], [0, 0.3], [0, 0.0], [0, 0.5 + 0.3 * 0.5]]


TWO = Question(
    "q",
    "In which town was the mother of the director of the film Zor born?",
    ("Rox",),
    supporting_facts=tuple(SupportingFact(title) for title in PAGES),
    evidences=(*(QUESTION.evidences or ()), Triple("Ada Bel", "born in", "Rox")),
)


def test_some_of_the_waypoints_earn_their_share():
    """Two waypoints, Ulo Bel and Ada Bel: one of them is half of lambda, whichever it is."""
    last = searched(3, "birth of Ada Bel", "Ada Bel")
    attempts = {0.0: FOLLOWED[:1], 0.5: FOLLOWED, 1.0: (*FOLLOWED, last)}
    of_two = credit("waypoint", question=TWO)
    rows = of_two.allocate([attempt(n, 0.0, searches) for n, searches in enumerate(attempts.values())])
    assert rows == [[0, pytest.approx(0.3 * share)] for share in attempts]
    skipped = (FOLLOWED[0], searched(2, "her mother", "Ulo Bel (painter)"), last)  # the query names no waypoint
    assert coverage(waypoints_of(TWO), skipped, NAMES, RULES, 2) == 0.5
    (row,) = of_two.allocate([attempt(0, 0.5, FOLLOWED)])
    assert row == [0, pytest.approx(0.3 * 0.5 * 0.5)]  # half a reward is missing


def test_an_episode_that_never_answers_can_be_left_without():
    group = [attempt(0, 0.0, FOLLOWED, stop="turns")]
    assert credit("waypoint").allocate(group) == [[0, 0.3]]
    assert credit(waypoint={"answered": True}).allocate(group) == [[0, 0]]


@pytest.mark.parametrize("value", [0.1, 0.3, 0.9])
def test_the_deviation_of_an_all_wrong_group_cancels_lambda(value):
    group = [attempt(0, 0.0, FOLLOWED), *(attempt(n, 0.0, FOLLOWED[:1]) for n in range(1, 4))]
    rows = credit("outcome", waypoint={"share": value}).rewards(group)
    samples = [s for e, given in zip(group, rows, strict=True) for s in samples_from(e, rewards=given.total)]

    def largest(**options):
        assigned, _ = assign_advantages(samples, advantage_options(**options))
        return max(float(np.abs(sample.advantage).max()) for sample in assigned)

    assert largest(std="sample") == pytest.approx(1.5, abs=1e-4)  # three quarters over a deviation of a half
    assert largest(std="none") == pytest.approx(0.75 * value)
    assert largest(std="sample", std_floor=0.3) == pytest.approx(0.75 * value / max(0.3, value / 2), abs=1e-4)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("waypoint: {share: 1}", "waypoint.share: expected below 1, got 1"),
        ("waypoint: {share: 0}", "waypoint.share: expected above 0, got 0"),
        ("waypoint: {rules: [query, led, fw]}", "did you mean 'few'"),
        ("waypoint: {rules: [few]}", "credit.waypoint: rules needs query or page"),
        ("waypoint: {most_names: 0}", "waypoint.most_names: expected at least 1, got 0"),
        ("format: {most_names: 3}", "format.most_names: unknown key"),
    ],
)
def test_options_that_cannot_work_are_refused(value, said):
    with pytest.raises(CardError, match=said):
        load_recipe("tiny-grpo", [f"credit={{outcome: 1, {value}}}"])


# -- searchers that spray ------------------------------------------------------------------------------------------


class Sprayed:
    """Searches of a world by rules that look for no evidence, and the coverage that they earn."""

    def __init__(self, size):
        self.world = build_world(WorldSpec("simple", size=size, seed=0, split="validation"))
        self.retriever = build_in_memory(self.world.passages)
        self.titles = sorted(passage.title for passage in self.world.passages)
        self.points = {q.id: waypoints_of(q) for q in self.world.questions}
        self.questions = [q for q in self.world.questions if self.points[q.id]]
        self.names = Names.of(self.world.questions)

    def named(self, text):
        return [word for word in re.findall(r"\b[A-Z][a-z]+\b", text) if word in self.titles]

    def episode(self, question, query, turns=4):
        """Returns the searches of an episode whose queries are made of names seen so far, pages not found yet first."""
        seen, found, searches = dict.fromkeys(self.named(question.text)), set(), []
        for turn in range(1, turns + 1):
            text = query(question, [name for name in seen if name not in found] or list(seen))
            (hits,) = self.retriever.search([text], 3)
            searches.append(Searched(turn, text, tuple(hits)))
            seen |= dict.fromkeys(
                name for hit in hits for name in self.named(f"{hit.passage.title} {hit.passage.text}")
            )
            found |= {hit.passage.title for hit in hits}
        return searches

    def mean(self, query, rules=RULES):
        return np.mean(
            [coverage(self.points[q.id], self.episode(q, query), self.names, rules, 2) for q in self.questions]
        )


@pytest.fixture(scope="module")
def sprayed():
    return Sprayed(300)


@pytest.mark.slow
def test_spraying_names_does_not_pay(sprayed):
    rng = random.Random(0)

    def randomly(question, seen):
        return " ".join(rng.sample(sprayed.titles, 20))

    def repeated(question, seen):
        return question.text

    def everything(question, seen):
        return " ".join(seen)

    def blind(question, seen):
        return rng.choice(seen)

    exploring = np.mean([sprayed.mean(blind) for _ in range(5)])
    assert sprayed.mean(randomly) == 0
    assert sprayed.mean(repeated) == 0
    assert sprayed.mean(everything) <= exploring < 0.6
    assert sprayed.mean(everything, ["query", "page", "led"]) > exploring  # what the rule few is for
    assert sprayed.mean(repeated, ["page"]) > 0  # what the rule query is for


def test_following_the_path_earns_everything(sprayed):
    for question in sprayed.questions:
        titles = {norm(title): title for title in question.gold_titles}
        searches = []
        for turn, fact in enumerate(question.evidences, start=1):
            (hits,) = sprayed.retriever.search([titles[norm(fact.subject)]], 3)
            searches.append(Searched(turn, fact.subject, tuple(hits)))
        assert coverage(sprayed.points[question.id], searches, sprayed.names, RULES, 2) == 1, question

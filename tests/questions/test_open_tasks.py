"""Open tasks over worlds: gold answers score 1, and what reports state is counted against a judge by rules."""

import asyncio
import itertools
import random
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from searchgym.agents.base import load_agent
from searchgym.envs import find_env, load_task
from searchgym.envs.core import State
from searchgym.envs.reward import get_reward
from searchgym.errors import UsageError
from searchgym.questions.graphs.graph import Fact
from searchgym.questions.worlds.build import world_graph
from searchgym.questions.worlds.open_tasks import open_tasks, relation_words
from searchgym.questions.worlds.schema import RELATIONS, WorldSpec
from searchgym.records import Answer
from searchgym.rollout.engine import Engine
from searchgym.scoring.judges.judge import Checked
from searchgym.scoring.judges.kinds.rules import HEDGES, RuleJudge
from searchgym.scoring.judges.rubric import rubric_score

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from known_reports import KINDS, ReportWriter, agreement, kappa, other_wordings

WORLD = WorldSpec("simple", 60, 3, "train")
SMALL = {"world": {"size": 60, "seed": 3, "split": "train"}}

reward_rubric, reward_coverage = get_reward("rubric"), get_reward("coverage")


@pytest.fixture(scope="module")
def reports():
    return open_tasks(WORLD, "report", n=8)


@pytest.fixture(scope="module")
def several():
    return open_tasks(WORLD, "several", n=5)


def state(task, text):
    return State(task, answer=Answer(text), stop_reason="answer")


@pytest.mark.parametrize("level", ["simple", "full"])
def test_gold_answers_have_full_marks_and_nothing_else_has(level):
    world = WorldSpec(level, 60, 3, "train")
    tasks = open_tasks(world, "report", n=8)
    for task, other in itertools.pairwise(tasks):
        assert reward_rubric(state(task, task.answers[0])) == 1
        assert reward_rubric(state(task, other.answers[0])) < 1
    for task in open_tasks(world, "several", n=3):
        assert reward_coverage(state(task, task.answers[0])) == reward_rubric(state(task, task.answers[0])) == 1


def test_facts_are_the_graphs_and_stand_on_two_pages(reports):
    graph = world_graph(WORLD)
    triples = set(graph.triples())
    for task in reports:
        facts = [Fact(*row) for row in task.metadata["facts"]]
        assert len(facts) == 4 and triples.issuperset(facts)
        assert task.gold_titles is not None and len(task.gold_titles) == 2
        assert [fact.subject for fact in facts[:3]] == [facts[0].subject] * 3
        assert facts[0].object == facts[3].subject


def test_several_answers_are_all_subjects(several):
    graph = world_graph(WORLD)
    for task in several:
        subjects = set(task.gold_titles)
        found = [
            (value, relation)
            for value, relations in graph.back.items()
            for relation, names in relations.items()
            if set(names) == subjects
        ]
        assert found and 2 <= len(subjects) <= 6 and len(task.metadata["wanted"]) == len(subjects)
        one = task.metadata["wanted"][0][0]
        assert reward_coverage(state(task, one)) == pytest.approx(2 / (1 + len(subjects)))


def test_equal_specs_give_equal_tasks(reports):
    assert open_tasks(WORLD, "report", n=8) == reports
    assert open_tasks(WORLD, "report", n=8, seed=1) != reports
    with pytest.raises(UsageError, match=r"has \d+ tasks of kind several, but 1000 were requested"):
        open_tasks(WORLD, "several", n=1000)


def test_the_oracle_scores_1_in_the_environments():
    for name in ("Report-v0", "Several-v0"):
        task = load_task(find_env(name), questions={"n": 4} | SMALL)
        episodes = []
        asyncio.run(Engine(task, load_agent("oracle")).run(task.questions, episodes.append))
        assert [episode.reward for episode in episodes] == [1.0] * 4
        asyncio.run(Engine(task, load_agent("closed-book")).run(task.questions, episodes.append))
        assert [episode.reward for episode in episodes[4:]] == [0.0] * 4


@pytest.mark.parametrize("name", ["searchgym/Report-v0", "searchgym/Several-v0"])
def test_they_are_gymnasium_environments(name):
    env = gymnasium.make(name, questions={"n": 3} | SMALL)
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n": 0}, "questions.n: expected at least 1, got 0"),
        ({"facts": 1}, "questions.facts: expected at least 2, got 1"),
        ({"ask": "report"}, "questions.ask: unknown key; did you mean 'asks'"),
        ({"world": {"sede": 1}}, "questions.world.sede: unknown key; did you mean 'seed'"),
    ],
)
def test_wrong_options_are_named(options, says):
    with pytest.raises(UsageError, match=says):
        load_task(find_env("Report-v0"), questions=options)
    with pytest.raises(UsageError, match=r"questions\.n: unknown key"):
        load_task(find_env("World-v0"), questions={"n": 2})


@pytest.mark.parametrize("relation", sorted(RELATIONS))
def test_words_of_relations_tell_rivals_apart(relation):
    own = set(relation_words(relation, "simple"))
    kinds = (RELATIONS[relation].subject, RELATIONS[relation].object)
    assert own and own.isdisjoint(HEDGES) and relation in own
    for rival in RELATIONS.values():
        if rival.name != relation and (rival.subject, rival.object) == kinds:
            assert own.isdisjoint(relation_words(rival.name, "simple"))


# -- a judge is judged ---------------------------------------------------------------------------------------------


def test_rules_believe_what_is_stated_and_nothing_else(reports):
    """By construction: a statement in known words is found; errors, denials and alternatives never count."""
    writer, judge = ReportWriter(WORLD, random.Random(0)), Checked(RuleJudge())
    for task in reports:
        for kind in KINDS:
            report = writer.write(task, [kind] * 4)
            score = rubric_score(judge, task, report.text)
            if kind == "stated":
                assert (report.text, score) == (task.answers[0], 1)
            elif kind not in ("other wording", "pronoun"):
                assert score == 0 and report.stated == [False] * 4, report.text


def test_agreement_by_hand(reports):
    """Two reports of four facts: what is stated is found, what is said by pronouns is not, the wrong is not believed.

    Of 8 verdicts 6 are right (2 pronouns are missed): judge 2 yes, counts 4 yes; chance 1/4 1/2 + 3/4 1/2 = 1/2, kappa
    (6/8 - 1/2) / (1/2) = 1/2. The scores are off by 2 of 4 in the second report.
    """
    writer = ReportWriter(WORLD, random.Random(0))
    first = writer.write(reports[0], ["stated", "wrong", "stated", "left out"])
    second = writer.write(reports[1], ["pronoun", "denied", "pronoun", "left open"])
    found = agreement(Checked(RuleJudge()), reports[:2], [first, second])
    assert (found.verdicts, found.accuracy, found.kappa, found.score_error) == (8, 0.75, 0.5, 0.25)
    assert found.by_kind == {"stated": (2, 1.0), "pronoun": (2, 0.0)} | dict.fromkeys(KINDS[3:], (1, 0.0))


def test_kappa_by_hand():
    """Cohen's example: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: (0.7 - 0.5) / (1 - 0.5) = 0.4."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert kappa(pairs) == pytest.approx(0.4)
    assert kappa([(True, True)]) == 1


def test_other_wordings_name_both_ends():
    for relation in RELATIONS:
        assert all("{s}" in clause and "{o}" in clause and "|" not in clause for clause in other_wordings(relation))


def test_only_reports_are_written(several):
    with pytest.raises(UsageError, match="no report task"):
        ReportWriter(WORLD, random.Random(0)).write(several[0])


@pytest.mark.parametrize("name", ["Report-v0", "Several-v0"])
def test_the_cards_say_how_many_questions_there_are(name):
    card = find_env(f"searchgym/{name}")
    assert len(load_task(card).questions) == card.questions.count

"""Questions without an answer, as MuSiQue-Full pairs them with answerable ones: what applies to them, and what not."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from support import CARD, FailingRetriever, TitleRetriever, command_line, json_of

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.corpora.questions import write_questions
from searchgym.envs.core import State
from searchgym.envs.reward import Reward, get_reward, score_episode, unpaid
from searchgym.envs.task import load_task
from searchgym.errors import CardError, ScoringError
from searchgym.eval.compare import difference, t_interval
from searchgym.eval.formats.predictions import Prediction
from searchgym.eval.formats.score import score_answers, write_scored
from searchgym.eval.leaderboard.manifest import EPISODES
from searchgym.eval.leaderboard.table import COMPARED_FIELDS, _track
from searchgym.eval.leaderboard.tasks import Tasks
from searchgym.eval.report.board import HEAD, track_cells
from searchgym.eval.run_folder import read_finished
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import bootstrap_ci, question_rows, score_each
from searchgym.eval.suites.run import evaluate_suite, suite_means
from searchgym.options import kinds
from searchgym.records import Answer, Episode, Paragraph, Question, Triple
from searchgym.rollout.storage import read_episodes
from searchgym.scoring import score_question
from searchgym.train.loop.rollout import rollout_metrics

FULL = dataclasses.replace(CARD, scorer="musique")


def pair(n):
    """An answerable question and its twin, which lacks one gold paragraph; every second has another one."""
    gold = {"Gold": True, "Other": n % 2 == 0}
    pages = tuple(Paragraph(title, (f"{title} {n} is Ada.",), own) for title, own in gold.items())
    own = Question(f"q{n}", f"Who is {n}?", ("Ada",), paragraphs=pages, answerable=True)
    twin = dataclasses.replace(own, id=f"q{n}#unanswerable", paragraphs=pages[1:], answerable=False)
    return [own, twin]


PAIRS = [question for n in range(4) for question in pair(n)]


class SaysAda:
    """Says the gold answer to every question, and that all but the last can be answered."""

    def __init__(self):
        self.asked = 0

    async def run(self, question, io):
        self.asked += 1
        await io.step(Answer("Ada" if question.id[:2] != "q3" else "Eve", answerable=question.answerable))


def task(questions=PAIRS, **options):
    return load_task(FULL, questions=questions, **(options or {"distractors": True}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of the oracle, of one that is right three times of four, and of one that never is."""
    folder = tmp_path_factory.mktemp("runs")
    for name, agent in (("oracle", load_agent("oracle")), ("most", LoadedAgent("most", SaysAda())),
                        ("none", load_agent("closed-book"))):  # fmt: skip
        evaluate(task(), agent, folder / name)
    return folder


# -- refused before the work ---------------------------------------------------------------------------------------

DAMAGED = {
    "a pair that is cut": (FULL, PAIRS[:3], "1 of MuSiQue's questions have no twin"),
    "an unanswerable question alone": (FULL, PAIRS[1:2], "no twin"),
    "an id without its mark": (FULL, [dataclasses.replace(PAIRS[1], id="q0")], "answerable=False"),
    "an id twice": (CARD, [PAIRS[0], PAIRS[0]], "question ids that stand twice"),
    "ids that name other triples": (
        dataclasses.replace(CARD, scorer="2wiki"),
        [Question("q", "?", ("x",), evidences=(Triple("a", "r", "x"),), evidence_ids=(Triple("Q1", "s", "Q2"),))],
        "evidence_ids",
    ),
}


def scored_by(card, questions):
    base = load_task(card, questions=PAIRS, retriever=TitleRetriever())
    return base.asking(questions)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(("card", "questions", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_set_that_cannot_be_scored_is_refused_before_its_first_episode(tmp_path, card, questions, message, resume):
    agent, out = SaysAda(), tmp_path / "run"
    with pytest.raises(ScoringError, match=message):
        evaluate(scored_by(card, questions), LoadedAgent("own", agent), out, options=EvalOptions(resume=resume))
    assert agent.asked == 0 and not out.exists()


def test_a_part_that_cannot_be_scored_is_refused_before_the_first(tmp_path):
    agent = SaysAda()
    with pytest.raises(ScoringError, match=r"part second: .*no twin"):
        evaluate_suite("s", {"first": task(), "second": task(PAIRS[:3])}, LoadedAgent("own", agent), tmp_path / "out")
    assert agent.asked == 0 and not (tmp_path / "out").exists()


def test_a_part_that_cuts_pairs_is_refused_when_it_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    write_questions(tmp_path / "pairs.jsonl", PAIRS)
    ids = ", ".join(repr(question.id) for question in PAIRS[:3])
    (tmp_path / "cut.yaml").write_text(
        f"name: cut\nsummary: s\nparts:\n  - env: MuSiQue\n    n: 8\n    ids: [{ids}]\n"
        f"    options: {{questions: {tmp_path / 'pairs.jsonl'}, distractors: true}}\n"
    )
    with pytest.raises(CardError, match="suite cut, part MuSiQue: 1 of MuSiQue's questions have no twin"):
        Tasks(cards=[tmp_path / "cut.yaml"]).base("cut", "MuSiQue")


def test_predictions_for_a_set_that_cannot_be_scored_are_refused():
    with pytest.raises(ScoringError, match="no twin"):
        score_answers({q.id: Prediction(q.id, None) for q in PAIRS[:3]}, PAIRS[:3], "musique")


def test_ceilings_that_cannot_be_measured_are_refused_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_questions("bare.jsonl", [Question("q", "Who?", ("Ada",))])
    (tmp_path / "pages.jsonl").write_text('{"id": "0", "title": "Rome", "text": "Rome is a city."}\n')
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    run = command_line(monkeypatch, capsys)
    given = ["--questions", "bare.jsonl", "--corpus", "pages.jsonl", "--agent", "single-search", "--out", "run"]
    status, _, err = run("eval", *given, "--ceilings")
    assert status != 0 and "ceilings need questions that name their gold pages" in err
    assert not (tmp_path / "run").exists()


def test_ceilings_ask_the_questions_that_have_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_questions("pairs.jsonl", [dataclasses.replace(q, answerable=q.answerable) for q in PAIRS])
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    run = command_line(monkeypatch, capsys)
    scores = json_of(run("eval", "MuSiQue", "--questions", "pairs.jsonl", "--distractors", "--agent", "oracle",
                         "--ceilings", "--json"))  # fmt: skip
    assert (scores["em"], scores["ceilings"]["gold_pages"]["n"]) == (1.0, 4)
    assert scores["ceilings"]["reading_gap"] == 0.0


# -- what does not apply is absent ---------------------------------------------------------------------------------


def test_rows_of_questions_lack_what_does_not_apply_to_them(runs):
    rows = read_finished(runs / "most").rows
    assert {id: row.get("em") for id, row in rows.items()} == {
        **{f"q{n}": float(n < 3) for n in range(4)},
        **{f"q{n}#unanswerable": None for n in range(4)},
    }
    assert not any(name in rows["q0#unanswerable"] for name in ("em", "f1"))
    scores = json.loads((runs / "most" / "scores.json").read_text())
    assert (scores["n"], scores["answerable"], scores["em"], scores["cover_em"]) == (8, 4, 0.75, 0.75)
    assert scores["reward"] == 3 / 8  # what is paid, over all episodes
    assert scores["group_answer_sufficiency_em"] == 0.75


def test_runs_are_compared_over_the_questions_that_have_the_score(runs, monkeypatch, capsys):
    run = command_line(monkeypatch, capsys)
    (part,) = json_of(run("compare", runs / "oracle", runs / "none", "--json"))["parts"]
    first, second = part["runs"]
    assert (first["n"], first["mean"], first["interval"]) == (4, 1.0, [1.0, 1.0])
    assert (second["n"], second["mean"], second["difference"]["mean"]) == (4, 0.0, -1.0)
    assert (second["difference"]["losses"], second["difference"]["ties"]) == (4, 0)
    (part,) = json_of(run("compare", runs / "oracle", runs / "none", "--metric", "searches", "--json"))["parts"]
    assert part["runs"][0]["n"] == 8


def test_scored_predictions_lack_what_does_not_apply(tmp_path):
    found = {q.id: Prediction(q.id, Answer("Ada")) for q in PAIRS}
    scores, rows = score_answers(found, PAIRS, "musique")
    assert (scores["n"], scores["answerable"], scores["em"]) == (8, 4, 1.0)
    write_scored(tmp_path / "out", {}, found, PAIRS, scores, rows)
    read = read_finished(tmp_path / "out").rows
    assert sorted(id for id, row in read.items() if "em" in row) == [f"q{n}" for n in range(4)]
    assert difference(read, read).ties == 4


def test_means_over_a_suite_weigh_parts_by_scored_questions():
    parts = {
        "full": {"n": 8, "answerable": 4, "em": 1.0, "f1": 1.0},
        "other": {"n": 4, "em": 0.5, "f1": 0.25},
        "none": {"n": 5, "f1": None},
    }
    means = suite_means(parts)
    assert means["em_questions"] == (4 * 1.0 + 4 * 0.5) / 8
    assert means["em_parts"] == (1.0 + 0.5) / 2
    assert (means["f1_parts"], means["f1_questions"]) == (0.625, 0.625)
    assert suite_means({"none": parts["none"]}) == {}


def submitted(name, scored, folder, seed=None, **scores):
    """A checked submission, as far as the rows of a leaderboard look at it."""
    budgets = {"top_k": 3, "max_turns": 4, "max_queries": 1, "max_observation_words": 500}
    manifest = SimpleNamespace(
        name=name, agent="a", suite="s", part="p", training_seed=seed, retriever={"kind": "bm25"}, corpus_sha256=None,
        files={EPISODES: "0"}, **dict.fromkeys(COMPARED_FIELDS[1:], ""), models={}, **budgets,
    )  # fmt: skip
    return SimpleNamespace(folder=folder, manifest=manifest, scored=scored, scores=scores, judgement=None)


def test_rows_of_a_leaderboard_are_over_the_questions_that_have_the_score(runs, tmp_path):
    most, none = (score_each(task(), list(read_episodes(runs / name / "episodes.jsonl"))) for name in ("most", "none"))
    checked = [
        submitted("most", most, tmp_path, 0, em=0.75), submitted("most", most, tmp_path, 1, em=0.25),
        submitted("most", most, tmp_path, 2), submitted("none", none, tmp_path, em=0.0),
    ]  # fmt: skip
    track = _track(checked, [])
    assert [row.manifest.name for row in track.rows] == ["most", "none"]
    first, last = track.rows
    assert (first.mean("em"), first.over_seeds("em")) == (0.5, t_interval([0.75, 0.25]))  # two of three seeds have it
    assert (first.interval("em"), last.interval("em")) == (bootstrap_ci([1.0, 1.0, 1.0, 0.0]), [0.0, 0.0])
    assert (track.to_best["none"].mean, track.to_best["none"].losses) == (-0.75, 3)


def test_rows_have_the_score_of_the_questions_that_the_corpus_can_answer(runs, tmp_path):
    most = score_each(task(), list(read_episodes(runs / "most" / "episodes.jsonl")))
    right = [row["id"] for row in question_rows(most) if row.get("em") == 1.0]
    (row,) = _track([submitted("most", most, tmp_path, em=0.75)], [], frozenset(right[:2])).rows
    assert row.on_answerable == {"n": 2, "of": 4, "em": 1.0, "em_ci95": [1.0, 1.0]}
    track = _track([submitted("most", most, tmp_path, em=0.75)], [], frozenset(right[:2]))
    assert dict(zip(HEAD, track_cells(track)[0], strict=True))["EM, answerable"] == "1.000 (2 of 4)"
    assert track_cells(_track([submitted("most", most, tmp_path, em=0.75)], []))[0][HEAD.index("EM, answerable")] == ""


def test_rows_without_any_score_come_last_and_are_compared_with_none(tmp_path):
    alone = load_task(CARD, questions=pair(0)[1:], retriever=TitleRetriever())
    silent = Episode(f"{pair(0)[1].id}#0", pair(0)[1].id, "a", "e", stop_reason="turns")
    scored = score_each(alone, [silent])
    track = _track([submitted("a", scored, tmp_path), submitted("b", scored, tmp_path, em=0.0)], [])
    assert [row.manifest.name for row in track.rows] == ["b", "a"]
    assert (track.rows[1].interval("em"), track.rows[1].over_seeds("em"), dict(track.to_best)) == ([], None, {})
    assert track_cells(track)[1][5:7] == ["", ""]


# -- what is paid --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kinds(Reward))
def test_no_reward_pays_the_gold_of_a_question_without_an_answer(name):
    said = {"answer": Answer("Ada"), "stop_reason": "answer"}
    assert [get_reward(name)(State(question, **said)) for question in pair(0)] == [1.0, 0.0]
    assert "1 of 2 questions are unanswerable" in unpaid(pair(0))[0]


def test_rollouts_and_validations_have_the_em_of_the_evaluation(runs):
    episodes = list(read_episodes(runs / "most" / "episodes.jsonl"))
    scores = json.loads((runs / "most" / "scores.json").read_text())
    metrics = rollout_metrics(episodes)
    assert (metrics["em"], metrics["f1"]) == (scores["em"], scores["f1"]) == (0.75, 0.75)
    assert metrics["reward"] == 3 / 8
    assert all(("em" in e.scores) == ("#" not in e.question_id) for e in episodes)


@pytest.mark.parametrize("scorer", ["hotpotqa", "2wiki", "flashrag", "search_r1", "kilt"])
def test_every_scorer_leaves_out_a_question_without_an_answer(scorer):
    """MuSiQue's questions may be asked as a user's own, which have another scorer."""
    own, twin = pair(0)
    assert (score_question(own, Answer("Ada"), scorer)["em"], score_question(twin, Answer("Ada"), scorer)) == (1.0, {})


def test_a_failing_retriever_scores_nothing_without_an_answer():
    failing = task(retriever=FailingRetriever())
    own, twin = (score_episode(failing.reward, State(question, stop_reason="retriever_error")) for question in pair(0))
    assert (own, twin) == ((0.0, {"em": 0.0, "f1": 0.0}), (0.0, {}))

import asyncio
import dataclasses
import json

import pytest
from support import CARD, QUESTIONS, FailingRetriever, TitleRetriever

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.agents.scripted import gold_answer
from searchgym.envs.task import load_task
from searchgym.errors import RewardError, RunExistsError, ScoringError, UsageError
from searchgym.eval.evidence import find_golds, recall_by_turn
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import score_episodes
from searchgym.records import Answer, Question, Search
from searchgym.rollout.storage import read_episodes, sidecar

MANY = [Question(f"q{i}", "Who founded Beta?", ("Gamma" if i % 3 else "no one",)) for i in range(125)]


class SaysGamma:
    async def run(self, question, io):
        await io.step(Search(("Beta",)))
        await io.step(Answer("Gamma"))


def task(questions=QUESTIONS, **options):
    return load_task(CARD, questions=questions, **({"retriever": TitleRetriever()} | options))


def run(out, agent="oracle", the_task=None, progress=None, **options):
    loaded = load_agent(agent) if isinstance(agent, str) else LoadedAgent("own", agent)
    return evaluate(the_task or task(), loaded, out, options=EvalOptions(**options), progress=progress)


def test_a_run_folder_holds_what_was_run_and_what_came_out(tmp_path):
    scores = run(tmp_path / "run")
    assert (scores["n"], scores["em"], scores["f1"], scores["em_ci95"]) == (3, 1.0, 1.0, [1.0, 1.0])
    assert (scores["sp_f1"], scores["joint_em"], scores["response_tokens"]) == (1.0, 1.0, None)
    assert scores["searches"] == pytest.approx(4 / 3)
    assert scores["title_recall"][:2] == [pytest.approx((1 + 0.5 + 1) / 3), 1.0]
    assert json.loads((tmp_path / "run" / "scores.json").read_text()) == scores
    assert json.loads((tmp_path / "run" / "run.json").read_text())["agent"] == "oracle"
    assert len(list(read_episodes(tmp_path / "run" / "episodes.jsonl"))) == 3


def test_what_an_agent_does_not_produce_is_not_scored(tmp_path):
    scores = run(tmp_path / "run", "closed-book")
    assert scores["em"] == pytest.approx(1 / 3)
    assert scores["sp_em"] is None
    assert scores["joint_f1"] is None
    assert scores["title_recall"] == [0.0] * 5


def test_a_corrupted_answer_scores_zero(tmp_path):
    class Corrupted:
        async def run(self, question, io):
            await io.step(Answer(gold_answer(question).text + " x"))

    assert run(tmp_path / "run", Corrupted())["em"] == 0.0


@pytest.mark.slow
def test_batches_order_and_resume_change_no_bit(tmp_path):
    whole = run(tmp_path / "whole", SaysGamma(), task(MANY))
    assert whole["em"] == pytest.approx(83 / 125)
    for name, options in {"one": {"concurrency": 1}, "batches": {"concurrency": 124}}.items():
        assert run(tmp_path / name, SaysGamma(), task(MANY), **options) == whole
    assert run(tmp_path / "order", SaysGamma(), task(MANY[::-1])) == whole


class Interrupted(Exception):
    pass


def interrupt_after(count):
    def progress(done, total):
        if done == count:
            raise Interrupted

    return progress


@pytest.mark.slow_cases
@pytest.mark.parametrize("kept", [1, 60, 124])
def test_an_interrupted_run_goes_on(tmp_path, kept):
    whole = run(tmp_path / "whole", SaysGamma(), task(MANY))
    out = tmp_path / "cut"
    with pytest.raises(Interrupted):
        run(out, SaysGamma(), task(MANY), progress=interrupt_after(kept), concurrency=8)
    assert kept <= len(list(read_episodes(out / "episodes.jsonl"))) <= kept + 8  # the others of the batch may end too
    assert not (out / "scores.json").exists()
    with pytest.raises(RunExistsError, match="holds a run: --resume continues it"):
        run(out, SaysGamma(), task(MANY))
    with (out / "episodes.jsonl").open("ab") as file:
        file.write(b'{"id": "half')
    assert run(out, SaysGamma(), task(MANY), resume=True) == whole
    assert len(list(read_episodes(out / "episodes.jsonl"))) == 125


def test_a_finished_run_is_refused_and_can_be_overwritten(tmp_path):
    out = tmp_path / "run"
    before = run(out)
    with pytest.raises(RunExistsError, match="holds a run: --resume continues it, --overwrite replaces it"):
        run(out, "closed-book")
    assert json.loads((out / "scores.json").read_text()) == before
    assert run(out, resume=True) == before
    assert run(out, "closed-book", overwrite=True)["em"] != before["em"]
    with pytest.raises(UsageError, match="exclude each other"):
        run(out, resume=True, overwrite=True)


def test_retriever_errors_are_tried_again_and_leave_no_old_scores(tmp_path):
    out = tmp_path / "run"
    failing = FailingRetriever()
    options = {"retriever_deadline": 0.01}
    run(out, SaysGamma(), task(retriever=failing, **options))
    tokens = sidecar(out / "episodes.jsonl")
    tokens.write_bytes(b"kept")
    with pytest.raises(Interrupted):
        run(out, SaysGamma(), task(retriever=failing, **options), resume=True, progress=interrupt_after(1))
    assert not (out / "scores.json").exists()
    assert tokens.read_bytes() == b"kept"  # lines hold places in it
    failing.failures = 0
    scores = run(out, SaysGamma(), task(retriever=failing, **options), resume=True)
    assert (scores["n"], scores["retriever_errors"], scores["answered"]) == (3, 0, 1.0)
    kept = (out / "run.json").read_text()
    assert run(out, SaysGamma(), task(retriever=failing, **options), resume=True) == scores
    assert (out / "run.json").read_text() == kept


def test_a_run_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file/run cannot be created or written: Not a directory"):
        run(tmp_path / "file" / "run")


def test_resuming_something_else_is_refused(tmp_path):
    run(tmp_path / "run")
    with pytest.raises(UsageError, match=r"reward: 'reward_em' then, 'reward_f1' now"):
        run(tmp_path / "run", the_task=task(reward="f1"), resume=True)
    with pytest.raises(UsageError, match=r"agent: 'oracle' then, 'closed-book' now"):
        run(tmp_path / "run", "closed-book", resume=True)
    with pytest.raises(UsageError, match="questions_sha256"):
        run(tmp_path / "run", the_task=task(QUESTIONS[:2]), resume=True)


def test_foreign_folders_and_files_are_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(RunExistsError, match="holds files but not a run"):
        run(tmp_path)
    with pytest.raises(UsageError, match="is a file: the output must be a folder"):
        run(tmp_path / "mine.txt")
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_retriever_errors_are_counted_and_tried_again(tmp_path):
    failing = task(retriever=FailingRetriever(), retriever_deadline=0.01)
    scores = run(tmp_path / "run", SaysGamma(), failing)
    assert (scores["n"], scores["retriever_errors"], scores["em"]) == (3, 3, 0.0)
    healed = run(
        tmp_path / "run", SaysGamma(), task(retriever=type("FailingRetriever", (TitleRetriever,), {})()), resume=True
    )
    assert (healed["n"], healed["retriever_errors"], healed["em"]) == (3, 0, pytest.approx(1 / 3))


def test_a_reward_whose_sum_overflows_ends_no_run_with_infinity(tmp_path):
    """1e308 twice has no mean; in JSON it would be ``Infinity``, which is none."""
    with pytest.raises(RewardError, match=r"returned 1e\+308 on question"):
        run(tmp_path / "run", SaysGamma(), task(reward=lambda state: 1e308))
    assert not (tmp_path / "run" / "scores.json").exists()
    large = run(tmp_path / "large", SaysGamma(), task(reward=lambda state: 3e38))
    assert large["reward"] == pytest.approx(3e38) and "Infinity" not in (tmp_path / "large" / "scores.json").read_text()


def test_episodes_of_elsewhere_whose_sum_overflows_are_no_scores(tmp_path):
    run(tmp_path / "run", SaysGamma(), task())
    episodes = [dataclasses.replace(e, reward=1e308) for e in read_episodes(tmp_path / "run" / "episodes.jsonl")]
    with pytest.raises(ScoringError, match="reward: the mean over 3 questions is inf"):
        score_episodes(task(), episodes)


def test_a_bad_reward_stops_the_run_and_keeps_what_was_done(tmp_path):
    mended = False

    def reward(state):
        return 1.0 if mended or state.question.id == "q0" else float("nan")

    with pytest.raises(RewardError, match="question 'q1'"):
        run(tmp_path / "run", SaysGamma(), task(reward=reward), concurrency=1)
    assert [e.question_id for e in read_episodes(tmp_path / "run" / "episodes.jsonl")] == ["q0"]
    mended = True
    assert run(tmp_path / "run", SaysGamma(), task(reward=reward), resume=True)["reward"] == 1.0


def test_scores_need_one_episode_per_question(tmp_path):
    run(tmp_path / "run")
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    for wrong in (episodes[:2], [*episodes, episodes[0]]):
        with pytest.raises(ScoringError):
            score_episodes(task(), wrong)


class SaysNothing:
    async def run(self, question, io):
        await io.step(Answer("the"))


def test_only_the_official_scores_pay_golds_without_words(tmp_path):
    questions = [Question("q0", "Which band?", ("The The",)), Question("q1", "Who founded Beta?", ("Gamma", "!!!"))]
    silent = run(tmp_path / "silent", SaysNothing(), task(questions, reward="em"))
    assert (silent["em"], silent["reward"], silent["cover_em"]) == (0.5, 0.0, 0.0)  # HotpotQA's: the first gold
    assert [e.scores["em"] for e in read_episodes(tmp_path / "silent" / "episodes.jsonl")] == [0.0, 0.0]
    spoken = run(tmp_path / "spoken", SaysGamma(), task(questions))
    assert (spoken["em"], spoken["reward"], spoken["cover_em"]) == (0.5, 0.5, 0.5)
    assert silent["golds_without_words"] == spoken["golds_without_words"] == 2
    assert "golds_without_words" not in run(tmp_path / "usual")


def test_title_recall_by_hand():
    from searchgym.rollout.engine import Engine

    class OneOfTwo:
        async def run(self, question, io):
            await io.step(Search(("nothing",)))
            await io.step(Search(("Beta",)))
            await io.step(Answer(""))

    episodes = []
    asyncio.run(Engine(task(), LoadedAgent("a", OneOfTwo())).run(QUESTIONS, episodes.append))
    assert recall_by_turn(episodes, find_golds(QUESTIONS, episodes), 3).tolist() == [
        [0, 1, 1],
        [0, 0.5, 0.5],
        [0, 0, 0],
    ]
    bare = [Question(q.id, q.text, q.answers) for q in QUESTIONS]
    assert recall_by_turn(episodes, find_golds(bare, episodes), 3) is None

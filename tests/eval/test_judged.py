"""Judged runs: verdicts that do not count, resumed and interrupted judgings, calibration files, and the commands."""

import hashlib
import json
import math

import pytest
import scripted_judges
from scripted_judges import CALLS, Scripted, items, judged, questions, run_with
from support import CARD, QUESTIONS, TitleRetriever, command_line, json_of

from searchgym.agents.base import load_agent
from searchgym.corpora.questions import write_questions
from searchgym.envs.task import load_task
from searchgym.errors import CardError, DataError, DataMissingError, UsageError
from searchgym.eval.judged.identity import find_judge, identify
from searchgym.eval.judged.judging import judge_run, needs_no_judge, verdict_on
from searchgym.eval.judged.sample import read_sample, sample_sha256
from searchgym.eval.judged.verdicts import read_judgement
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import wilson_ci
from searchgym.records import Question
from searchgym.rollout.folders import model_folder
from searchgym.rollout.judge import BETTER, MEETS, VERIFY
from searchgym.rollout.models import weights_sha256
from searchgym.scoring.judges.judge import Checked
from searchgym.scoring.judges.kinds.rules import RuleJudge

ABSTENTIONS = [
    "I don't know.", "I don’t know the answer", "unknown", "Unknown.", "N/A", "", "  ", "...", "I am not sure",
    "The answer is unknown", "It cannot be determined.", "I could not find the answer", "No answer",
    "Sorry, I do not know", "insufficient information",
]  # fmt: skip


def scores_of(folder):
    return json.loads((folder / "scores.json").read_text())


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def test_the_score_by_hand(tmp_path):
    """Of two attempts each at three questions, 2, 1 and 0 are right; one of the wrong ones has no verdict."""
    answers = ["right 0", "right 1", "right 2", "wrong 3", "wrong 4", None]
    silent = next(s for s in range(1000) if scripted_judges.share_of(f"silent wrong 4 {s}") < 0.01)
    answers[4] = f"wrong 4 {silent}"
    folder = run_with(tmp_path / "run", answers, samples=2)
    scores = judge_run(folder, questions(3), Scripted(silent=0.01), items(4))
    assert scores["judged"] == pytest.approx((2 / 2 + 1 / 2 + 0) / 3) and scores["unjudged"] == 1
    assert scores["judged_ci95"][0] <= scores["judged"] <= scores["judged_ci95"][1] and scores == scores_of(folder)
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    assert [row["judged"] for row in rows] == [1.0, 0.5, 0.0]
    lines = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert [(v["id"], v["attempt"], v["verdict"]) for v in lines] == [
        ("q000", 0, True), ("q000", 1, True), ("q001", 0, True), ("q001", 1, False), ("q002", 0, None),
        ("q002", 1, False),
    ]  # fmt: skip
    assert [v["reason"] for v in lines] == [None] * 4 + ["it is silent", "no answer"]


@pytest.mark.parametrize("answer", [*ABSTENTIONS, None])
def test_abstentions_are_not_right_and_no_judge_is_asked(answer):
    question = Question("q", "Which?", ("unknown", "I don't know"))
    assert verdict_on(Checked(Scripted(lenient=1.0)), question, answer)[0] is False
    assert CALLS == []
    assert verdict_on(Checked(Scripted(lenient=1.0)), question, "I do not know, perhaps Rome")[0] is True


def test_an_answer_without_words_does_not_pass_a_negated_criterion():
    rubric = [{"text": "It says that Zor is a fish.", "says": [["Zor"], ["fish"]], "negated": True}]
    question = Question("q", "Write about Zor.", ("Zor",), metadata={"rubric": rubric})
    given = {
        text: verdict_on(Checked(RuleJudge()), question, text)[0] for text in ("Zor swims.", "Zor is a fish.", ".")
    }
    assert given == {"Zor swims.": True, "Zor is a fish.": False, ".": False}


@pytest.mark.parametrize(
    "reply",
    [
        math.nan,
        "yes",
        [1],
        ["ja"],
        ["yes and no"],
        [None],
        ["full marks"],
        RuntimeError("broken"),
        TimeoutError("late"),
    ],
)
def test_a_judge_that_cannot_be_read_gives_no_verdict(reply, tmp_path, monkeypatch):
    def meets(self, question, answer, criteria):
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(Scripted, "meets", meets)
    folder, _ = judged(tmp_path / "run", ["right 0", "wrong 1", None], Scripted(), items(4))
    scores, judgement = scores_of(folder), read_judgement(folder)
    assert (scores["judged"], scores["unjudged"]) == (0.0, 2)
    assert judgement.record.agreement()[0] == 0 and all(v.verdict is None for v in judgement.record.verdicts)
    assert all(v.reason for v in judgement.verdicts.values())


def test_a_resumed_judging_asks_for_what_is_missing_only(tmp_path):
    answers = [f"right {k}" for k in range(6)]
    folder, _ = judged(tmp_path / "run", answers, Scripted(), items(5, prefix="item "))
    assert len(CALLS) == 11
    whole, record = (folder / "verdicts.jsonl").read_bytes(), (folder / "judge.json").read_bytes()
    judge_run(folder, questions(6), Scripted(), items(5, prefix="item "))
    assert len(CALLS) == 11
    (folder / "verdicts.jsonl").write_bytes(whole[:-40])  # the last line was cut
    judge_run(folder, questions(6), Scripted(), items(5, prefix="item "))
    assert CALLS[11:] == ["right 5"]
    assert ((folder / "verdicts.jsonl").read_bytes(), (folder / "judge.json").read_bytes()) == (whole, record)
    run_with(tmp_path / "again", [*answers[:5], "wrong 5"])
    (folder / "episodes.jsonl").write_bytes((tmp_path / "again" / "episodes.jsonl").read_bytes())
    judge_run(folder, questions(6), Scripted(), items(5, prefix="item "))
    assert CALLS[12:] == ["wrong 5"] and scores_of(folder)["judged"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("after", [3, 8])
def test_an_interrupt_keeps_the_verdicts(after, tmp_path, monkeypatch):
    """After 3 calls in the sample, after 8 in the answers."""
    folder = run_with(tmp_path / "run", [f"right {k}" for k in range(6)])
    meets = Scripted.meets

    def interrupted(self, *asked):
        if len(CALLS) >= after:
            if after > 5:  # a killed process would leave as much
                assert len((folder / "verdicts.jsonl").read_text().splitlines()) == after - 5
            raise KeyboardInterrupt
        return meets(self, *asked)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Scripted, "meets", interrupted)
        judge_run(folder, questions(6), Scripted(), items(5, prefix="item "))
    assert "judged" not in scores_of(folder)
    if after < 5:
        with pytest.raises(DataMissingError, match="no verdicts"):
            read_judgement(folder)
    judge_run(folder, questions(6), Scripted(), items(5, prefix="item "))
    assert len(CALLS) == len(set(CALLS)) == 11 and scores_of(folder)["judged"] == 1.0


def test_another_judge_needs_overwrite(tmp_path):
    folder, _ = judged(tmp_path / "run", ["right 0", "wrong 1"], Scripted(), items(5))
    with pytest.raises(UsageError, match=r"another name and prompt: .*--overwrite replaces"):
        judge_run(folder, questions(2), Scripted(prompt="x"), items(5))
    with pytest.raises(UsageError, match="another calibration sample"):
        judge_run(folder, questions(2), Scripted(), items(6))
    judge_run(folder, questions(2), Scripted(lenient=1.0), items(6), overwrite=True)
    assert scores_of(folder)["judged"] == 1.0
    (folder / "scores.json").unlink()
    with pytest.raises(UsageError, match="holds no finished run"):
        judge_run(folder, questions(2), Scripted(), items(6))


# -- the calibration sample -----------------------------------------------------------------------------------------

GOOD = {"question": "Who?", "golds": ["Ada"], "answer": "Ada", "right": True}


def test_the_shipped_sample_has_every_sort_of_answer():
    sample = read_sample()
    sorts = {item.kind for item in sample}
    assert len(sample) >= 100 and len(sorts) == 11 and all(sum(i.kind == s for i in sample) >= 7 for s in sorts)
    assert 0.25 < sum(item.right for item in sample) / len(sample) < 0.75
    assert not any(item.right for item in sample if item.kind in ("near_miss", "addressed", "abstention", "listing"))
    verdicts = {i.id: verdict_on(Checked(RuleJudge()), i.as_question(), i.answer)[0] for i in sample}
    assert all(verdicts[i.id] is i.right for i in sample if i.kind in ("exact", "alias", "addressed", "abstention"))


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ("{", r":2: not JSON"),
        ("[]", r":2: expected a JSON object"),
        (json.dumps(GOOD | {"label": True}), r":2: .*label.*unknown key"),
        (json.dumps(GOOD | {"anser": "x"}), r":2: .*anser.*did you mean 'answer'"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "right"}), r":2: .*right.*missing key"),
        (json.dumps(GOOD | {"right": 1}), r":2: .*right"),
        (json.dumps(GOOD | {"golds": []}), r":2: golds: expected gold answers"),
        (json.dumps(GOOD | {"golds": [" "]}), r":2: golds: expected gold answers"),
        (json.dumps(GOOD | {"question": " "}), r":2: question: expected text"),
        (json.dumps(GOOD | {"id": "line 1"}), r":2: id 'line 1' stands twice"),
    ],
)
def test_a_bad_calibration_file_is_refused_with_file_and_line(bad, match, tmp_path):
    path = tmp_path / "sample.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + bad + "\n")
    with pytest.raises(DataError, match=rf"sample\.jsonl{match}"):
        read_sample(path)


def test_the_digest_of_a_sample_follows_what_is_judged(tmp_path):
    path, digests = tmp_path / "sample.jsonl", []
    for change in ({}, {"kind": "x"}, {"answer": "Eva"}, {"right": False}, {"golds": ["Ada", "A"]}):
        path.write_text(json.dumps(GOOD | change) + "\n")
        digests.append(sample_sha256(read_sample(path)))
    assert digests[0] == digests[1] and len(set(digests)) == 4
    with pytest.raises(DataMissingError):
        read_sample(tmp_path / "none")


# -- the commands ----------------------------------------------------------------------------------------------------


def test_eval_with_a_judge_and_judge_give_the_same(monkeypatch, capsys, tmp_path):
    searchgym, eval_ = command_line(monkeypatch, capsys), ("eval", "Demo", "--agent", "single-search", "--out")
    status, out, err = searchgym(*eval_, tmp_path / "a", "--judge", "rules")
    count, interval = read_judgement(tmp_path / "a").record.agreement()
    assert status == 0 and f"judge rules: agrees with {count} of" in err and "judged" in out and "unjudged" in out
    assert interval == wilson_ci(count, len(read_sample()))
    assert searchgym(*eval_, tmp_path / "b")[0] == 0
    row = json_of(searchgym("judge", tmp_path / "b", "--judge", "rules", "--json"))["runs"][0]
    assert row["agrees"] == count and row["judged"] == scores_of(tmp_path / "a")["judged"]
    assert scores_of(tmp_path / "a") == scores_of(tmp_path / "b")
    for name in ("verdicts.jsonl", "judge.json", "questions.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    status, _, err = searchgym(*eval_, tmp_path / "a", "--resume")
    assert status == 0 and "adds them to the scores" in err
    assert searchgym(*eval_, tmp_path / "a", "--overwrite")[0] == 0 and not (tmp_path / "a" / "judge.json").exists()


def test_an_interrupted_command_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    searchgym, run = command_line(monkeypatch, capsys), tmp_path / "run"
    run_eval = ("eval", "Demo", "--agent", "single-search", "--out", run, "--judge", "rules")
    meets, calls = RuleJudge.meets, []
    needed = sum(needs_no_judge(item.answer) is None for item in read_sample())

    def interrupted(self, *query):
        calls.append(query)
        if len(calls) == needed + 4:
            raise KeyboardInterrupt
        return meets(self, *query)

    with monkeypatch.context() as patch:
        patch.setattr(RuleJudge, "meets", interrupted)
        status, _, err = searchgym(*run_eval)
    assert status == 130 and f"interrupted: verdicts are kept in {run}; go on with --out {run} --resume" in err
    lines = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    assert sum(line["reason"] is None for line in lines) == 3 and "judged" not in scores_of(run)
    first = len(calls)
    monkeypatch.setattr(RuleJudge, "meets", interrupted)
    assert searchgym(*run_eval, "--resume")[0] == 0
    left = 12 - len(lines)
    assert 0 < len(calls) - first <= left and "judged" in scores_of(run)


def test_own_questions_and_own_samples(monkeypatch, capsys, tmp_path):
    searchgym = command_line(monkeypatch, capsys)
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    evaluate(task, load_agent("oracle"), tmp_path / "run", options=EvalOptions())
    write_questions(tmp_path / "mine.jsonl", QUESTIONS)
    (tmp_path / "sample.jsonl").write_text(json.dumps(GOOD) + "\n")
    mine = ("--judge", "rules", "--calibration", tmp_path / "sample.jsonl", "--questions", tmp_path / "mine.jsonl")
    row = json_of(searchgym("judge", tmp_path / "run", *mine, "--json"))["runs"][0]
    assert (row["judged"], row["items"], row["agreement"]) == (1.0, 1, 1.0)
    write_questions(tmp_path / "mine.jsonl", QUESTIONS[:2])
    status, _, err = searchgym("judge", tmp_path / "run", *mine)
    assert status == 1 and "the run asked 3 questions, of which 2 are among the 2" in err


def test_a_suite_is_judged_part_by_part(monkeypatch, capsys, tmp_path):
    (tmp_path / "two.yaml").write_text(
        "name: two\nsummary: the bundled questions, twice\nparts:\n"
        "  - {env: Demo, name: first, n: 12}\n  - {env: Demo, name: second, n: 12}\n"
    )
    searchgym = command_line(monkeypatch, capsys)
    status, _, err = searchgym("eval", tmp_path / "two.yaml", "--agent", "closed-book", "--out", tmp_path / "run")
    assert status == 0, err
    rows = json_of(searchgym("judge", tmp_path / "run", "--judge", "rules", "--json"))["runs"]
    scores = scores_of(tmp_path / "run")
    assert len(rows) == 2 and scores["judged_parts"] == pytest.approx(sum(row["judged"] for row in rows) / 2)


def test_judges_are_named_in_several_ways_and_wrong_names_are_refused_before_anything_runs(
    monkeypatch, capsys, tmp_path
):
    assert identify(find_judge("rules"), find_judge("rules")).name == "rules"
    served = find_judge("http://127.0.0.1:9/v1#judge-7b?thinks=true")
    assert identify(served, served).name == "model judge-7b"
    own = find_judge("{kind: 'scripted_judges:Scripted', lenient: 0.5}")
    assert identify(own, own).name == "scripted_judges:Scripted" and own.lenient == 0.5
    with pytest.raises(CardError, match="--judge: secnds: unknown key; did you mean 'seconds'"):
        find_judge("{kind: model, model: tiny, secnds: 3}")
    with pytest.raises(DataMissingError, match="ruels"):
        find_judge("ruels")
    with pytest.raises(UsageError, match="--judge is empty"):
        find_judge("")
    searchgym = command_line(monkeypatch, capsys)
    ask = ("eval", "Demo", "--agent", "oracle", "--out", tmp_path / "run")
    assert searchgym(*ask, "--judge", "ruels")[0] == 2 and not (tmp_path / "run").exists()
    status, _, err = searchgym(*ask, "--calibration", tmp_path / "none.jsonl")
    assert status == 2 and "needs --judge" in err


def test_a_model_that_judges_has_the_digest_of_its_weights_and_prompts():
    kind = find_judge("tiny")
    checked = kind.open({})
    try:
        identity = identify(kind, checked.judge)
    finally:
        checked.close()
    prompts = json.dumps({"better": BETTER, "meets": MEETS, "verify": VERIFY}).encode()
    assert (identity.name, identity.prompt) == ("model tiny", hashlib.sha256(prompts).hexdigest())
    assert identity.weights == weights_sha256(model_folder("tiny"))


def test_the_calibration_error_is_that_of_the_judge(tmp_path):
    folder = run_with(tmp_path / "run", ["right 0", "wrong 1", "unknown", None], confidences={0: 0.9, 1: 0.9, 2: 0.4})
    scores = judge_run(folder, questions(4), Scripted(), items(2))
    assert scores["confident"] == 1.0  # of three answers
    assert scores["expected_calibration_error"] == pytest.approx((2 * abs(0.5 - 0.9) + 0.4) / 3)

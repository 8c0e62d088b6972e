"""Submissions with verdicts: recomputed, given again by rules, refused if damaged; rows whose judges differ."""

import json
import shutil

import pytest
from made_submissions import card_of, edit_manifest, make_run, submit
from scripted_judges import Scripted, items

from searchgym.corpora.files import sha256_file
from searchgym.errors import DataError, SubmissionError
from searchgym.eval.judged.identity import find_judge
from searchgym.eval.judged.judging import judge_run
from searchgym.eval.judged.sample import read_sample
from searchgym.eval.judged.verdicts import Verdict
from searchgym.eval.leaderboard.check import check_submission
from searchgym.eval.leaderboard.table import build_board
from searchgym.eval.leaderboard.tasks import Tasks
from searchgym.eval.leaderboard.verdicts import _fault
from searchgym.eval.report.board import board_page
from searchgym.eval.report.markdown import to_markdown

FILES = ("predictions.jsonl", "episodes.jsonl.gz", "verdicts.jsonl", "judge.json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A judged run, its suite's card, tasks that are loaded once, and a good submission."""
    folder = tmp_path_factory.mktemp("made")
    card = card_of(folder)
    run, tasks = make_run(folder / "run", card), Tasks(cards=[card])
    judge_run(run, tasks.base("small", "Demo").questions, find_judge("rules"), read_sample())
    return run, card, tasks, submit(run, card, folder / "good")


@pytest.fixture
def sub(made, tmp_path):
    shutil.copytree(made[3], tmp_path / "sub")
    return tmp_path / "sub"


def sealed(folder):
    """Makes the sums and seals of a submission again."""
    edit_manifest(folder, files={name: sha256_file(folder / name) for name in FILES if (folder / name).exists()})


def refused(made, folder, field, match):
    sealed(folder)
    with pytest.raises(SubmissionError, match=match) as caught:
        check_submission(folder, made[2])
    assert caught.value.field == field


def judged_submission(made, folder, judge, sample, name, seed=None, right=3):
    run = make_run(folder / f"{name} run", made[1], right=right)
    judge_run(run, made[2].base("small", "Demo").questions, judge, sample)
    return submit(run, made[1], folder / "board" / name, name=name, seed=seed)


def test_the_score_is_recomputed_from_the_verdicts(made):
    checked = check_submission(made[3], made[2])
    scores = json.loads((made[0] / "scores.json").read_text())
    assert {name: checked.scores[name] for name in ("judged", "judged_ci95", "unjudged")} == {
        name: scores[name] for name in ("judged", "judged_ci95", "unjudged")
    }
    assert checked.scores["judged"] == 1.0  # rules accept "<gold> x", which EM refuses
    assert checked.judgement.record.judge.name == "rules"


def test_another_judged_score_is_refused(made, sub):
    scores = json.loads((sub / "manifest.json").read_text())["scores"]
    edit_manifest(sub, scores=scores | {"judged": 0.5})
    refused(made, sub, "scores.judged", "the manifest says 0.5, its episodes give 1.0")


@pytest.mark.parametrize(
    ("damage", "field", "match"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:-20]], "verdicts.jsonl", "not JSON"),
        (lambda lines: lines[:-1], "verdicts.jsonl", "lacks the verdict on attempt 0 at question 'demo-12', of 1"),
        (lambda lines: [*lines, lines[0]], "verdicts.jsonl", "a second verdict"),
        (lambda lines: [lines[0].replace("demo-01", "demo-99"), *lines[1:]], "verdicts.jsonl", "no episode"),
        (lambda lines: [lines[0].replace("true", "1", 1), *lines[1:]], "verdicts.jsonl", "damaged"),
        (lambda lines: [lines[0].replace('": true', '": false', 1), *lines[1:]], "verdicts.jsonl", "rules says True"),
        (lambda lines: [lines[0].replace('": true', '": null', 1), *lines[1:]], "verdicts.jsonl", "rules says True"),
        (lambda lines: [json.dumps(json.loads(lines[0]) | {"sha256": "0" * 64}) + "\n", *lines[1:]], "verdicts.jsonl",
         "on another answer"),
    ],
)  # fmt: skip
def test_damaged_verdicts_are_refused(made, sub, damage, field, match):
    path = sub / "verdicts.jsonl"
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))
    refused(made, sub, field, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda record: record["verdicts"].pop(), "108 of 109 items"),
        (lambda record: record["verdicts"][0].update(verdict=False), "item 'exact-01': False, judge rules says True"),
        (lambda record: record["verdicts"][0].update(right=False), "not those of the sample"),
        (lambda record: record["judge"].update(prompt="0" * 64), "no such prompt"),
        (lambda record: record["judge"].update(options={"strict": True}), "strict: unknown key"),
        (lambda record: record["judge"].update(name="model tiny", weights="0" * 64), "other weights than the model"),
        (lambda record: record.update(judge="rules"), "damaged"),
    ],
)
def test_a_damaged_record_of_the_judge_is_refused(made, sub, change, match):
    record = json.loads((sub / "judge.json").read_text())
    change(record)
    (sub / "judge.json").write_text(json.dumps(record))
    refused(made, sub, "judge.json", match)


def test_verdicts_come_with_their_judge_or_not_at_all(made, sub):
    (sub / "judge.json").unlink()
    refused(made, sub, "files", "of a judged run verdicts.jsonl and judge.json")
    (sub / "verdicts.jsonl").unlink()
    refused(made, sub, "scores.judged", "the manifest says 1.0, its episodes give 'nothing'")


def test_a_wrong_answer_without_words_cannot_be_right(made, tmp_path):
    """Verdicts of a user's class are taken as they are, but not on what no judge is asked about."""
    folder = judged_submission(made, tmp_path, Scripted(lenient=0.5), items(20), "scripted")
    scored = check_submission(folder, made[2]).scored
    forged = Verdict(id="demo-01", attempt=0, verdict=True)
    assert _fault(forged, {("demo-01", 0): None}, scored).endswith("True, but no answer is never right")


def test_a_run_whose_verdicts_were_cut_makes_no_submission(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "run")
    path = tmp_path / "run" / "verdicts.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=r"lacks the verdict .*judge it again with `searchgym judge`"):
        submit(tmp_path / "run", made[1], tmp_path / "out")


def test_rows_tell_how_their_judges_differ(made, tmp_path):
    sample = read_sample()
    rows = {"a": (find_judge("rules"), sample), "b": (find_judge("rules"), sample), "c": (Scripted(), sample),
            "d": (Scripted(), items(20))}  # fmt: skip
    for number, (name, (judge, of)) in enumerate(rows.items()):
        judged_submission(made, tmp_path, judge, of, name, right=number + 1)
    submit(make_run(tmp_path / "plain", made[1], right=12), made[1], tmp_path / "board" / "e", name="e")
    board = build_board([tmp_path / "board"], made[2])
    (track,) = board.tracks
    assert not board.refused and [row.manifest.name for row in track.rows] == ["a", "b", "c", "d", "e"]
    assert track.judges["a"] == track.judges["b"] == "rules" and "e" not in track.judges
    yes = sum(verdict.verdict is True for verdict in track.rows[0].judgement.record.verdicts)
    assert f"disagrees with the judge of “a” on {yes} of {len(sample)} items" in track.judges["c"]  # it says no to all
    assert track.judges["d"].endswith("not comparable with the judge of “a”")
    page = to_markdown(board_page(board))
    assert "judged (95 %)" in page and "1.000 (1.000 to 1.000)" in page and "not comparable with the judge" in page
    assert track.rows[4].mean("judged") is None and track.rows[2].mean("judged") == 0.0


def test_seeds_of_one_row_have_one_judge(made, tmp_path):
    judged_submission(made, tmp_path, find_judge("rules"), read_sample(), "a", seed=0)
    shutil.move(tmp_path / "board" / "a", tmp_path / "board" / "a0")
    shutil.move(tmp_path / "a run", tmp_path / "a0 run")
    judged_submission(made, tmp_path, Scripted(), read_sample(), "a", seed=1)
    (error,) = build_board([tmp_path / "board"], made[2]).refused
    assert error.field == "judge.json"

"""Judges that differ: known biases, corrected differences, judges swapped under one name, and what is refused."""

import json

import numpy as np
import pytest
from scipy.stats import bootstrap
from scripted_judges import Scripted, items, judged, questions, run_with, share_of, swapped
from support import command_line, json_of

from searchgym.errors import DataError, UsageError
from searchgym.eval.compare import difference
from searchgym.eval.judged.drift import compare_judges, corrected_difference, judge_notes, read_judgements
from searchgym.eval.judged.identity import identify
from searchgym.eval.judged.judging import judge_run
from searchgym.eval.run_folder import read_finished

ANSWERS = [f"{'right' if k % 2 else 'wrong'} {k}" for k in range(300)]
"""Half of them are right."""
LENIENT = 0.3
"""Share of wrong answers that the lenient judge affirms."""
BIAS = LENIENT * 0.5
"""What the lenient judge says more often than the strict one where half of the answers are wrong."""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The same answers, judged by a strict and by a lenient judge on the same sample."""
    folder, sample = tmp_path_factory.mktemp("two"), items(400)
    return [
        judged(folder / name, ANSWERS, Scripted(lenient=lenient, prompt=name), sample)
        for name, lenient in (("strict", 0.0), ("lenient", LENIENT))
    ]


def drift_of(pairs):
    folders, runs = zip(*pairs, strict=True)
    first, second = read_judgements(folders, runs)
    return compare_judges(second, first)


def test_the_interval_of_the_bias_contains_the_known_one_and_corrects_the_difference(two):
    drift, (strict, lenient) = drift_of(two), [run for _, run in two]
    bias, low, high = drift.bias
    assert low <= BIAS <= high and high - low < BIAS  # and tells it from none and from twice as much
    assert low > 0 and drift.by == ("name", "prompt", "verdicts")
    share, least, most = drift.disagreement
    assert least <= BIAS <= most and share == drift.unlike / 400
    plain, corrected = difference(lenient.rows, strict.rows, "judged"), corrected_difference(lenient, strict, drift)
    assert plain.verdict == "better" and plain.low > 0.05  # a change of judge alone
    assert corrected.verdict == "not distinguishable" and corrected.mean == pytest.approx(plain.mean - bias)
    assert corrected.high - corrected.low > plain.high - plain.low


def test_the_bias_by_hand_and_its_interval_beside_scipys(two):
    drift, sample = drift_of(two), items(400)
    more = [item.right is False and share_of(item.answer) < LENIENT for item in sample]
    assert drift.unlike == sum(more) and drift.bias[0] == pytest.approx(sum(more) / 400)
    theirs = bootstrap((np.array(drift.signed, float),), np.mean, n_resamples=20_000, method="percentile",
                       rng=np.random.default_rng(7)).confidence_interval  # fmt: skip
    assert drift.bias[1:] == pytest.approx([theirs.low, theirs.high], abs=0.006)
    gaps = np.array([two[1][1].rows[id]["judged"] - two[0][1].rows[id]["judged"] for id in sorted(two[0][1].rows)])
    rng = np.random.default_rng(3)
    apart = gaps[rng.integers(300, size=(20_000, 300))].mean(1)
    apart -= np.array(drift.signed)[rng.integers(400, size=(20_000, 400))].mean(1)
    corrected = corrected_difference(two[1][1], two[0][1], drift)
    assert [corrected.low, corrected.high] == pytest.approx(np.quantile(apart, (0.025, 0.975)), abs=0.009)


def test_a_real_difference_survives_the_correction(two, tmp_path):
    """Of the second run, every fifth wrong answer is right now: a difference of 0.1, beside a bias of 0.15."""
    better = [f"right {k}" if k % 10 == 0 else answer for k, answer in enumerate(ANSWERS)]
    pair = judged(tmp_path / "better", better, Scripted(lenient=LENIENT, prompt="lenient"), items(400))
    corrected = corrected_difference(pair[1], two[0][1], drift_of([two[0], pair]))
    assert corrected.low <= 0.1 <= corrected.high and corrected.verdict == "better"


@pytest.mark.parametrize("judge", [Scripted(), Scripted(prompt="Is it right? Reply by yes or no.")])
def test_judges_that_agree_leave_the_difference_as_it_is(judge, tmp_path):
    first = judged(tmp_path / "a", ANSWERS[:50], Scripted(), items(100))
    second = judged(tmp_path / "b", [f"right {k}" for k in range(50)], judge, items(100))
    drift = drift_of([first, second])
    assert drift.unlike == 0 and drift.signed == (0,) * 100
    assert drift.disagreement[2] == pytest.approx(1.959964**2 / (100 + 1.959964**2), abs=1e-6)  # Wilson, 0 of 100
    assert corrected_difference(second[1], first[1], drift) == difference(second[1].rows, first[1].rows, "judged")
    assert drift.by == (() if judge == Scripted() else ("name", "prompt"))


@pytest.mark.parametrize(
    ("judge", "by"),
    [
        (Scripted(sha256="0" * 64), {"weights"}),
        (swapped(LENIENT), {"verdicts"}),
        (Scripted(lenient=LENIENT), {"name", "verdicts"}),
        (Scripted(silent=0.2), {"name", "verdicts"}),
    ],
    ids=["weights", "the same in all that is recorded", "options", "no verdicts"],
)
def test_a_judge_that_was_swapped_is_detected(judge, by, tmp_path):
    first = judged(tmp_path / "a", ANSWERS[:20], Scripted(), items(100))
    second = judged(tmp_path / "b", ANSWERS[:20], judge, items(100))
    drift = drift_of([first, second])
    assert by <= set(drift.by) and (drift.unlike > 0) == ("verdicts" in by)
    same_record = json.loads((first[0] / "judge.json").read_text())["judge"]
    if by == {"verdicts"}:
        assert same_record == json.loads((second[0] / "judge.json").read_text())["judge"]
        assert drift.by == ("verdicts",)
    assert f"differ by {', '.join(drift.by)}" in str(drift)


def test_a_swapped_prompt_alone_is_named_by_the_prompt():
    """The judge that opens has the prompts; the kind that names it, only the options."""
    one, two = (identify(Scripted(), Scripted(prompt=text)) for text in ("Is it right?", "Is it wrong?"))
    assert one.differences(two) == ["prompt"] and one.differences(one) == []
    assert len(one.prompt) == 64 and one.weights is None


def test_runs_are_compared_only_on_one_sample(two, tmp_path):
    folder, run = judged(tmp_path / "other", ANSWERS, Scripted(), items(400, prefix="other "))
    with pytest.raises(UsageError, match=r"other calibration samples, .* \(400 items\) and .*--calibration"):
        drift_of([two[0], (folder, run)])
    run_with(tmp_path / "none", ANSWERS)
    with pytest.raises(UsageError, match="has no verdicts on a calibration sample"):
        read_judgements([two[0][0], tmp_path / "none"], [two[0][1], read_finished(tmp_path / "none")])


def test_verdicts_that_were_cut_are_refused_with_the_line(tmp_path):
    folder, run = judged(tmp_path / "a", ANSWERS[:10], Scripted(), items(10))
    path = folder / "verdicts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 30])
    with pytest.raises(DataError, match=r"verdicts\.jsonl:10: not JSON"):
        read_judgements([folder], [run])
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    with pytest.raises(DataError, match="lacks the verdict on question 'q009'"):
        read_judgements([folder], [run])
    path.write_bytes(whole.replace(b'"verdict": true', b'"verdict": false'))
    with pytest.raises(DataError, match=r"judged is 1.0 in its row, 0.0 by its verdicts"):
        read_judgements([folder], [run])
    judge_run(folder, questions(10), Scripted(), items(10), overwrite=True)
    assert path.read_bytes() == whole


def test_the_command_refuses_then_corrects(monkeypatch, capsys, tmp_path):
    searchgym = command_line(monkeypatch, capsys)
    run_with(tmp_path / "a", ANSWERS)
    run_with(tmp_path / "b", ANSWERS)
    compare = ("compare", tmp_path / "a", tmp_path / "b", "--metric", "judged")
    status, _, err = searchgym(*compare)
    assert status == 2 and "has no verdicts on a calibration sample" in err and "searchgym judge" in err
    judge_run(tmp_path / "a", questions(300), Scripted(), items(400))
    assert searchgym(*compare)[0] == 2
    judge_run(tmp_path / "b", questions(300), swapped(LENIENT), items(400))
    status, _, err = searchgym(*compare)
    assert status == 0 and "the judges differ by verdicts; they disagree on" in err
    assert "The difference is corrected for this bias; without it is +0.1" in err
    part = json_of(searchgym(*compare, "--json"))["parts"][0]
    (measured,) = part["judges"]
    low, high = measured["bias"][1:]
    assert low <= BIAS <= high and measured["by"] == ["verdicts"]
    assert part["runs"][1]["difference"]["verdict"] == "not distinguishable"
    assert judge_notes([tmp_path / "a", tmp_path / "b"]) == []  # their records are equal


def test_a_comparison_by_another_score_notes_other_judges(two, monkeypatch, capsys):
    folders = [folder for folder, _ in two]
    (note,) = judge_notes(folders)
    assert "another name and prompt" in note and "--metric judged" in note
    status, _, err = command_line(monkeypatch, capsys)("compare", *folders)
    assert status == 0 and "--metric judged tells how the judges differ" in err

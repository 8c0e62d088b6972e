"""The study at a small size: both arms run, and the contrast is computed as by hand."""

import json

import partial
import pytest


@pytest.mark.study
def test_both_arms_run(tmp_path, monkeypatch):
    small = ["rollout.questions=2", "rollout.attempts=2", "max_generated_tokens=400", "validation.questions=2"]
    monkeypatch.setattr(partial, "VALUES", [*partial.VALUES, *small])
    monkeypatch.setattr(partial, "SECONDS", 0.01)
    rows = [partial.run_unit(arm, 1, tmp_path / arm) for arm in partial.ARMS]
    assert all(row["generated_tokens"] >= 400 and len(row["seconds"]) == row["steps"] for row in rows)


def test_the_contrast_is_that_by_hand(tmp_path):
    for arm, seconds, em in (("waits", [9.0, 8.0, 6.0, 99.0], 0.5), ("partial", [9.0, 3.0, 4.0, 99.0], 0.6)):
        for seed in (1, 2):
            row = {"arm": arm, "seed": seed, "seconds": seconds, "em": em, "staleness": 1}
            (tmp_path / f"{arm}-{seed}.json").write_text(json.dumps(row))
    result = partial.summary(tmp_path)
    assert result["seconds a step, waits"].startswith("7.000") and result["seconds a step, partial"].startswith("3.500")
    assert result["ratio"].startswith("2.000") and result["EM, partial less waits"].startswith("0.100")

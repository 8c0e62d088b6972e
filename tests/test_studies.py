"""Pages of finished studies: the verdict first, figures as in the raw record, tables as in the recorded rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import pytest

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies"
INDEXES = {"README.md", "methods/README.md", "log/README.md"}
READINGS = {"sample_questions/questions-read.md", "masked/masked-spans-read.md", "selfplay/selfplay-questions.md",
            "real_training/real-text-episodes.md", "real_models/episodes-read.md"}  # fmt: skip
PAGES = sorted(
    name
    for path in STUDIES.glob("*/*.md")
    if not (name := path.relative_to(STUDIES).as_posix()).startswith("log/") and name not in INDEXES | READINGS
)
PRINTED = {"masked/README.md": {"1.00", "1.02"}}
"""Figures that no entry of the record holds: searches per task, as masked_spans.py prints them."""
STUDENT = {5: 2.776, 6: 2.571, 10: 2.262}
"""Quantile 0.975 of Student's t, by number of pairs."""
ARMS = {
    "mask": {},
    "selfplay": {"neither": "sp-neither", "proposer": "sp-proposer", "waypoints": "sp-waypoint", "both": "sp-both"},
    "curriculum": {"curriculum": "curriculum", "uniform": "grpo"},
}
"""Names of rows on a page of studies/methods, to arms of the recorded trainings; by default equal."""


def text_of(name: str) -> str:
    return (STUDIES / name).read_text(encoding="utf-8")


def table(text: str, column: str) -> list[dict[str, str]]:
    """Returns the rows of the first table whose heading has the column."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|") and f" {column} |" in line)
    heads = [cell.strip() for cell in lines[start].strip("|").split("|")]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(heads, (cell.strip() for cell in line.strip("|").split("|")), strict=True)))
    return rows


def recorded(file: str) -> dict[str, list[float]]:
    """Returns the EM of each arm by seed, in order."""
    found: dict[str, dict[int, float]] = {}
    for line in text_of(file).splitlines():
        entry = json.loads(line)
        arm, _, seed = entry["name"].rpartition("-")
        if "em" in entry["row"]:
            found.setdefault(arm, {})[int(seed)] = entry["row"]["em"]
    return {arm: [scores[seed] for seed in sorted(scores)] for arm, scores in found.items()}


def interval(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Returns the mean of the paired differences and its t-interval."""
    gaps = [one - other for one, other in zip(first, second, strict=False)]
    reach = STUDENT[len(gaps)] * stdev(gaps) / math.sqrt(len(gaps))
    return [mean(gaps), mean(gaps) - reach, mean(gaps) + reach]


def same(shown: str, values: Sequence[float]) -> bool:
    """Tells whether a cell shows the values, rounded to three decimals."""
    figures = [float(figure) for figure in re.findall(r"-?\d+\.\d+", shown)]
    return len(figures) == len(values) and all(abs(a - b) < 0.00051 for a, b in zip(figures, values, strict=True))


def test_studies_are_found() -> None:
    assert len(PAGES) >= 20
    assert {name.partition("/")[0] for name in PAGES} | {"log"} == {
        path.name for path in STUDIES.iterdir() if path.is_dir() and path.name != "__pycache__"
    }


@pytest.mark.parametrize("name", PAGES)
def test_a_study_page_gives_its_verdict_first(name: str) -> None:
    text = text_of(name)
    parts = text.split("\n\n")
    assert parts[0].startswith("# ") and parts[0].endswith("?"), "the title is the question"
    assert parts[1].startswith("**Verdict.** ") and len(parts[1].splitlines()) <= 5
    assert len(text.split()) <= 1500
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert [heading.partition(",")[0] for heading in headings] == [
        "## Protocol", "## Run it again", "## What it does not say"
    ]  # fmt: skip
    assert text.index("\n|---") < text.index("## Protocol")
    assert "\nRecord: " in text
    link = f"]({name})"
    assert link in text_of("README.md"), "studies/README.md lists it"


@pytest.mark.parametrize("name", [name for name in PAGES if "-full-" in text_of(name)])
def test_figures_of_a_page_stand_in_its_record(name: str) -> None:
    text = text_of(name)
    record = "".join(
        (STUDIES / name).parent.joinpath(link).read_text(encoding="utf-8")
        for link in set(re.findall(r"\]\(([^)#]*log/[^)#]*\.md)", text))
    )
    figures = set(re.findall(r"\d+\.\d{2,}", text)) - PRINTED.get(name, set())
    assert sorted(figures - set(re.findall(r"\d+\.\d{2,}", record))) == []


def test_the_index_of_the_record_lists_every_entry_once() -> None:
    files = sorted(path.name for path in (STUDIES / "log").glob("20*.md"))
    assert sorted(re.findall(r"\]\((20[^)]*\.md)\)", text_of("log/README.md"))) == files
    for row in table(text_of("log/README.md"), "outcome"):
        assert f"]({row['date']}-" in row["subject"] and row["outcome"]


@pytest.mark.parametrize("name", ARMS)
def test_scores_of_methods_are_those_of_the_recorded_trainings(name: str) -> None:
    scores = recorded(f"methods/{name}.jsonl")
    page = text_of(f"methods/{name}.md")
    column = next(head for head in ("by seed, 0 to 4", "EM by seed", "by seed") if f" {head} |" in page)
    rows = table(page, column)
    assert len(rows) >= 2
    for row in rows:
        label = row["arm"].strip("`").partition(":")[0]
        values = scores[ARMS[name].get(label, label)]
        count = row[column].count(",") + 1
        assert same(row[column], values[:count]), label
        assert same(row["EM" if "mean" not in row else "mean"], [mean(values[:count])]), label


def test_contrasts_of_mask_are_those_of_the_recorded_trainings() -> None:
    scores = recorded("methods/mask.jsonl")
    rows = table(text_of("methods/mask.md"), "difference")
    assert len(rows) == 8
    for row in rows:
        first, second = re.findall(r"`([\w-]+)`", row["contrast, first : second"])
        seeds = 10 if "ten seeds" in row["contrast, first : second"] else 5
        found = interval(scores[first][:seeds], scores[second][:seeds])
        assert same(row["difference"], found[:1]) and same(row["95 %"], found[1:]), row


def test_the_field_run_is_that_of_the_recorded_trainings() -> None:
    scores = recorded("field/field.jsonl")
    rows = table(text_of("field/README.md"), "what it changes")
    assert len(rows) == 20
    for row in rows:
        arm = row["arm"].strip("`")
        assert same(row["EM"], [mean(scores[arm])]), arm
        if row["against"]:
            found = interval(scores[arm], scores[row["against"].strip("`")])
            assert same(row["difference"], found[:1]) and same(row["95 %"], found[1:]), arm


def test_masked_warm_starts_are_those_of_the_recorded_trainings() -> None:
    scores = {}
    for line in text_of("masked/masked.jsonl").splitlines():
        row = json.loads(line)["row"]
        for moment in ("warm", "trained"):
            scores[f"{row['arm']}, {moment}", str(row["seed"])] = row[f"{moment} em"]
    rows = table(text_of("masked/README.md"), "seed")
    for row in rows[:5]:
        for (column, seed), score in scores.items():
            assert seed != row["seed"] or same(row[column], [score])
    for moment in ("warm", "trained"):
        arms = [[scores[f"{arm}, {moment}", str(seed)] for seed in range(1, 6)] for arm in ("masked", "plain")]
        assert same(rows[5][f"masked, {moment}"], interval(*arms))

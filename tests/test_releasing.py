"""The workflows run what CI runs, and the next version is set everywhere."""

from __future__ import annotations

import datetime
import re
import shutil
from pathlib import Path

import pytest
import yaml
from test_packaging import module

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
release = module(ROOT / "requirements" / "release.py")


def commands_of(workflow: Path) -> set[str]:
    """Returns the commands of a workflow's jobs, once for each value of the matrix."""
    commands = set()
    for job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values():
        groups = job.get("strategy", {}).get("matrix", {}).get("group", [""])
        steps = [step["run"] for step in job["steps"] if "run" in step]
        commands |= {command.replace("${{ matrix.group }}", group) for command in steps for group in groups}
    return commands


def test_every_step_of_a_workflow_is_a_target_that_ci_runs():
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = {f"make {target}" for target in re.findall(r"^timed \d+m ([a-z-]+)", run, re.MULTILINE)}
    commands = set().union(*(commands_of(workflow) for workflow in WORKFLOWS))
    assert len(WORKFLOWS) == 3
    assert {command for command in commands if not command.startswith("mkdir upload")} == targets


def test_workflows_test_the_versions_that_setup_cfg_names():
    matrix = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text(encoding="utf-8"))
    assert matrix["python"] == named


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ["CHANGELOG.md", *release.PLACES]:
        for file in ROOT.glob(name):
            (tmp_path / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / file.relative_to(ROOT))
    return tmp_path


def test_a_version_is_set_everywhere_and_its_notes_follow(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    changelog = tree / "CHANGELOG.md"
    changelog.write_text(re.sub(r"(?s)## Unreleased\n.*?(?=## )", "", changelog.read_text()))
    release.bump(tree, "9.8.7", datetime.date(2030, 1, 2))
    texts = {file.name: file.read_text() for file in tree.rglob("*") if file.is_file() and file.name != "CHANGELOG.md"}
    assert len(texts) == 7
    assert all("9.8.7" in text for text in texts.values())
    with pytest.raises(SystemExit, match=r"no finished part about 9\.8\.7"):
        release.notes(tree, "9.8.7")
    changelog.write_text(changelog.read_text().replace("- \n", "- A fault.\n", 1))
    assert release.notes(tree, "9.8.7") == "# SearchGym 9.8.7\n\n### Fixed\n\n- A fault.\n"
    for version, words in (("9.8.7", "has a part about 9.8.7 already"), ("9.8", "three numbers")):
        with pytest.raises(SystemExit, match=words):
            release.bump(tree, version, datetime.date(2030, 1, 3))


def test_what_was_unreleased_becomes_the_part_of_the_version(tree: Path):
    changelog = tree / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0 (2026-11-29)\n\n- Old.\n")
    release.bump(tree, "9.8.7", datetime.date(2030, 1, 2))
    assert changelog.read_text() == (
        "# Changelog\n\n## 9.8.7 (2030-01-02)\n\n- New.\n\n## 0.1.0 (2026-11-29)\n\n- Old.\n"
    )


def test_a_place_without_a_version_is_named(tree: Path):
    (tree / "CITATION.cff").write_text("title: SearchGym\n")
    with pytest.raises(SystemExit, match=r"CITATION.cff: no version where one is expected"):
        release.bump(tree, "9.8.7", datetime.date(2030, 1, 2))


def test_the_notes_of_this_version_begin_with_its_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/searchgym")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://host")
    notes = release.notes(ROOT, "0.1.0")
    assert notes.startswith("# SearchGym 0.1.0\n") and "### Added" in notes
    assert "](https://host/someone/searchgym/raw/v0.1.0/docs/pictures/demo.png)" in notes


def test_the_changelog_of_the_first_version_is_short():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    part = changelog[changelog.index("## 0.1.0") :]
    assert len(part.splitlines()) <= 60
    assert re.findall(r"^### (\w+)", part, re.MULTILINE) == ["Added", "Changed", "Fixed", "Security"]


def test_renamed_keys_are_on_the_page_for_older_recipes():
    from searchgym.train.recipe.renamed import RENAMED

    page = (ROOT / "docs" / "trust" / "before_0_1_0.md").read_text(encoding="utf-8")
    for key in RENAMED:
        section = key.removeprefix("validation.").split(".")[0]
        assert f"`{section}" in page, f"{key}: not on the page"

"""Folders that are written: whole or not at all, made once, claimed by one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from searchgym.corpora.folders import appearing, cached, check_claim
from searchgym.errors import RunExistsError, UsageError


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "set"
    with appearing(out) as building:
        (building / "file").write_text("text")
        assert not out.exists()
    assert [path.name for path in out.parent.iterdir()] == ["set"]
    assert (out / "file").read_text() == "text"


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), appearing(tmp_path / "set") as building:
        (building / "file").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_process_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "set"
    with pytest.raises(RunExistsError, match="exists already"), appearing(out) as building:
        (building / "file").write_text("ours")
        out.mkdir()
        (out / "file").write_text("theirs")
    assert (out / "file").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [out]


def test_a_cached_folder_is_made_once(tmp_path: Path) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        folder.mkdir()

    assert cached(tmp_path / "home" / "abc", make) == cached(tmp_path / "home" / "abc", make)
    assert calls == [tmp_path / "home" / "abc"]


@pytest.mark.parametrize(
    ("files", "options", "error", "text"),
    [
        ([], {}, None, ""),
        ([".lock"], {"overwrite": False}, None, ""),
        (["run.json"], {"resume": True}, None, ""),
        (["run.json"], {"overwrite": True}, None, ""),
        ([], {"resume": True}, UsageError, "nothing to resume in .*: name the folder of a run"),
        (["other"], {}, RunExistsError, "holds files but not a run: choose another --out"),
        (["other"], {"resume": True}, RunExistsError, "holds files but not a run"),
        (["other"], {"overwrite": True}, RunExistsError, "holds files but not a run"),
        (["run.json"], {}, RunExistsError, "holds a run: --resume continues it, choose another --out"),
        (["run.json"], {"overwrite": False}, RunExistsError, "continues it, --overwrite replaces it"),
        ([], {"resume": True, "overwrite": True}, UsageError, "exclude each other"),
    ],
)
def test_claims(files: list[str], options: dict[str, bool], error: type | None, text: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    if error is None:
        check_claim(tmp_path, "run.json", "a run", **options)
    else:
        with pytest.raises(error, match=text):
            check_claim(tmp_path, "run.json", "a run", **options)


def test_a_file_is_no_claim(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="out is a file: the output must be a folder"):
        check_claim(tmp_path / "out", "run.json", "a run")

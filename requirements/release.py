"""Makes what a release consists of, and sets the version of the next one.

    python requirements/release.py dist [--out dist] [--dirty]   # make dist
    python requirements/release.py bump 0.1.1                    # make bump VERSION=0.1.1

`dist` writes the sdist, the wheel that is built from it, a software bill of materials of the CPU lock (CycloneDX), the
SHA-256 of each, and the release notes. Only files that git tracks take part, every time in an archive is that of the
last commit, and names are sorted: whoever builds a commit with the same lock gets the same bytes.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
PLACES: Final = {
    "setup.cfg": r"^(version = )\S+",
    "searchgym/version.py": r'^(__version__ = ")[^"]+',
    "CITATION.cff": r"^(version: )\S+",
    "notebooks/*.ipynb": r"(--branch v)\d+\.\d+\.\d+",
}
"""Files that name the version, and what stands before it there."""


def main() -> None:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    dist = commands.add_parser("dist", help="build the sdist, the wheel, the bill of materials and their hashes")
    dist.add_argument("--out", type=Path, default=ROOT / "dist")
    dist.add_argument("--dirty", action="store_true", help="build tracked files with changes that are not committed")
    commands.add_parser("bump", help="set the version everywhere").add_argument("version")
    given = parser.parse_args()
    if given.command == "dist":
        for path in build(given.out, given.dirty):
            print(path)
    else:
        bump(ROOT, given.version, datetime.date.today())


def git(*words: str) -> str:
    """Returns what a git command prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def build(out: Path, dirty: bool = False) -> list[Path]:
    """Writes the files of a release; returns their paths."""
    if not dirty and (changed := git("status", "--porcelain")):
        raise SystemExit(f"commit first, a release is what a commit holds; git status shows:\n{changed.rstrip()}")
    epoch = int(git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="searchgym-release-") as folder:
        tree, new = Path(folder) / "tree", Path(folder) / "dist"  # an interrupt leaves `out` as it was
        new.mkdir()
        for name in git("ls-files", "-z").split("\0")[:-1]:
            if (ROOT / name).is_file():  # not removed in the working tree
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, tree / name)
        sdist = packed(source_archive(tree, Path(folder)), new, epoch)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        stem = sdist.name.removesuffix(".tar.gz")
        made = [sdist, built_wheel(Path(folder) / stem, new, epoch), bill_of_materials(new)]
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
        (new / "SHA256SUMS").write_text(sums)
        (new / "NOTES.md").write_text(notes(ROOT, stem.removeprefix("searchgym-")), encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.move(path, out / path.name)) for path in sorted(new.iterdir())]


def source_archive(tree: Path, folder: Path) -> Path:
    """Returns setuptools' sdist of a tree; its times and owners are those of this moment."""
    script = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, str(folder)], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def packed(archive: Path, out: Path, epoch: int) -> Path:
    """Packs an sdist again with sorted names, one time, no owner, and rights that no umask changes."""
    target = out / archive.name
    with (
        tarfile.open(archive) as source,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as sink,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            if not member.isfile():
                continue
            content = source.extractfile(member)
            assert content is not None
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mtime, plain.mode = member.size, epoch, 0o644
            sink.addfile(plain, io.BytesIO(content.read()))
    return target


def built_wheel(tree: Path, out: Path, epoch: int) -> Path:
    """Returns the wheel of an unpacked sdist."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(tree.parent / "wheel"), str(tree)]
    # The umask of whoever builds would be in the rights of the files that setuptools writes.
    subprocess.run(command, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}, check=True, umask=0o022)
    (wheel,) = (tree.parent / "wheel").glob("*.whl")
    return Path(shutil.copy(wheel, out))


def bill_of_materials(out: Path) -> Path:
    """Writes the packages of the CPU lock with versions and hashes, as CycloneDX's JSON."""
    path = out / "searchgym.cdx.json"
    command = [Path(sys.executable).parent / "cyclonedx-py", "requirements", "--output-reproducible", "--of", "JSON"]
    subprocess.run([*command, "-o", path, ROOT / "requirements" / "cpu.txt"], check=True, stderr=subprocess.DEVNULL)
    return path


def bump(root: Path, version: str, day: datetime.date) -> None:
    """Sets the version in every file that names it, and in the CHANGELOG: what was unreleased, or else a new part."""
    if not VERSION.fullmatch(version):
        raise SystemExit(f"a version has three numbers, as in 0.1.1: got {version!r}")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if f"\n## {version} " in text:
        raise SystemExit(f"{changelog} has a part about {version} already")
    for pattern, before in PLACES.items():
        for path in sorted(root.glob(pattern)):
            old = path.read_text(encoding="utf-8")
            new, count = re.subn(before, rf"\g<1>{version}", old, flags=re.MULTILINE)
            if not count:
                raise SystemExit(f"{path}: no version where one is expected ({before})")
            path.write_text(new, encoding="utf-8")
    heading = f"## {version} ({day.isoformat()})\n"
    if "\n## Unreleased\n" in text:
        text = text.replace("## Unreleased\n", heading, 1)
    else:
        text = text.replace("## ", f"{heading}\n### Fixed\n\n- \n\n## ", 1)
    changelog.write_text(text, encoding="utf-8")
    print(f"version {version}: now write its part of CHANGELOG.md")


def notes(root: Path, version: str) -> str:
    """Returns a version's page in docs/releases, if there is one, and its part of the CHANGELOG.

    On GitHub, links to pictures are made absolute: the notes of a release have no folder.
    """
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(version)} .*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if match is None or re.search(r"^- *$", match[1], re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md has no finished part about {version}: write it, commit, and try again")
    page = root / "docs" / "releases" / f"{version}.md"
    text = f"{page.read_text(encoding='utf-8')}\n## Changes\n" if page.is_file() else f"# SearchGym {version}\n"
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        raw = f"{os.environ['GITHUB_SERVER_URL']}/{repository}/raw/v{version}/docs/"
        text = text.replace("](../", f"]({raw}")
    return f"{text}\n{match[1].strip()}\n"


if __name__ == "__main__":
    main()

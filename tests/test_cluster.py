"""The Slurm script of docs/do/cluster.md, with stand-ins for the commands of Slurm that note their arguments."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from searchgym.train.recipe.load import load_recipe

SCRIPT = Path(__file__).parent.parent / "docs" / "do" / "cluster.sbatch"
NOTE = """#!/bin/bash
{{
    printf '%s\\n' "{name}" "$@"
    echo "keys ${{#SEARCHGYM_ENGINE_KEY}} ${{#SEARCHGYM_LEARNER_KEY}}"
}} > "$NOTES/.$$"
mv "$NOTES/.$$" "$NOTES/{name}-$$"
if [ {name} = searchgym ]; then  # the training lasts until the other programs have been asked for
    while [ "$(ls "$NOTES" | wc -l)" -lt 3 ]; do :; done
fi
"""


@pytest.fixture
def submit(tmp_path):
    """Runs the script on made-up nodes; returns (status, standard error, arguments by program)."""
    programs, notes = tmp_path / "bin", tmp_path / "notes"
    programs.mkdir()
    for name in ("srun", "searchgym"):
        (programs / name).write_text(NOTE.format(name=name))
    (programs / "scontrol").write_text("#!/bin/bash\nprintf 'n%s\\n' 1 2 3\n")
    for program in programs.iterdir():
        program.chmod(0o755)

    def run(*settings, **variables):
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "NOTES": str(notes), "SLURM_JOB_NODELIST": "n[1-3]"}
        environment |= {"RECIPE": "tiny-grpo", "OUT": str(tmp_path / "run"), "SLURM_GPUS_ON_NODE": "2"} | variables
        done = subprocess.run(
            ["bash", SCRIPT, *settings], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        noted = sorted(file.read_text().splitlines() for file in notes.iterdir())
        return done.returncode, done.stderr, noted

    return run


def test_what_the_slurm_script_starts_where(submit, tmp_path):
    status, err, noted = submit("steps=3")
    assert status == 0, err
    training, ranks, servers = sorted(noted, key=lambda lines: (lines[0] == "srun", "n1" not in lines))
    assert servers[servers.index("--nodelist") + 1] == "n2,n3"
    assert servers[servers.index("--ntasks") + 1] == "2"
    assert ranks[ranks.index("--nodelist") + 1] == "n1"
    assert any("torchrun" in line for line in ranks)
    assert training[:3] == ["searchgym", "train", "tiny-grpo"]
    settings = training[3 : training.index("--out")]
    assert settings[-1] == "steps=3"
    recipe = load_recipe("tiny-grpo", settings)  # a recipe with these values is possible
    assert recipe.rollout.sampler.servers == ["http://n2:8000", "http://n2:8001", "http://n3:8000", "http://n3:8001"]
    assert recipe.rollout.sampler.shared == str(tmp_path / "run.weights")
    assert (recipe.learner.backend.ranks, recipe.learner.backend.listen) == (2, "n1:29400")
    assert set(settings) <= set(servers)  # servers are set up by the same values
    keys = [re.fullmatch(r"keys (\d+) (\d+)", lines[-1]) for lines in noted]
    assert all(found and min(map(int, found.groups())) > 30 for found in keys)


def test_a_run_that_is_there_is_resumed(submit, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("")
    _, _, noted = submit()
    assert any("--resume" in lines for lines in noted)


def test_no_node_is_left_for_sampling(submit):
    status, err, noted = submit(LEARNER_NODES="3")
    assert (status, noted) == (2, [])
    assert "3 nodes, 3 of them for the learner: none is left for sampling" in err

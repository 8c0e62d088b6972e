"""Trainings whose ranks and servers start on a Ray cluster."""

import dataclasses
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack

import pytest

from searchgym.cli import main
from searchgym.errors import CardError, TrainingError, UsageError
from searchgym.retrieval import HttpRetriever
from searchgym.train.launch import cluster
from searchgym.train.launch.actors import ServerActor
from searchgym.train.launch.cluster import connected
from searchgym.train.launch.plan import Program, programs_of
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.launchers.here import Here
from searchgym.train.recipe.load import load_recipe

RANKS = ["learner.backend=deepspeed", "learner.backend.ranks=2", "learner.backend.zero=2"]
SERVERS = ["rollout.sampler=vllm", "rollout.sampler.replicas=2"]


def test_programs_are_ranks_servers_and_retrieval():
    recipe = load_recipe(
        "tiny-grpo",
        [
            "launch=ray",
            *RANKS,
            *SERVERS,
            "rollout.sampler.tensor_parallel=4",
            "launch.retrieval=demo",
            "launch.rank_cpus=3",
        ],
    )
    assert programs_of(recipe, recipe.launch, gpus=True) == [
        Program("rank", 0, 3, 1),
        Program("rank", 1, 3, 1),
        Program("server", 0, 1, 4),
        Program("server", 1, 1, 4),
        Program("retrieval", 0, 1, 0),
    ]
    assert [program.gpus for program in programs_of(recipe, recipe.launch, gpus=False)] == [0] * 5
    on_cpu = dataclasses.replace(recipe, learner=dataclasses.replace(recipe.learner, device="cpu"))
    assert [program.gpus for program in programs_of(on_cpu, on_cpu.launch, gpus=True)] == [0, 0, 4, 4, 0]
    alone = load_recipe("tiny-grpo", ["launch=ray", "launch.retrieval=demo"])
    assert [program.name for program in programs_of(alone, alone.launch, gpus=True)] == ["retrieval 0"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["launch=ray"], "launch ray starts ranks, servers or retrieval"),
        (["launch=slurm"], "launch"),
        (["launch.spread=true"], "launch.spread: unknown key"),
        (
            ["launch=ray", *RANKS, "learner.backend.listen=10.0.0.1:29400"],
            "learner.backend: launch ray starts ranks itself: leave listen out",
        ),
        (
            ["launch=ray", *SERVERS[:1], 'rollout.sampler.servers=["http://a:1"]'],
            "rollout.sampler: launch ray .* leave servers out",
        ),
        (
            ["launch=ray", *RANKS, "learner.backend.gpus=[0,1]"],
            "learner.backend: launch ray chooses the GPUs: leave gpus out",
        ),
        (["launch=ray", *SERVERS, "rollout.sampler.sleep=1"], "rollout.sampler: launch ray gives .* set sleep 0"),
        (["launch=ray", *RANKS, "launch.rank_cpus=0"], "launch.rank_cpus: expected above 0, got 0"),
        (["launch=ray", *RANKS, "launch.seconds=.inf"], "launch.seconds: expected a finite number"),
        (["launch=ray", *RANKS, "launch.adress=10.0.0.1:6379"], "did you mean 'address'"),
        (["launch=ray", "launch.retrieval=demo", "env_options={retriever: bm25}"], "choose one"),
    ],
)
def test_what_cannot_be_launched(values, said):
    with pytest.raises((CardError, UsageError), match=said):
        load_recipe("tiny-grpo", values)


def test_where_nothing_is_launched_the_recipe_is_as_it_was(tmp_path):
    recipe = load_recipe("tiny-grpo")
    with recipe.launch.launched(recipe, tmp_path) as placed:
        assert placed is recipe


def test_without_ray_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    recipe = load_recipe("tiny-grpo", ["launch=ray", *RANKS])
    with pytest.raises(UsageError, match=r"pip install -e .*\[ray\]"), recipe.launch.launched(recipe, tmp_path):
        pass


def test_ray_that_was_imported_without_tokens_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", sys)
    monkeypatch.delenv(cluster.MODE)
    recipe = load_recipe("tiny-grpo", ["launch=ray", *RANKS])
    with pytest.raises(UsageError, match="set RAY_AUTH_MODE=token before"), recipe.launch.launched(recipe, tmp_path):
        pass


def test_a_cluster_is_not_asked_without_its_token(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (cluster.RAY_TOKEN, cluster.TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)
    recipe = load_recipe("tiny-grpo", ["launch=ray", *RANKS, "launch.address=10.255.255.1:6379"])
    with pytest.raises(UsageError, match="set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"), connected(recipe.launch):
        pass


def command(monkeypatch, *words):
    """Runs a command; returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["searchgym", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_plan_is_printed_without_a_cluster(monkeypatch, capsys):
    assert (
        command(monkeypatch, "train", "tiny-grpo", "launch=ray", *RANKS, *SERVERS, "--plan", "--gpus", "4", "--json")
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["programs"]
    assert [row["program"] for row in rows] == ["training", "rank 0", "rank 1", "server 0", "server 1"]
    assert [row["GPUs"] for row in rows] == [None, 1, 1, 1, 1] and {row["node"] for row in rows} == {"this machine"}
    assert command(monkeypatch, "train", "tiny-grpo", "launch=ray", *RANKS, "--plan") == 0
    printed = capsys.readouterr().out
    assert "rank 1" in printed and "server" not in printed
    assert command(monkeypatch, "train", "tiny-grpo", *RANKS, "--plan", "--json") == 0
    assert "programs" not in json.loads(capsys.readouterr().out)


def test_a_server_of_an_actor_is_started_watched_and_ended(tmp_path):
    actor, log = ServerActor(), tmp_path / "logs" / "server0.log"
    assert actor.ended() is None
    code = "import os, time; print(os.environ['A'], flush=True); time.sleep(600)"
    actor.start(["-c", code], {"A": "said it"}, str(log))
    while log.read_text() != "said it\n":
        time.sleep(0.01)
    assert actor.ended() is None
    actor.stop()
    assert "exit code -15 (said it)" in actor.ended()
    actor.start(["-c", "raise SystemExit('no such model')"], {}, str(log))
    while actor.ended() is None:
        time.sleep(0.01)
    assert actor.ended() == f"exit code 1 (no such model); see {log}"


# -- real clusters -------------------------------------------------------------------------------------------------

SMALL = [
    *RANKS,
    "rollout.questions=2",
    "rollout.attempts=2",
    "validation.every=0",
    "checkpoint.every=1",
    "log.tensorboard=false",
    "log.curve=false",
    "optimizer.warmup_steps=0",
    "advantage.drop_zero_variance=false",
]
SAMPLED = [*SERVERS, "rollout.sampler.cache_gib=1", "rollout.sampler.max_context=1024"]
TOKEN = "a token of the tests, long enough"


@pytest.fixture
def nodes(monkeypatch):
    """Starts a cluster of nodes on this machine, with two CPUs each, and ends it."""
    ray = pytest.importorskip("ray", reason="extra ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    args = {"num_cpus": 2, "object_store_memory": cluster.STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=args)
    with ExitStack() as opened:
        opened.callback(made.shutdown)
        opened.callback(ray.shutdown)
        yield made, args


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def same(found, wanted):
    """Checks that two runs have the same metrics, but for times and memory."""
    assert [row["step"] for row in found] == [row["step"] for row in wanted]
    for row, other in zip(found[1:], wanted[1:], strict=True):
        for name in ("rollout/reward", "rollout/tokens", "learner/tokens_trained", "learner/updates"):
            assert row[name] == other[name], (row["step"], name)
        for name in ("loss", "gradient_norm", "entropy", "learning_rate"):  # with the bounds of test_deepspeed.py
            own, there = row[f"learner/{name}"], other[f"learner/{name}"]
            assert own == pytest.approx(there, rel=1e-4, abs=1e-4), (row["step"], name)
        assert row["probe/difference"] <= 1e-4 if row["learner/updates"] else True
    assert sum(row["learner/updates"] for row in found[1:]) >= 2


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")  # Ray, vLLM and their imports raise warnings that we cannot mend
def test_two_nodes_train_as_one_machine_does(nodes, tmp_path, monkeypatch, capsys):
    made, args = nodes
    made.add_node(**args)
    values = [*SMALL, *SAMPLED, "steps=5"]
    there = ["launch=ray", f"launch.address={made.address}", "launch.spread=true", f"rollout.sampler.shared={tmp_path}"]
    assert command(monkeypatch, "train", "tiny-grpo", *values, *there, "--plan", "--json") == 0
    planned = json.loads(capsys.readouterr().out)["programs"]
    assert len({row["node"] for row in planned[1:]}) == 2
    train(load_recipe("tiny-grpo", [*values, *there]), tmp_path / "ray")
    train(load_recipe("tiny-grpo", values), tmp_path / "here")
    same(rows_of(tmp_path / "ray"), rows_of(tmp_path / "here"))
    assert {path.name for path in (tmp_path / "ray.ray").iterdir()} == {"engine.yaml", "server0.log", "server1.log"}


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")
def test_a_lost_node_is_named_and_another_takes_its_work(nodes, tmp_path):
    made, args = nodes
    made.remove_node(made.add_node(**args))  # one that is gone before is nobody's fault
    args = args | {"num_cpus": 1}
    second = made.add_node(**args)
    there = ["launch=ray", f"launch.address={made.address}", "launch.rank_cpus=1", "launch.spread=true"]
    recipe = load_recipe("tiny-grpo", [*SMALL, *there, "steps=4"])

    def report(row):
        if row["step"] == 2:
            made.remove_node(second)

    with pytest.raises(TrainingError, match=r"node \S+ \(\w+\) is gone, and with it rank 1\. Continue with --resume"):
        train(recipe, tmp_path / "run", report=report)
    assert len(made.list_all_nodes()) == 1  # the cluster goes on
    made.add_node(**args)
    train(recipe, tmp_path / "run", resume=True)
    train(load_recipe("tiny-grpo", [*SMALL, "steps=4"]), tmp_path / "here")
    same(rows_of(tmp_path / "run"), rows_of(tmp_path / "here"))


@pytest.mark.engine
@pytest.mark.filterwarnings("default")
def test_a_cluster_of_its_own_serves_a_corpus_and_ends(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="extra ray")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)  # read once in a process
    recipe = load_recipe("tiny-grpo", ["launch=ray", "launch.retrieval=demo"])
    with recipe.launch.launched(recipe, tmp_path) as placed:
        url = placed.env_options["retriever"]
        ((hit, *_),) = HttpRetriever(url).search(["Sarn Islands"], 3)
        assert "Sarn" in hit.passage.text and placed.launch == Here()
    assert not ray.is_initialized()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/healthz", timeout=5)
    lost = load_recipe("tiny-grpo", ["launch=ray", "launch.retrieval=nowhere"])
    said = r"retrieval 0 on \S+ ended: exit code 2 \(error: .*nowhere"
    with pytest.raises(TrainingError, match=said), lost.launch.launched(lost, tmp_path):
        pass
    assert not ray.is_initialized()


@pytest.mark.engine
@pytest.mark.filterwarnings("default")
def test_what_a_cluster_lacks_is_said(nodes, tmp_path):
    made, _ = nodes
    there = ["launch=ray", f"launch.address={made.address}", "launch.rank_cpus=64", "launch.seconds=1"]
    recipe = load_recipe("tiny-grpo", [*SMALL, *there])
    said = r"no room for 2 programs within 1 s \(2 of 2 CPU free, 128 requested\): add nodes"
    with pytest.raises(UsageError, match=said), recipe.launch.launched(recipe, tmp_path):
        pass
    wrong = os.environ | {"RAY_AUTH_TOKEN": "another token, of somebody else"}  # read once in a process
    words = ["train", "tiny-grpo", *SMALL, *there, "--plan"]
    found = subprocess.run([sys.executable, "-m", "searchgym", *words], env=wrong, capture_output=True, text=True)
    *_, said = found.stderr.strip().splitlines()  # before it, what Ray's own code says
    assert found.returncode == 2 and said.startswith(f"error: launch.address {made.address}: ") and "oken" in said

"""Writes the artefacts of a version into tests/upgrade/VERSION, for later versions to read; see README.md beside it.

    OMP_NUM_THREADS=1 PYTHONPATH=.:tests python tests/upgrade/write_artefacts.py

Run it once, by the code of the release. The folder of an earlier version stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]

RECIPE = """
name: {name}
summary: four steps of a tiny model on the bundled questions
method: policy
model: ./model
env: searchgym/Demo-v0
agent: {agent}
steps: {steps}
env_options: {{max_turns: 2, top_k: 1, reward: "artefact_parts:searched"}}
rollout: {{questions: 2, attempts: 4}}
optimizer: {{lr: 1e-3}}
validation: {{every: {validation}, questions: 2, env_options: {{reward: em}}}}
checkpoint: {{every: 2}}
log: {{tensorboard: false, curve: false}}
"""
MORE = {
    "policy": "advantage: {estimator: gae}\ncritic: {optimizer: {lr: 1e-3}}\n",
    "adapter": "lora: {rank: 2, alpha: 4}\n",
    "team": "models: {planners: {roles: [planner]}, others: {}}\n",
}
AGENTS = {"searcher": ("Searcher", ["searcher"]), "pair": ("Pair", ["planner", "answerer"])}
SUITE = "name: demo\nsummary: the bundled questions\nparts:\n  - env: searchgym/Demo-v0\n    n: 12\n    sha256: {}\n"


def main() -> None:
    """Writes every artefact and ``expected.json``."""
    import searchgym

    out = HERE / searchgym.__version__
    if out.exists():
        raise SystemExit(f"{out} exists: artefacts of a version are written once")
    out.mkdir()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    os.chdir(out)
    write_models()
    expected = {"indexes": write_indexes(), "training": write_trainings(), "evaluation": write_evaluations()}
    command("world", "build", "--out", "world", "--size", "10", "--seed", "5")
    write_submission()
    from artefact_parts import interface, machine

    written = {"machine": machine(), "interface": interface()} | expected
    Path("expected.json").write_text(json.dumps(written, indent=1) + "\n")
    for name in (".lock", "curve.png", "heartbeat.json"):
        for file in out.rglob(name):
            file.unlink()


def command(*arguments: str) -> None:
    """Runs ``searchgym``."""
    subprocess.run([sys.executable, "-m", "searchgym", *arguments], check=True, stdout=subprocess.DEVNULL)


def write_models() -> None:
    """Writes a model of 1600 weights with its tokenizer, the agents and the recipes."""
    from artefact_parts import STEPS
    from made_models import tiny_qwen2, tiny_tokenizer

    sizes = {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    tiny_qwen2(vocabulary=352, num_key_value_heads=1, **sizes).save_pretrained("model")
    tiny_tokenizer().save_pretrained("model")
    for name, (workflow, roles) in AGENTS.items():
        folder = Path("agents") / name
        folder.mkdir(parents=True)
        (folder / "prompt.md").write_text("{question}\n")
        lines = [f"  {role}: {{prompt: prompt.md, fields: [question], max_tokens: 6, stop: []}}\n" for role in roles]
        head = f"name: {name}\nsummary: for tests\nworkflow: artefact_parts:{workflow}\nroles:\n"
        (folder / "card.yaml").write_text(head + "".join(lines))
    for name, more in MORE.items():
        agent = "agents/pair" if name == "team" else "agents/searcher"
        recipe = RECIPE.format(name=name, agent=agent, steps=STEPS, validation=2 * (name == "policy"))
        Path(f"{name}.yaml").write_text(recipe.lstrip() + more)


def write_indexes() -> dict[str, object]:
    """Writes indexes of the bundled corpus by BM25 and by vectors; returns their hits."""
    import artefact_parts

    from searchgym.corpora import read_passages
    from searchgym.envs.data import bundled_file
    from searchgym.retrieval import encoders
    from searchgym.retrieval.cards import find_retriever
    from searchgym.retrieval.index.build import build_index
    from searchgym.retrieval.index.index import load_index

    encoders.load_encoder = lambda card: artefact_parts.Letters()  # type: ignore[assignment,return-value]
    corpus = bundled_file("demo/corpus.jsonl")
    command("index", "build", str(corpus), "--out", "index-bm25")
    dense = {"kind": "dense", "encoder": artefact_parts.ENCODER}
    cards = {"flat": dense, "hnsw": dense | {"index": "hnsw", "links": 4}}
    for name, card in cards.items():
        build_index(read_passages(corpus), Path(f"index-{name}"), find_retriever(card))
    names = ("bm25", *cards)
    return {name: artefact_parts.hits_of(load_index(f"index-{name}", card=cards.get(name))) for name in names}


def killed(part: Callable[..., None], *given: str) -> None:
    """Runs a part of this file in a process that ends as if it were killed."""
    code = f"import write_artefacts; write_artefacts.{part.__name__}(*{given!r})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9


def train_and_die(name: str) -> None:
    """Trains by a recipe and ends without a word after some steps."""
    from artefact_parts import STOPPED

    from searchgym.train import load_recipe, train

    def report(row: dict[str, float]) -> None:
        if row["step"] == STOPPED:
            os._exit(9)

    train(load_recipe(f"{name}.yaml", []), Path(f"run-{name}"), report=report)


def evaluate_and_die() -> None:
    """Evaluates and ends without a word after five questions."""
    from searchgym.agents import load_agent
    from searchgym.envs import find_env, load_task
    from searchgym.eval import EvalOptions, evaluate

    def stop(done: int, _: int) -> None:
        if done == 5:
            os._exit(9)

    task = load_task(find_env("searchgym/Demo-v0"))
    evaluate(task, load_agent("random"), Path("eval-cut"), {}, EvalOptions(concurrency=1), progress=stop)


def write_trainings() -> dict[str, object]:
    """Writes run folders that were cut off; returns what this code makes of them when it resumes."""
    from artefact_parts import RECIPES
    from same_bits import digests, parts_of

    results = {}
    for name in RECIPES:
        killed(train_and_die, name)
        shutil.copytree(f"run-{name}", f"resumed-{name}", symlinks=True)
        command("train", f"{name}.yaml", "--out", f"resumed-{name}", "--resume")
        folder = Path(f"resumed-{name}")
        results[name] = {"sha256": digests(folder), "last": list(parts_of(folder / "metrics.jsonl").values())[-1]}
        shutil.rmtree(folder)
    return results


def write_evaluations() -> dict[str, object]:
    """Writes a finished evaluation and one that was interrupted; returns the episodes, and those of checkpoints."""
    from artefact_parts import RECIPES, episodes_of

    command("eval", "Demo-v0", "--agent", "random", "--concurrency", "1", "--out", "eval-finished")
    killed(evaluate_and_die)
    results = {"random": episodes_of(Path("eval-finished"))}
    for name in RECIPES:
        agent = "agents/pair" if name == "team" else "agents/searcher"
        model = f"run-{name}/checkpoints/last"
        command("eval", "Demo-v0", "--agent", agent, "--model", model, "--limit", "4", "--out", "eval")
        results[name] = episodes_of(Path("eval"))
        shutil.rmtree("eval")
    return results


def write_submission() -> None:
    """Writes a suite of the bundled questions, and a submission of the oracle's run."""
    from searchgym.envs import find_env, load_task
    from searchgym.eval.suites.cards import ids_sha256

    questions = load_task(find_env("searchgym/Demo-v0")).questions
    Path("suite.yaml").write_text(SUITE.format(ids_sha256(question.id for question in questions)))
    command("eval", "./suite.yaml", "--agent", "oracle", "--out", "eval")
    names = ("--name", "oracle", "--by", "the tests", "--suite-card", "suite.yaml")
    command("leaderboard", "add", "eval", *names, "--out", "submissions")
    shutil.rmtree("eval")


if __name__ == "__main__":
    main()

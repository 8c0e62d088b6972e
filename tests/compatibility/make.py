"""Writes the artefacts of this folder by the code of a commit; see README.md.

    git worktree add ../then COMMIT && cd ../then
    PYTHONPATH=. OMP_NUM_THREADS=1 python .../tests/compatibility/make.py .../tests/compatibility/COMMIT

The working folder is the checkout whose code writes: this file is read from a newer one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]
sys.path.append(str(HERE.parent))

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
log: {{tensorboard: false}}
"""
MORE = {
    "policy": "advantage: {estimator: gae}\ncritic: {optimizer: {lr: 1e-3}}\n",
    "adapter": "lora: {rank: 2, alpha: 4}\n",
    "team": "models: {planners: {roles: [planner]}, others: {}}\n",
}
AGENTS = {"searcher": ("Searcher", ["searcher"]), "pair": ("Pair", ["planner", "answerer"])}


def main() -> None:
    """Writes everything anew, or does a part in a process that ends as if it were killed."""
    if sys.argv[1] == "train":
        train_and_die(sys.argv[2])
    elif sys.argv[1] == "eval":
        evaluate_and_die()
    else:
        write_all(Path(sys.argv[1]).resolve())


def write_all(out: Path) -> None:
    """Writes every artefact and ``expected.json`` into a folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    root = str(Path.cwd())
    os.environ["PYTHONPATH"] = os.pathsep.join([root, str(HERE)])
    sys.path.insert(0, root)
    os.chdir(out)
    write_models()
    expected = {"indexes": write_indexes(), "training": write_trainings(), "evaluation": write_evaluations()}
    command("world", "build", "--out", "world", "--size", "10", "--seed", "5")
    from artefact_parts import machine

    (out / "expected.json").write_text(json.dumps({"machine": machine()} | expected) + "\n")
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
    """Writes an index of the bundled corpus by BM25 and by vectors; returns what they find."""
    import artefact_parts
    from searchgym.corpora.retrieval.build import build_index

    from searchgym.corpora.passages import read_passages
    from searchgym.corpora.retrieval import encoders
    from searchgym.corpora.retrieval.cards import find_retriever
    from searchgym.corpora.retrieval.index import load_index

    encoders.load_encoder = lambda card: artefact_parts.Letters()
    corpus = Path(encoders.__file__).parents[2] / "demo" / "corpus.jsonl"
    command("index", "build", str(corpus), "--out", "index-bm25")
    dense = {"kind": "dense", "encoder": artefact_parts.ENCODER}
    for name, more in (("flat", {}), ("hnsw", {"index": "hnsw", "links": 4})):
        build_index(read_passages(corpus), Path(f"index-{name}"), find_retriever(dense | more))
    names = ("bm25", "flat", "hnsw")
    return {name: artefact_parts.hits_of(load_index(Path(f"index-{name}"))) for name in names}


def killed(*arguments: str) -> None:
    """Runs a part of this file that ends as if it were killed."""
    ended = subprocess.run([sys.executable, __file__, *arguments], check=False)
    assert ended.returncode == 9, ended


def train_and_die(name: str) -> None:
    """Trains by a recipe and ends without a word after some steps."""
    from artefact_parts import STOPPED

    from searchgym.train.recipe import load_recipe
    from searchgym.train.run import train

    def report(row: dict[str, float]) -> None:
        if row["step"] == STOPPED:
            os._exit(9)

    train(load_recipe(f"{name}.yaml", []), Path(f"run-{name}"), report=report)


def evaluate_and_die() -> None:
    """Evaluates and ends without a word after five questions."""
    from searchgym.agents.base import load_agent
    from searchgym.envs.registration import find_env
    from searchgym.envs.task import load_task
    from searchgym.eval.runner import evaluate

    def stop(done: int, _: int) -> None:
        if done == 5:
            os._exit(9)

    task = load_task(find_env("searchgym/Demo-v0"))
    evaluate(task, load_agent("random"), Path("eval-cut"), {}, concurrency=1, progress=stop)


def write_trainings() -> dict[str, object]:
    """Writes run folders that were cut off; returns what this code makes of them when it resumes."""
    from artefact_parts import RECIPES
    from same_bits import digests, parts_of

    found = {}
    for name in RECIPES:
        killed("train", name)
        shutil.copytree(f"run-{name}", f"resumed-{name}", symlinks=True)
        command("train", f"{name}.yaml", "--out", f"resumed-{name}", "--resume")
        folder = Path(f"resumed-{name}")
        found[name] = {"sha256": digests(folder), "last": list(parts_of(folder / "metrics.jsonl").values())[-1]}
        shutil.rmtree(folder)
    return found


def write_evaluations() -> dict[str, object]:
    """Writes a finished evaluation and one that was interrupted; returns the episodes, and those of a checkpoint."""
    from artefact_parts import RECIPES, episodes_of

    command("eval", "Demo-v0", "--agent", "random", "--concurrency", "1", "--out", "eval-finished")

    killed("eval")
    found = {"random": episodes_of(Path("eval-finished"))}
    for name in RECIPES:
        agent = "agents/pair" if name == "team" else "agents/searcher"
        model = f"run-{name}/checkpoints/last"
        command("eval", "Demo-v0", "--agent", agent, "--model", model, "--limit", "4", "--out", "eval")
        found[name] = episodes_of(Path("eval"))
        shutil.rmtree("eval")
    return found


if __name__ == "__main__":
    main()

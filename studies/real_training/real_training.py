"""What reinforcement learning adds on real text, beside the same tokens of other learning: arms, seeds, one table.

    python studies/real_training/real_training.py [ARM ...] --seeds 0 1 2 3 4 --home runs/smol --corpus corpus.json
        [--out runs/study] [--records FOLDER] [--set KEY=VALUE ...] [--json]

Arms: `grpo` (smol-grpo), `rejection` (as many episodes, the right ones learnt), `demonstrations` (oracle episodes of
the same questions, until the learner has read as many tokens as grpo's of the same seed), `permuted` (grpo with
rewards exchanged within groups, a check of the pipeline), `worlds` (grpo on generated pages), `selfplay`
(smol-selfplay: questions by a proposer, credit for waypoints), `selfplay-any` (the same, and questions of one page
among them). `warm` is the model that all start from. `--home` holds practice/, validation/ and test/ of
`searchgym questions select`. Each arm and seed is scored once, after its last step: on test/ and, if SEARCHGYM_DATA is
set, on HotpotQA's and 2WikiMultihopQA's questions, with and without searches. Records are small and enough for the
table: with --records, arms and seeds in it are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ladder import data_of, rules_of

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.cli.output import emit, emit_rows, say
from searchgym.corpora.files import iter_jsonl
from searchgym.envs import Task, find_env, load_task
from searchgym.eval import EvalOptions, evaluate, two_way_ci
from searchgym.eval.suites import load_suite, load_suite_tasks
from searchgym.rollout import read_episodes
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.models import Loading, opened_models
from searchgym.rollout.tokens import TokenFormat
from searchgym.train import Recipe, load_recipe, train
from searchgym.train.demonstrations.oracle import demonstrate_search
from searchgym.train.demonstrations.write import EPISODES, write_demonstrations

ARMS = ("warm", "grpo", "demonstrations", "rejection", "permuted", "worlds", "selfplay", "selfplay-any")
PERMUTED = "credit={searchgym.cli.pipeline.controls:Permuted: 1}"
RULES = rules_of("smol-grpo")
MAX_TOKENS = 64

Records = Mapping[tuple[str, int], dict[str, Any]]
"""What each arm and seed came to."""


def recipe_of(arm: str, seed: int, given: argparse.Namespace) -> Recipe:
    """Returns the recipe of an arm that asks questions."""
    values = [*data_of(given.home, RULES), f"seed={seed}", f"model={given.model}"]
    if arm in ("selfplay", "selfplay-any"):
        hops = ["proposer.hops=[1,2,3,4]"] if arm == "selfplay-any" else []
        return load_recipe("smol-selfplay", [*values, f"env_options={proposed(given.home)}", *hops, *given.set])
    if arm == "worlds":
        rules = ", ".join(f"{name}: {value}" for name, value in RULES.items())
        values += [
            "env=searchgym/WorldFull-v0",
            f"env_options={{questions: {{level: full, split: train, size: 2000, seed: {seed + 1}}}, {rules}}}",
            "validation.env_options={questions: {level: full, split: validation, size: 100, seed: 1}}",
        ]
    changed = {
        "permuted": [PERMUTED],
        "rejection": ["method=rejection", "loss.importance_cap=null", "rollout.resample=0"],
    }.get(arm, [])
    return load_recipe("smol-grpo", [*values, *changed, *given.set])


def proposed(home: Path) -> str:
    """Returns the environment of self-play: questions from the corpus, less the pages of all that is scored."""
    scored = [home / name / "questions.jsonl" for name in ("validation", "test")]
    if data := os.environ.get("SEARCHGYM_DATA"):
        scored += [Path(data) / name / "questions.json" for name in ("hotpotqa", "2wikimultihopqa")]
    options = {"corpus": str(home / "practice" / "corpus.jsonl"), "questions": {"hold_out": list(map(str, scored))}}
    return json.dumps(options | RULES)


def demonstrated(home: Path, model: str, folder: Path) -> int:
    """Writes oracle episodes of the training questions, each once; returns their number."""
    if not folder.exists():
        questions, corpus = home / "practice" / "questions.jsonl", home / "practice" / "corpus.jsonl"
        task = load_task(find_env("searchgym/Corpus-v0"), questions=str(questions), corpus=str(corpus), **RULES)
        tokenizer = load_tokenizer(model)
        form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
        write_demonstrations(demonstrate_search(task, form, len(task.questions)), folder, {"kind": "search-r1"})
    return sum(1 for _ in iter_jsonl(folder / EPISODES))


def demonstrations_recipe(given: argparse.Namespace, seed: int, tokens: float) -> Recipe:
    """Returns the recipe that learns oracle episodes until about as many tokens are read."""
    shown = given.out / "demonstrations"
    count = demonstrated(given.home, given.model, shown)
    spans = itertools.chain.from_iterable(e.contexts[0].spans for e in read_episodes(shown / EPISODES))
    each = sum(len(span.ids) for span in spans) / count
    batch = min(8, count)
    values = [f"model={given.model}", f"method.demonstrations={shown / EPISODES}", f"method.batch={batch}"]
    steps = max(1, round(tokens / each / batch))
    return load_recipe("smol-search", [*values, f"seed={seed}", f"steps={steps}", *given.shown])


def trained(arm: str, seed: int, given: argparse.Namespace, records: Records) -> Any:
    """Trains an arm; returns (checkpoint, what the training took)."""
    folder = given.out / f"{arm}-{seed}" / "train"
    if arm == "demonstrations":
        if ("grpo", seed) not in records:
            raise SystemExit(f"demonstrations, seed {seed}: run grpo of that seed first, its tokens are the budget")
        recipe = demonstrations_recipe(given, seed, records["grpo", seed]["tokens_read"])
    else:
        recipe = recipe_of(arm, seed, given)
    with contextlib.redirect_stdout(sys.stderr):
        result = train(recipe, folder, resume=(folder / "recipe.yaml").exists())
    rows = [row for row in result.rows if row["step"] > 0]
    took = {
        "steps": result.progress.step,
        "tokens_read": sum(row.get("learner/tokens_read", 0.0) for row in rows),
        "minutes": round(sum(row.get("time/draw", 0.0) + row.get("time/learn", 0.0) for row in rows) / 60, 1),
        "validation": [[row["step"], row["validation/em"]] for row in result.rows if "validation/em" in row],
        "sampled": [round(row["rollout/em"], 4) for row in rows if "rollout/em" in row],
    }
    return result.checkpoint, took


def tasks_of(home: Path, corpus: str) -> dict[str, Task]:
    """Returns the question sets that are scored, by name."""
    env = find_env("searchgym/Corpus-v0")
    questions = home / "test" / "questions.jsonl"
    tasks = {"generated": load_task(env, questions=str(questions), corpus=corpus, **RULES)}
    if os.environ.get("SEARCHGYM_DATA"):
        tasks |= load_suite_tasks(load_suite("wiki-real"), RULES)  # type: ignore[arg-type]  # names of its options
    return tasks


def scored(model: str, tasks: Mapping[str, Task], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns EM and F1 of each question, by set, for the agent and without searches."""
    found: dict[str, Any] = {}
    how = Loading(given.sampler, given.dtype, max_context=2048)
    protocol = next(iter(tasks.values())).rules.protocol
    with opened_models({"model": model}, protocol, how) as models:
        for name, agent_name in itertools.product(tasks, ("search-r1", "direct")):
            agent = with_max_tokens(load_agent(agent_name), MAX_TOKENS)
            out = folder / f"{name}-{agent_name}"
            options = EvalOptions(resume=(out / "run.json").exists())
            scores: dict[str, Any] = {
                **evaluate(tasks[name], agent, out, dict.fromkeys(agent.roles, models["model"]), options)
            }
            rows = {str(row["id"]): row for _, row in iter_jsonl(out / "questions.jsonl")}
            recall = scores["title_recall"]
            found[f"{name} {agent_name}"] = {
                "em": {id: row["em"] for id, row in sorted(rows.items())},
                "f1": round(scores["f1"], 4),
                "searches": round(scores["searches"], 3),
                "gold_titles": None if recall is None else round(recall[-1], 4),
                "legal": scores["legal"],
            }
    return found


def run_arm(arm: str, seed: int, given: argparse.Namespace, records: Records) -> dict[str, Any]:
    """Trains and scores an arm of a seed; returns its record."""
    say(f"{arm}, seed {seed} ...")
    took: dict[str, Any] = {"steps": 0, "tokens_read": 0.0, "minutes": 0.0, "validation": [], "sampled": []}
    model = given.model
    if arm != "warm":
        checkpoint, took = trained(arm, seed, given, records)
        model = str(checkpoint)
    began = time.perf_counter()
    scores = scored(model, tasks_of(given.home, given.corpus), given, given.out / f"{arm}-{seed}" / "scores")
    say(f"  scored in {time.perf_counter() - began:.0f} s")
    return {"arm": arm, "seed": seed, **took, "scores": scores}


def em_of(records: Records, arm: str, sets: Sequence[str]) -> dict[int, list[float]]:
    """Returns the EM of each question of some sets, in the same order everywhere, by the seeds of an arm."""
    found = {}
    for (name, seed), record in sorted(records.items()):
        if name == arm:
            parts = [record["scores"][own]["em"] for own in sets]
            found[seed] = [part[id] for part in parts for id in sorted(part)]
    return found


def paired(records: Records, first: str, second: str, sets: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the EM of two arms over the seeds that both have, (seeds, questions) float each.

    The model that was not trained stands beside every seed.
    """
    ems = {arm: em_of(records, arm, sets) for arm in (first, second)}
    for arm, other in ((first, second), (second, first)):
        if arm == "warm":
            (own,) = ems[arm].values()
            ems[arm] = dict.fromkeys(ems[other], own)
    seeds = [seed for seed in ems[first] if seed in ems[second]]
    return np.array([ems[first][seed] for seed in seeds]), np.array([ems[second][seed] for seed in seeds])


def table(records: Records) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns a row for each arm and set that all records have, and one for each contrast."""
    sets = [
        name for name in next(iter(records.values()))["scores"] if all(name in r["scores"] for r in records.values())
    ]
    arms = [arm for arm in ARMS if any(name == arm for name, _ in records)]
    rows = []
    for arm, name in itertools.product(arms, sets):
        own = [record for (other, _), record in sorted(records.items()) if other == arm]
        by_seed = [float(np.mean(em)) for em in em_of(records, arm, [name]).values()]
        row = {"arm": arm, "set": name, "seeds": len(own), "em": float(np.mean(by_seed))}
        row["by seed"] = [round(em, 3) for em in by_seed]
        row |= {key: float(np.mean([r["scores"][name][key] for r in own])) for key in ("f1", "searches")}
        row |= {key: float(np.mean([r[key] for r in own])) for key in ("tokens_read", "minutes")}
        rows.append(row)
    real = [name for name in sets if not name.startswith("generated") and name.endswith("search-r1")]
    contrasts = []
    for first, second in itertools.combinations([*[arm for arm in arms if arm != "warm"][::-1], "warm"], 2):
        for label, chosen in (("generated", ["generated search-r1"]), ("real", real)):
            ems = paired(records, first, second, chosen) if chosen and {first, second} <= set(arms) else None
            if ems is None or not len(ems[0]):
                continue
            difference = ems[0] - ems[1]
            mean, (low, high) = float(difference.mean()), two_way_ci(difference)
            verdict = "higher" if low > 0 else "lower" if high < 0 else "not resolved"
            contrasts.append(
                {"contrast": f"{first} less {second}", "set": label, "seeds": len(ems[0]), "em": mean, "low": low}
                | {"high": high, "verdict": verdict if len(ems[0]) > 1 else "one seed"}
            )
    return rows, contrasts


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="*", default=["warm", "grpo", "demonstrations", "rejection"], metavar="ARM")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--home", type=Path, default=Path("runs/smol"))
    parser.add_argument("--corpus", required=True, help="corpus that the generated questions are scored over")
    parser.add_argument("--model", default="smollm2-searcher")
    parser.add_argument("--sampler", default="transformers", help="of the scores; the recipe's is rollout.sampler")
    parser.add_argument("--dtype", default="bfloat16", help="of the scores; the recipe's is optimizer.autocast")
    parser.add_argument(
        "--shown", nargs="+", default=["optimizer.lr=1e-4"], metavar="KEY=VALUE", help="recipe values of demonstrations"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--records", type=Path, help="folder of records; default: --out")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe values of the arms that ask")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if unknown := [arm for arm in given.arms if arm not in ARMS]:
        parser.error(f"no such arm: {', '.join(unknown)}; there are {', '.join(ARMS)}")
    tasks_of(given.home, given.corpus)  # what is scored must be there before hours of training
    folder: Path = given.records or given.out
    folder.mkdir(parents=True, exist_ok=True)
    records: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        records[record["arm"], record["seed"]] = record
    for seed, arm in itertools.product(given.seeds, given.arms):
        if arm == "warm" and any(name == "warm" for name, _ in records):
            continue  # it was not trained: one seed is all
        if (arm, seed) not in records:
            records[arm, seed] = run_arm(arm, seed, given, records)
            building = folder / f".{arm}-{seed}.json"
            building.write_text(json.dumps(records[arm, seed]) + "\n", encoding="utf-8")
            building.replace(folder / f"{arm}-{seed}.json")
    rows, contrasts = table(records)
    if given.json:
        emit({"results": rows, "contrasts": contrasts}, True)
    else:
        emit_rows(rows, False, "arms")
        emit_rows(contrasts, False, "contrasts, over seeds and questions")


if __name__ == "__main__":
    main()

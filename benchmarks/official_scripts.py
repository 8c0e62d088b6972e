"""Comparison of the official scripts with this project's scores, on exported predictions.

    python benchmarks/official_scripts.py FOLDER [--python PYTHON] [--n 1000] [--seed 0] [--json]

FOLDER holds checkouts of the repositories, or only the files that are needed: hotpotqa/hotpot, Alab-NII/2wikimultihop,
StonyBrookNLP/musique, facebookresearch/KILT, RUC-NLPIR/FlashRAG; missing ones are skipped and reported. PYTHON runs
them and needs their packages: ujson, and for KILT rouge and nltk, for FlashRAG numpy and datasets. The predictions are
made up from a seed (made_predictions.py); with $SEARCHGYM_DATA, HotpotQA's script also gets the real questions there.
Figures are compared as the script prints them: 2WikiMultihopQA's in per cent with 2 decimals, MuSiQue's with 3. Exits
with 1 if one differs.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made_predictions import Made, hotpotqa_predictions, made

from searchgym.cli.output import emit_rows, say
from searchgym.corpora import read_questions
from searchgym.corpora.files import read_json, write_jsonl
from searchgym.corpora.questions import read_aliases
from searchgym.eval.formats import read_predictions, score_answers, write_predictions

Figures = dict[str, Any]
CLOSE = 1e-12
"""Maximum difference of figures that the script does not round, since it adds in another order."""


@dataclass(frozen=True)
class Official:
    """One official script."""

    repository: str
    file: str
    """Path of the script in its repository."""
    names: dict[str, str]
    """Names of figures in the script's output, by their names here; a dot leads into an object."""
    scale: float = 1.0
    """Factor of the script's figures."""
    decimals: int | None = None
    """Decimals to which the script rounds."""


OVERLAP = {"em": "em", "f1": "f1", "precision": "prec", "recall": "recall"}


def _prefixed(**prefixes: str) -> dict[str, str]:
    return {own + name: theirs + other for own, theirs in prefixes.items() for name, other in OVERLAP.items()}


SCRIPTS = {
    "hotpotqa": Official("hotpotqa/hotpot", "hotpot_evaluate_v1.py", OVERLAP | _prefixed(sp_="sp_", joint_="joint_")),
    "2wiki": Official(
        "Alab-NII/2wikimultihop",
        "2wikimultihop_evaluate_v1.1.py",
        OVERLAP | _prefixed(sp_="sp_", evidence_="evi_", joint_="joint_"),
        100.0,
        2,
    ),
    "musique": Official(
        "StonyBrookNLP/musique",
        "evaluate_v1.0.py",
        {
            "em": "answer_em",
            "f1": "answer_f1",
            "sp_f1": "support_f1",
            "group_answer_sufficiency_f1": "group_answer_sufficiency_f1",
            "group_support_sufficiency_f1": "group_support_sufficiency_f1",
        },
        decimals=3,
    ),
    "kilt": Official(
        "facebookresearch/KILT",
        "kilt/eval_downstream.py",
        {name: f"downstream.{name}" for name in ("em", "f1", "accuracy")},
    ),
    "flashrag": Official(
        "RUC-NLPIR/FlashRAG",
        "flashrag/evaluator/evaluator.py",
        {name: name for name in ("em", "f1", "precision", "recall", "acc")},
    ),
}
FLASHRAG = """
import sys
from flashrag.dataset.dataset import Dataset
from flashrag.evaluator import Evaluator
config = {"save_dir": ".", "save_metric_score": False, "save_intermediate_data": True, "dataset_name": "made",
          "metrics": ["em", "f1", "precision", "recall", "acc", "retrieval_recall"],
          "metric_setting": {"retrieval_recall_topk": 5}}
data = Dataset(config, sys.argv[1])
data.data = [item for item in data.data]
for item in data.data:
    item.choices = []
print(Evaluator(config).evaluate(data))
"""
"""What runs FlashRAG's evaluator, which has no script, on an exported file."""


# -- their figures -------------------------------------------------------------------------------------------------


def find_script(folder: Path, official: Official) -> Path | None:
    """Returns the folder of the repository in which the script lies, None if there is none below `folder`."""
    for found in sorted(folder.rglob(Path(official.file).name)):
        if found.as_posix().endswith(official.file):
            return found.parents[official.file.count("/")]
    return None


def theirs(format: str, root: Path, files: Sequence[Path], python: str) -> Figures:
    """Runs an official script.

    Args:
        format: Name of the format.
        root: Folder of its repository.
        files: Predictions, gold rows and, for 2WikiMultihopQA, aliases.
        python: The interpreter.

    Returns:
        What it prints, by the name of the figure.
    """
    official = SCRIPTS[format]
    command = [python, str(root / official.file), *map(str, files)]
    if format == "flashrag":
        command = [python, "-c", FLASHRAG, str(files[0])]
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=files[0].parent, env=environment)
    if done.returncode:
        sys.exit(f"{official.repository} failed on {files[0]}:\n{done.stderr[-2000:]}")
    return printed(done.stdout)


def printed(output: str) -> Figures:
    """Returns the object that ends an output, which may begin with warnings line by line."""
    lines = output.splitlines()
    for start in (number for number, line in enumerate(lines) if line.startswith("{")):
        with contextlib.suppress(SyntaxError, ValueError):
            return dict(ast.literal_eval("\n".join(lines[start:])))
    sys.exit(f"no figures in what the script printed:\n{output[-2000:]}")


def value_at(figures: Figures, name: str) -> float:
    """Returns a figure by its name, in which dots lead into objects."""
    value: Any = figures
    for key in name.split("."):
        value = value[key]
    return float(value)


# -- ours beside theirs --------------------------------------------------------------------------------------------


def write_files(folder: Path, format: str, rows: Made) -> list[Path]:
    """Writes gold rows, exported predictions and aliases; returns predictions, gold and, if there are any, aliases."""
    gold, aliases = folder / f"{format}-gold.json", folder / f"{format}-aliases.json"
    if format in ("hotpotqa", "2wiki"):
        gold.write_text(json.dumps(rows.gold), encoding="utf-8")
    else:
        gold = gold.with_suffix(".jsonl")
        gold.write_text("".join(json.dumps(row) + "\n" for row in rows.gold), encoding="utf-8")
    written = folder / f"{format}.{'jsonl' if gold.suffix == '.jsonl' else 'json'}"
    write_predictions(written, rows.predictions, read_questions(gold), format, wikipedia_ids=format == "kilt")
    if rows.aliases:
        write_jsonl(aliases, rows.aliases)
    return [written, gold, *([aliases] if rows.aliases else [])]


def ours(format: str, files: Sequence[Path]) -> Figures:
    """Returns this project's scores of a file of predictions."""
    questions = read_questions(files[1])
    names = {id: frozenset(own) for id, own in read_aliases(files[2]).items()} if len(files) > 2 else None
    return score_answers(read_predictions(files[0], questions), questions, format, names)[0]


def compared(name: str, format: str, mine: Figures, other: Figures) -> Iterator[dict[str, Any]]:
    """Yields a row for each figure."""
    official = SCRIPTS[format]
    for own, their in official.names.items():
        first, second = (mine[own] or 0.0) * official.scale, value_at(other, their)
        shown = first if official.decimals is None else round(first, official.decimals)
        yield {
            "predictions": name,
            "figure": own,
            "official": second,
            "ours": shown,
            "equal": "yes" if abs(shown - second) <= CLOSE else "NO",
        }


def cases(n: int, seed: int) -> Iterator[tuple[str, str, Made]]:
    """Yields name, format, and rows with predictions: made-up ones, and real questions where they are at hand."""
    for format in SCRIPTS:
        yield f"{format}, {n} made up", format, made(format, n, seed)
    real = Path(os.environ.get("SEARCHGYM_DATA", "")) / "hotpotqa" / "questions.json"
    if os.environ.get("SEARCHGYM_DATA") and real.is_file():
        rows = read_json(real)
        predictions = hotpotqa_predictions(random.Random(f"real/{seed}"), rows)
        yield f"hotpotqa, {len(rows)} real", "hotpotqa", Made(rows, predictions, [])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder")
    rows: list[dict[str, Any]] = []
    for name, format, own in cases(options.n, options.seed):
        official = SCRIPTS[format]
        root = find_script(options.folder.resolve(), official)
        if root is None:
            say(f"{name}: left out, {options.folder} holds no {official.file} (github.com/{official.repository})")
            continue
        say(f"{name} ...")
        with tempfile.TemporaryDirectory() as folder:
            files = write_files(Path(folder), format, own)
            rows += compared(name, format, ours(format, files), theirs(format, root, files, options.python))
    shown = rows if options.json else [row | {key: repr(row[key]) for key in ("official", "ours")} for row in rows]
    emit_rows(shown, options.json, "figures", "official scripts and ours")
    if not rows or any(row["equal"] != "yes" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()

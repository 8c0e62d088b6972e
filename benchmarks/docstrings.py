"""A random sample of docstrings, or of sentences of the pages, for a review by two readers.

    python benchmarks/docstrings.py --number 60 --seed 7
    python benchmarks/docstrings.py --pages --number 100 --seed 7

The first sentence of a docstring must make sense while the name is covered; the names are listed below the sample. One
reader writes what each means, a second compares that with the code.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Documented(NamedTuple):
    """A public symbol and its docstring."""

    kind: str
    """``module``, ``class``, ``function`` or ``field``."""
    name: str
    """Dotted path of the symbol below the package."""
    text: str


def documented(package: Path) -> Iterator[Documented]:
    """Yields the docstrings of a package's public modules, classes, functions, constants and fields."""
    for file in sorted(package.rglob("*.py")):
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if text := ast.get_docstring(tree):
            yield Documented("module", module, text)
        yield from _inside(tree.body, module)


def _inside(body: list[ast.stmt], prefix: str) -> Iterator[Documented]:
    """Yields the documented symbols in the body of a module or class, without private names."""
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name.startswith("_"):
                continue
            name, is_class = f"{prefix}.{statement.name}", isinstance(statement, ast.ClassDef)
            if text := ast.get_docstring(statement):
                yield Documented("class" if is_class else "function", name, text)
            if is_class:
                yield from _inside(statement.body, name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            string = following.value if isinstance(following, ast.Expr) else None
            if not isinstance(target, ast.Name) or target.id.startswith("_"):
                continue
            if isinstance(string, ast.Constant) and isinstance(string.value, str):
                yield Documented("field", f"{prefix}.{target.id}", string.value)


def sentences(root: Path) -> Iterator[Documented]:
    """Yields the sentences of README, ARCHITECTURE and the pages of docs/, without tables, lists and code."""
    for file in [root / "README.md", root / "ARCHITECTURE.md", *sorted((root / "docs").rglob("*.md"))]:
        text = re.sub(r"^```.*?^```$|<!--.*?-->", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n", text):
            if re.match(r"\s*(#|\||!\[)", paragraph):
                continue
            plain = " ".join(re.sub(r"^\s*[-*\d]+\.? ", "", paragraph, flags=re.MULTILINE).split())
            for sentence in re.split(r"(?<=[.!?]) (?=[A-Z`*\[])", plain):
                if len(sentence.split()) > 4 and sentence.endswith("."):
                    yield Documented("sentence", file.relative_to(root).as_posix(), sentence)


def main() -> None:
    """Prints a sample of docstrings, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parent.parent / "searchgym"
    parser.add_argument("package", nargs="?", type=Path, default=default, help="folder of a package")
    parser.add_argument("--pages", action="store_true", help="draw sentences of the pages instead")
    parser.add_argument("--number", type=int, default=100, help="docstrings or sentences to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    everything = list(sentences(options.package.parent) if options.pages else documented(options.package))
    sample = random.Random(options.seed).sample(everything, min(options.number, len(everything)))
    sys.stderr.write(f"{len(sample)} of {len(everything)} {'sentences' if options.pages else 'docstrings'} ...\n")
    if options.json:
        print(json.dumps({"of": len(everything), "results": [row._asdict() for row in sample]}))
        return
    for number, row in enumerate(sample, start=1):
        print(f"{number:3}  [{row.kind}]  {row.text.strip()}\n")
    for number, row in enumerate(sample, start=1):
        print(f"{number:3}  {row.name}")


if __name__ == "__main__":
    main()

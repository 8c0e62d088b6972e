"""Prints how many texts of the conformance set this project's parser, and optionally vLLM's, reads correctly.

    python -m searchgym.testing.dialects [--parser vllm] [--failures]

The columns are kinds of texts, see `searchgym.testing.dialects.runner`.
"""

from __future__ import annotations

import argparse
import sys

from searchgym.testing.dialects.parsers import searchgym_parse
from searchgym.testing.dialects.runner import DIALECTS, KINDS, lines, run
from searchgym.testing.dialects.vllm_parsers import not_read, vllm_parse


def main() -> int:
    """Prints the table; returns 1 if this project's parser reads a text wrongly, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parser", choices=["searchgym", "vllm"], default="searchgym", help="vllm adds its parsers")
    parser.add_argument("--failures", action="store_true", help="print each text that is read wrongly")
    options = parser.parse_args()
    table = run(searchgym_parse, list(DIALECTS))
    reasons = not_read() if options.parser == "vllm" else dict.fromkeys(DIALECTS, "")
    vllm_table = run(vllm_parse, [dialect for dialect in DIALECTS if dialect not in reasons])
    rows: list[tuple[str, ...]] = [("", *KINDS)]
    for dialect in DIALECTS:
        rows.append((dialect, *table.row(dialect)))
        if dialect not in reasons:
            rows.append((" vllm", *vllm_table.row(dialect)))
    print(lines(rows))  # noqa: T201
    for dialect, reason in reasons.items():
        if reason:
            print(f"{dialect}: {reason}")  # noqa: T201
    for failure in [*table.failures, *vllm_table.failures] if options.failures else []:
        print(f"\n{failure.case.id}\n  text     {failure.text!r}\n  right    {failure.case.expect}")  # noqa: T201
        print(f"  got      {failure.got}")  # noqa: T201
    return bool(table.failures)


if __name__ == "__main__":
    sys.exit(main())

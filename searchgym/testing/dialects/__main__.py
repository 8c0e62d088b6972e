"""Prints how much of the conformance set this project's parser reads rightly, or vLLM's tool parsers beside it.

python -m searchgym.testing.dialects [--parser vllm] [--failures]
"""

from __future__ import annotations

import argparse
import sys

from searchgym.testing.dialects.parsers import NOT_VLLM, VLLM, own_parse, protocol_of, vllm_parse
from searchgym.testing.dialects.runner import DIALECTS, KINDS, Table, lines, run


def main() -> int:
    """Prints the table; returns 1 if this project's parser failed on a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parser", choices=["searchgym", "vllm"], default="searchgym", help="vllm: both, line by line")
    parser.add_argument("--failures", action="store_true", help="print each text that was read wrongly")
    options = parser.parse_args()
    own = run(own_parse, [dialect for dialect in DIALECTS if protocol_of(dialect)])
    other = run(vllm_parse, list(VLLM)) if options.parser == "vllm" else Table()
    rows: list[tuple[str, ...]] = [("", *KINDS)]
    for dialect in DIALECTS:
        rows.append((dialect, *own.row(dialect)))
        if options.parser == "vllm" and dialect in VLLM:
            rows.append((" vllm", *other.row(dialect)))
    print(lines(rows))  # noqa: T201
    if options.parser == "vllm":
        print(*(f"{dialect}: {reason}" for dialect, reason in NOT_VLLM.items()), sep="\n")  # noqa: T201
        print("thought: vLLM's reasoning parsers, which take thoughts out first, are not run")  # noqa: T201
    for failure in [*own.failures, *other.failures] if options.failures else []:
        print(f"\n{failure.case.id}\n  text     {failure.text!r}\n  right    {failure.case.expect}")  # noqa: T201
        print(f"  got      {failure.got}")  # noqa: T201
    return bool(own.failures)


if __name__ == "__main__":
    sys.exit(main())

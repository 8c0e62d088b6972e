"""Conformance set for parsers of what models write: texts in seven dialects, each with the right action or refusal.

``run(parse)`` counts what a parser reads rightly; ``python -m searchgym.testing.dialects`` does so for this project.
Other projects may copy the folder, see `searchgym.testing.dialects.runner`.
"""

from .runner import (  # relative: the folder may be copied
    DIALECTS,
    KINDS,
    DialectCase,
    DialectTable,
    Failure,
    Parse,
    load,
    run,
)

__all__ = ["DIALECTS", "KINDS", "DialectCase", "DialectTable", "Failure", "Parse", "load", "run"]

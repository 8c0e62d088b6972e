"""Conformance set for parsers of model output: texts in seven dialects, each with the right action or refusal.

``run(parse)`` counts the texts that a parser reads correctly; ``python -m searchgym.testing.dialects`` does so for this
project's parser. Other projects may copy the folder, see `searchgym.testing.dialects.runner`.
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

"""Credit terms as a recipe would name them, for tests."""

from __future__ import annotations

from searchgym.options import Named, read
from searchgym.train.credit.term import Term


def terms_of(*names: str, **options: object) -> dict[str, Term]:
    """Returns credit terms: some with weight 1, others with a weight or options (``waypoint={"share": 0.3}``)."""
    return read_terms({**dict.fromkeys(names, 1), **options})


def read_terms(data: object) -> dict[str, Term]:
    """Returns the credit terms of a recipe's section ``credit``, those of users imported."""
    return read(Named[Term], data, "test").loaded()

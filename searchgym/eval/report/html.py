"""Pages as self-contained HTML files without scripts and without requests; texts of runs are always escaped."""

from __future__ import annotations

import base64
import re
from typing import Final

from searchgym.errors import UsageError
from searchgym.eval.report.blocks import Code, ReportPage, Table

UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters and halves of surrogate pairs: no text of a page, and some no UTF-8."""
NUMBER: Final = re.compile(r"[-+]?\d[\d,.]*( .*)?")
"""Pattern of cells that are set as numbers."""
NEEDS: Final = "pip install Jinja2 matplotlib"
"""Command that installs what pages need."""


def to_html(page: ReportPage) -> str:
    """Returns a page as HTML.

    Raises:
        UsageError: Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise UsageError(f"pages in HTML need Jinja2: {NEEDS}") from None
    templates = Environment(
        loader=PackageLoader("searchgym.eval", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.tests["code"] = lambda part: isinstance(part, Code)
    templates.filters["kind"] = lambda block: type(block).__name__
    templates.filters["data"] = lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    templates.filters["numbers"] = numeric_columns
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", templates.get_template("page.html.j2").render(page=page))


def numeric_columns(table: Table) -> list[bool]:
    """Tells, for each column, whether its cells are numbers."""
    columns = [[row[column] for row in table.rows if row[column]] for column in range(len(table.head))]
    return [bool(cells) and all(NUMBER.fullmatch(cell) for cell in cells) for cells in columns]

"""Pages that people read: the report of runs and the leaderboard, both made of the same blocks."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.eval.report.board import board_page
    from searchgym.eval.report.html import to_html
    from searchgym.eval.report.markdown import to_markdown
    from searchgym.eval.report.write import report_page, write_report

__all__ = ["board_page", "report_page", "to_html", "to_markdown", "write_report"]

__getattr__, __dir__ = lazy(
    __name__,
    {"board": "board_page", "html": "to_html", "markdown": "to_markdown", "write": "report_page write_report"},
)

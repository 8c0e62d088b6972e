"""The leaderboard: submissions, whose scores are all recomputed from their episodes, and the rows made of them."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.eval.leaderboard.check import check_submission
    from searchgym.eval.leaderboard.replay import replay_episodes, run_again
    from searchgym.eval.leaderboard.submission import About, write_submission
    from searchgym.eval.leaderboard.table import build_board

__all__ = ["About", "build_board", "check_submission", "replay_episodes", "run_again", "write_submission"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "check": "check_submission",
        "replay": "replay_episodes run_again",
        "submission": "About write_submission",
        "table": "build_board",
    },
)

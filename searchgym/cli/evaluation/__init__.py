"""The ``eval``, ``compare`` and ``leaderboard`` commands."""

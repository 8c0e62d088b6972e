"""The ``eval``, ``compare``, ``leaderboard`` and ``predictions`` commands."""

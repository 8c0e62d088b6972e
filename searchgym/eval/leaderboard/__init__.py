"""The leaderboard: submissions whose every score is computed again from their episodes, and the tables made of them."""

"""Faults of search engines, by a seeded schedule: rate limits, empty, stale, duplicate and injected results."""

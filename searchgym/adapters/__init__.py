"""Adapters to other projects' evaluations and trainers, each a module that imports its package when it is imported.

Every adapter runs the environment core or the episode engine of this package, so rules, budgets, observations and
rewards are the same wherever an episode runs; ``docs/do/adapters.md`` has a section for each.
"""

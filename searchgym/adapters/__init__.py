"""Adapters to other projects' evaluations and trainers, one module per project, which imports that project's package.

Every adapter runs the environment core or the episode engine of this package, so rules, budgets, observations and
rewards are the same wherever an episode runs; ``docs/do/adapters.md`` has a section for each.
"""

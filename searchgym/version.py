"""Version of the package, which files record as their origin."""

from __future__ import annotations

__version__ = "0.1.0"

"""File of the trainings that a comparison has finished, so that it goes on where it ended, on any machine.

One JSON object in each line: the training's name, its settings and its row. A study that takes more hours than one
session has keeps its file in its folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from searchgym.corpora.files import iter_jsonl
from searchgym.errors import UsageError


class Recorded:
    """Rows of finished trainings by name; without a path it is empty and keeps nothing.

    Args:
        path: JSONL file; made with the first row.
        settings: What all trainings of the comparison share. A row with others is refused, not mixed in.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.rows: dict[str, dict[str, Any]] = {}
        if path is None or not path.exists():
            return
        for number, line in iter_jsonl(path):
            if line["settings"] != self.settings:
                raise UsageError(f"{path}:{number}: a row with settings {line['settings']}, not {self.settings}")
            self.rows[line["name"]] = line["row"]

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Appends the row of a training that is not in the file yet."""
        if self.path is None or name in self.rows:
            return
        self.rows[name] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"name": name, "settings": self.settings, "row": row}, sort_keys=True)
        with self.path.open("a", encoding="utf-8") as file:  # one write: two processes may share the file
            file.write(line + "\n")

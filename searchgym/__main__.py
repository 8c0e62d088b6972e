"""Entry point of ``python -m searchgym``."""

import sys
from pathlib import Path

if not sys.flags.safe_path and sys.path[:1] == [str(Path.cwd())]:
    del sys.path[0]  # a folder of somebody else's may hold a torch.py; `load_object` alone looks there, and last

from searchgym.cli import program

program()

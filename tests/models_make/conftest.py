"""The scripts of models/make import each other by their bare names, as when one of them is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "make"))

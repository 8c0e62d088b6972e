"""``python -m searchgym.cli``."""

from searchgym.cli import main

main()

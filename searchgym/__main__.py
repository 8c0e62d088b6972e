"""``python -m searchgym``."""

from searchgym.cli import main

main()

"""Entry point of ``python -m searchgym``."""

from searchgym.cli import main

main()

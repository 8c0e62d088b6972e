"""Training the tiny model from scratch: ``python -m searchgym.train.tiny``."""

from searchgym.train.tiny.training import main

main()

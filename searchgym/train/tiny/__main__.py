"""Training the tiny model from scratch: ``python -m searchgym.train.tiny``."""

from searchgym.train.tiny.training import main

if __name__ == "__main__":  # a process that is spawned imports this file too
    main()

"""Question sources that ship, one class in one file each; see `searchgym.envs.question_source`."""

"""Question sources that ship, one class in one file each; see `searchgym.questions.question_source`."""

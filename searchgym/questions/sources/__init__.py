"""Shipped question sources, one class per file; see `searchgym.questions.question_source`."""

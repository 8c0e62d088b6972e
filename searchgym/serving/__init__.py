"""A retriever behind HTTP, for rollouts on other machines and for trainers of other projects."""

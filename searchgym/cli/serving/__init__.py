"""Commands that serve a retriever or a model over HTTP."""

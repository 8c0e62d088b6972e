"""An HTTP server for a retriever, for rollouts on other machines and for trainers of other projects."""

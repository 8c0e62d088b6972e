"""SearchGym: a gym and trainer for agentic search."""

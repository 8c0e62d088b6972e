"""Knowledge graphs of worlds, triple files and any corpus: links between passages, and facts matched by patterns."""

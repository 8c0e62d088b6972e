"""Knowledge graphs of worlds, of triples and of any corpus: links between passages, and facts by patterns."""

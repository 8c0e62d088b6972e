"""Opening pages: agents see snippets of what a search finds, and open the pages that they want to read."""

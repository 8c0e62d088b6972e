"""Opening pages: agents see snippets of search hits, and open the pages that they want to read."""

"""Opening pages: agents see snippets of search results, and open the pages that they want to read."""

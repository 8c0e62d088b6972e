"""Models behind server APIs: requests, and interpretation of replies."""

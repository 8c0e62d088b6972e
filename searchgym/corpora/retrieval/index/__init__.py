"""Index folders: building, checking and opening them."""

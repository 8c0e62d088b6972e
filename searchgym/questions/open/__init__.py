"""Tasks whose answers are more than a short text, over generated worlds in which what is stated can be counted."""

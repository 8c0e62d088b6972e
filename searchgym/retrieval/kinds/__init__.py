"""The kinds of retrievers, one module each, by the name that a card gives as its ``kind``."""

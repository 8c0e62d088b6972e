"""The kinds of retrievers, one module each, named like the ``kind`` in cards."""

"""Handling of third-party model files: checks before a library reads them, templates, tokenizers, adapters."""

"""Files of models that others made: what is checked before a library reads them."""

"""What others made: the checks of models' files before a library reads them, and what libraries print."""

"""Second implementation of the computations of a training, from their definitions, without code of the trainer."""

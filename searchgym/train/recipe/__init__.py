"""What a training run is told: every option of a recipe, how it is read and what it is checked for."""

"""Memory plan of a recipe: estimates per device, checks, and suggestions of changes that fit."""

"""Bridges to other trainers, which train on these environments with loops of their own."""

"""Reservation sequences on the distributions of seed 002, and their real costs."""

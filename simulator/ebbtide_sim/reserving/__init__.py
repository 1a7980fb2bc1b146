"""Reservation sequences on the distributions of seed 002, with what they really cost."""

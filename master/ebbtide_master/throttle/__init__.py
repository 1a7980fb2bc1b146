"""Limits how much of the master one user takes at a time: rates, open calls, turns."""

"""Lays out what an attempt is given on its node: its intent, its environment and its directories."""

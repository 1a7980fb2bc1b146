"""Defines what an attempt gets on its node: its intent, its environment and its directories."""

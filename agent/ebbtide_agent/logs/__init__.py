"""Reads an attempt's log: whole, from an edge, or a window at a time."""

"""Runs the agent of a node that another scheduler lends, with what it lends, and gives it back in time."""

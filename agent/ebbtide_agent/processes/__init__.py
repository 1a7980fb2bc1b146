"""Identifies the processes of a node beyond doubt, and controls them: /proc, process trees, control groups."""

"""Processes of a node: what /proc says of them, which process is which, trees of them, control groups."""

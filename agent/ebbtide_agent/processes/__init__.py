"""Names the processes of a node beyond doubt: /proc, identities, process trees, control groups."""

"""How an attempt's log is read: whole, from an edge, or a window at a time."""

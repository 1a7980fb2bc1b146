"""Find the master, prove who is at either end, and call it."""

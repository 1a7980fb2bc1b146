"""How much of the master one user may take at a time: rates, open calls, turns."""

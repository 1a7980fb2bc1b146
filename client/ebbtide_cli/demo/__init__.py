"""``ebb demo``: real training that steps aside for an urgent job, comes back, changes size, and loses nothing."""

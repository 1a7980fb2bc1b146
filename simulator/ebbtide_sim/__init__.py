"""A world of simulated nodes and jobs that drives the very cluster that the master runs."""

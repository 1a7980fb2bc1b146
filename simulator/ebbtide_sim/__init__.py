"""Simulates nodes and jobs for the same scheduling core that the master runs."""

"""Scheduling policies: pure functions from a snapshot to a plan, one module each; `registry` knows them by name."""

"""Counts what nodes have and which jobs hold it, and finds where a job fits: books, topology, eligibility, placing."""

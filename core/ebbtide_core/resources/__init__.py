"""Counts what nodes have and who holds it, and finds where a job fits: books, topology, eligibility, placing, pools."""

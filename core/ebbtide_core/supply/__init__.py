"""Decides when nodes are borrowed from another scheduler, and when a loan that came to nothing is given up."""

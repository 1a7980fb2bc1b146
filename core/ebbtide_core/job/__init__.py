"""Holds one job and its attempts, derives the job's state, and interprets how an attempt ended."""

"""Holds one job and its attempts, derives the job's state, and reads how an attempt ended."""

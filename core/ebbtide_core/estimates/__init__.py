"""Estimates a job's remaining work, its speed at each size, and its restart cost."""

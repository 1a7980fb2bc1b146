"""Estimates a job's run: its remaining work, its speed at each size, and what a restart costs."""

"""Decides which jobs may be placed, and keeps them in order: gates, quotas and queues."""

"""Fetch, draw and show what ``ebb top`` shows."""

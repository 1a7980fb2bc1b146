"""Finds out what uses a node's GPUs: attribution, the proof that they are free, telemetry, and jobs out of bounds."""

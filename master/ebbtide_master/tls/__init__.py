"""Runs the cluster's own certificate authority, and gives out its certificates."""

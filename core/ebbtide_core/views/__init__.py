"""Explains the cluster to people: stories, explanations, forecasts, notices and usage. No view decides anything."""

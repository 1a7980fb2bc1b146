"""Explains the cluster to people: stories, explanations, forecasts, notices, usage. Nothing is decided here."""

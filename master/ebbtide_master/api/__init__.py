"""Serves the clients of the master: carries out each call of `ebb`, and makes its reply."""

"""Checks every call before its method runs: the edge, the admission, and the gate that proves the caller."""

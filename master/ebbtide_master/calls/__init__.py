"""Checks every call before its method runs: the edge, the guard that limits calls, and the gate that admits callers."""

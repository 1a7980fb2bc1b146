"""Writes the journal of events, and beside it the vault for what must not be in a journal."""

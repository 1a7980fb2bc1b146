"""Copies of the journal and the vault, how one is put back, and how a journal is compacted."""

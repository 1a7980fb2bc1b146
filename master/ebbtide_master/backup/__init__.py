"""Backs up the journal and the vault, restores a backup, and compacts a journal."""

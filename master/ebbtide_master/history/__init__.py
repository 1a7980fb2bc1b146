"""Keeps who had which GPU from when to when in a file beside the journal, which may be deleted: it is made again."""

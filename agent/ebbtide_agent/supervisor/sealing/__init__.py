"""See what an attempt has saved: list it, judge whether that answers a stop, and seal it as a checkpoint."""

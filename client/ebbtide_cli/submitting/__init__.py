"""``ebb submit``'s options by topic, and the job that they amount to."""

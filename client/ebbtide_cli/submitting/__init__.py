"""Define ``ebb submit``'s options by topic, and build a job from them."""

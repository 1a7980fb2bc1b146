"""UNIX accounts that jobs run as: how they are looked up, and acting with their rights."""

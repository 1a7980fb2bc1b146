"""Looks up the UNIX accounts that jobs run as, and acts with their rights."""

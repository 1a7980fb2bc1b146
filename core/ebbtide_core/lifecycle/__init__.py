"""Follows jobs and their attempts from the checks at submission to their removal; each module holds one rule."""

"""Checks of one node: what is wrong for Ebbtide, and what to do about it. Nothing here changes anything."""

"""Checks one node for what is wrong for Ebbtide, and says what to do about it. Nothing here changes anything."""

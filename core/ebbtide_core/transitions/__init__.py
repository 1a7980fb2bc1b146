"""Passes one event through the core: checks that it is news, changes the state, and works out what follows."""

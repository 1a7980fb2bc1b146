"""Sends notices about jobs to people: makes the text, delivers it, and keeps what could not be delivered yet."""

"""Puts events into words, for people who ask what happened."""

from ebbtide_core.dispatch import RULES
from ebbtide_core.events import Event


def narrate(event: Event) -> str:
    """Return one line that says what ``event`` was, without the name of the job or node that it is about."""
    return RULES[type(event)].say(event)

"""Events in words, for people who ask what happened."""

from ebbtide_core.dispatch import RULES
from ebbtide_core.events import Event


def narrate(event: Event) -> str:
    """One line that says what ``event`` was; jobs and nodes are named only where it is not about them."""
    return RULES[type(event)].say(event)

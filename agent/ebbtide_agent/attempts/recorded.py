"""What the attempts on this node's disk were ordered to be."""

import logging
from pathlib import Path

from ebbtide_agent.attempts import recovery
from ebbtide_agent.contract.attempt_dir import AttemptDir, attempts_dir
from ebbtide_agent.contract.intent import Intent

log = logging.getLogger(__name__)


def read_intents(node_dir: Path) -> list[tuple[AttemptDir, Intent]]:
    """All attempts on disk that are not forgotten. One that is damaged is passed over: it must not stop the others."""
    places = [AttemptDir(path) for path in attempts_dir(node_dir).iterdir()]
    intents = [(place, read_intent(place)) for place in places if not place.is_forgotten()]
    return [(place, intent) for place, intent in intents if intent is not None]


def read_intent(place: AttemptDir) -> Intent | None:
    """What the attempt was ordered to be; None, and a line in the log, if that cannot be known."""
    try:
        content = place.intent()
        intent = None if content is None else Intent.from_json(content)
        recovery.recorded_supervisor(place)
    except (OSError, ValueError, LookupError, TypeError) as error:
        log.error("event=damaged-attempt directory=%s error=%r", place.path.name, str(error))
        return None
    if intent is None or place.path.name != f"{intent.job_id}.{intent.attempt}":
        log.error("event=damaged-attempt directory=%s error='no intent of its own'", place.path.name)
        return None
    return intent

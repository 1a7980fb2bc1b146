"""The agent's log: one line of key=value pairs per event, on stderr."""

import logging
import sys


def configure() -> None:
    """Send the log of the whole process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("time=%(asctime)s.%(msecs)03d level=%(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)

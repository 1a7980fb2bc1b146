"""How a master says that what it refuses now it will do a little later."""

from typing import Final

RETRY_KEY: Final = "ebb-retry-after-s"
"""In the trailing metadata of the refusal: after how many seconds."""

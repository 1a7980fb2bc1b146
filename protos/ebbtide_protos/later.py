"""Names the metadata in which a master says that it will soon accept what it refuses now."""

from typing import Final

RETRY_KEY: Final = "ebb-retry-after-s"
"""Key in the trailing metadata of a refusal; its value is the number of seconds to wait."""

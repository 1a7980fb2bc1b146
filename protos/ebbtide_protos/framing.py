"""How large the pieces of a channel are that travel, for whoever has one of its ends; see channel.proto."""

from ebbtide_core.model.limits import CHANNEL_FRAME_BYTES as FRAME_BYTES
from ebbtide_core.model.limits import CHANNEL_WINDOW_BYTES as WINDOW_BYTES

__all__ = ["FRAME_BYTES", "WINDOW_BYTES"]

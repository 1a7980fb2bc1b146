"""Names the sizes of a channel's frames and window for the programs at its ends; see channel.proto."""

from ebbtide_core.model.limits import CHANNEL_FRAME_BYTES as FRAME_BYTES
from ebbtide_core.model.limits import CHANNEL_WINDOW_BYTES as WINDOW_BYTES

__all__ = ["FRAME_BYTES", "WINDOW_BYTES"]

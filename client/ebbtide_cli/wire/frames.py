"""Names the frames of HTTP/2 (RFC 9113) that a gRPC call is made of, and writes them."""

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
MAX_FRAME: Final = 1 << 14
"""The most bytes of a frame that each end takes, unless it has said that it takes more."""
MAX_WINDOW: Final = (1 << 31) - 1
FIRST_WINDOW: Final = 65_535
"""How much each end may send before the other end has said anything."""

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 2
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5

CANCEL: Final = 8
"""The error code with which a client says that it wants no more of a call."""

_HEAD: Final = struct.Struct(">HBBBI")
_SETTING: Final = struct.Struct(">HI")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Write one frame."""
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def read_head(head: bytes | bytearray) -> tuple[int, int, int, int]:
    """Return the length, the kind, the flags and the stream of the frame that begins so."""
    high, low, kind, flags, stream = _HEAD.unpack_from(head)
    return high << 8 | low, kind, flags, stream & MAX_WINDOW


def settings(values: dict[int, int]) -> bytes:
    """Write the frame that tells the other end what this end takes."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    """Return what the other end takes. Raises ValueError if the frame has no whole number of settings."""
    if len(payload) % _SETTING.size:
        raise ValueError("a setting is cut off")
    return dict(_SETTING.iter_unpack(payload))


def number(value: int) -> bytes:
    """Write a number of four bytes."""
    return value.to_bytes(4, "big")

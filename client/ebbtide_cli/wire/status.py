"""How a call fails: gRPC's status codes, and the error that has one, whichever way the call was made."""

from collections.abc import Mapping
from enum import IntEnum


class CallStatus(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(Exception):
    """A call ended with a ``status`` other than OK; ``words`` say why, and ``trailers`` came with them."""

    def __init__(self, status: CallStatus, words: str, trailers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status.name}: {words}")
        self.status = status
        self.words = words
        self.trailers = trailers or {}

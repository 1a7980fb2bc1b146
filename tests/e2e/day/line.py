"""The master, whichever process that is just now, as the people of the day reach it."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
from ebbtide_cli.masters.credentials import ProvenChannel
from ebbtide_cli.masters.grpc_calls import CHANNEL_OPTIONS
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import client_pb2
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

PATIENCE_S = 60.0
NO = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class Refused(Exception):
    """The master said no."""


class Line:
    """To the master of a home, as whoever has that token; without one as the account that runs it."""

    def __init__(self, home: Path, token: str = "") -> None:
        self.home = home
        self.token = token
        self.channel: grpc.Channel | None = None
        self._open = ExitStack()

    def ask(self, method: str, request: Any) -> Any:
        """Call it, again and again while it is away; by its operation_id a request is known to be the same."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return getattr(self._stub(), method)(request, timeout=10.0)
            except grpc.RpcError as error:
                if error.code() in NO:
                    raise Refused(error.details()) from None
                if error.code() not in AWAY or time.monotonic() > deadline:
                    raise
            except (OSError, ValueError, KeyError):  # it has not said yet where it is
                if time.monotonic() > deadline:
                    raise
            self.close()
            time.sleep(0.1)

    def events(self) -> list[client_pb2.Event]:
        """The whole log."""
        return list(self._stub().WatchEvents(client_pb2.WatchEventsRequest(), timeout=60.0))

    def close(self) -> None:
        """Hang up."""
        if self.channel is not None:
            self.channel.close()
        self.channel = None
        self._open.close()

    def _stub(self) -> ClientServiceStub:
        if self.channel is None:
            target = self._open.enter_context(home_socket.entered(self.home))
            local = grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
            self.channel = grpc.secure_channel(target, local, options=CHANNEL_OPTIONS)
        token = self.token or (self.home / "token").read_text().strip()
        return ClientServiceStub(ProvenChannel(self.channel, token))

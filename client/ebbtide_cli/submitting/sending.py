"""Hands a job to the master, once, whatever happens to the master meanwhile."""

import time
from typing import Final

from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.connection import RETRY_S, ask, connected
from ebbtide_cli.errors import Unreachable

RESUBMIT_S: Final = 10.0
"""How long the same submit is repeated when the master goes away before it answered."""


def send(master: str | None, request: client_pb2.SubmitRequest) -> client_pb2.SubmitReply:
    """Send it, and send it again if the master goes away before it answers: one operation id is one job."""
    give_up, sent = time.monotonic() + RESUBMIT_S, False
    while True:
        try:
            with connected(master) as stub:
                sent = True
                return ask(stub.Submit, request)
        except Unreachable as error:
            if not sent:
                raise
            if time.monotonic() > give_up:
                raise Unreachable(f"{error.message}; see 'ebb ls' whether the job was queued") from None
        time.sleep(RETRY_S)

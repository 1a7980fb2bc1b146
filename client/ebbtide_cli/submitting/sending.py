"""Send a job to the master, exactly once, even if the master restarts meanwhile."""

import time
from pathlib import Path
from typing import Final

from ebbtide_protos.spec import SNAPSHOTS
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.errors import TooFast, Unreachable
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import RETRY_S, ask, connected
from ebbtide_cli.terminal.output import complain

RESUBMIT_S: Final = 10.0
"""Seconds for which a submit is repeated if the master goes away before it answers."""

WAIT_S: Final = 60.0
"""Seconds for which a submit waits because its user submits too much at a time."""


def send(master: str | Address | None, request: client_pb2.SubmitRequest) -> client_pb2.SubmitReply:
    """Send the request, again if the master goes away before it answers; one operation id makes one job.

    Its snapshot is sent before each time, because a master that was restarted does not remember who sent which
    snapshot.
    """
    began, sent, complained = time.monotonic(), False, False
    while True:
        try:
            _bring_snapshot(master, request)
            with connected(master) as stub:
                sent = True
                return ask(stub.Submit, request)
        except Unreachable as error:
            if not sent:
                raise
            if time.monotonic() > began + RESUBMIT_S:
                raise Unreachable(f"{error.message}; see 'ebb ls' whether the job was queued") from None
            time.sleep(RETRY_S)
        except TooFast as error:
            if time.monotonic() + error.wait_s > began + WAIT_S:
                raise
            if not complained:
                complain(f"{error.message}; waiting")
                complained = True
            time.sleep(error.wait_s)


def _bring_snapshot(master: str | Address | None, request: client_pb2.SubmitRequest) -> None:
    """Send the job's snapshot to the master, if the job begins with one."""
    if request.spec.HasField("snapshot") and not request.dry_run:
        from ebbtide_cli.snapshot.sending import send_snapshot

        send_snapshot(master, Path(request.spec.workdir), SNAPSHOTS.from_message(request.spec.snapshot))

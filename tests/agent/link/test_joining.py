"""How a node that cannot join says why."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from ebbtide_agent.link.joining import JoinError, MasterAwayError, join
from ebbtide_master.tls.authority import Authority
from ebbtide_protos import handshake
from ebbtide_protos.invitation import Invitation

from tests.certificates import LONG_AGO_S, an_authority
from tests.ports import free_port


async def test_a_master_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    port = free_port()
    certificate = an_authority().certificate.pem
    with pytest.raises(MasterAwayError, match=f"no master at localhost:{port}"):
        await join(Invitation(f"localhost:{port}", "a secret", certificate), "n1", tmp_path)


@asynccontextmanager
async def a_server(authority: Authority, host: str, age_s: float = 0.0) -> AsyncIterator[int]:
    """Shows a certificate for ``host`` that ``authority`` made so long ago; its port."""
    certificate, key = authority.server((host,), time.time() - age_s)
    server = grpc.aio.server()
    shown = grpc.ssl_server_credentials([(key.encode(), certificate.encode())])
    port = server.add_secure_port("127.0.0.1:0", shown)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


OURS, ANOTHER = an_authority(), an_authority()


@pytest.mark.parametrize(
    ("authority", "host", "age_s", "error", "words"),
    [
        (ANOTHER, "localhost", 0.0, JoinError, "of another authority"),
        (OURS, "lab", 0.0, JoinError, "is for another name"),
        (OURS, "localhost", LONG_AGO_S, MasterAwayError, "expired on"),
    ],
    ids=["another authority", "another name", "expired"],
)
async def test_a_node_waits_for_a_new_certificate_of_its_master_and_for_no_other_master(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    authority: Authority,
    host: str,
    age_s: float,
    error: type[JoinError],
    words: str,
) -> None:
    monkeypatch.setattr(handshake, "TIMEOUT_S", 60.0)
    async with a_server(authority, host, age_s) as port:
        with pytest.raises(JoinError, match=words) as raised:
            await join(Invitation(f"localhost:{port}", "a secret", OURS.certificate.pem), "n1", tmp_path)
    assert type(raised.value) is error

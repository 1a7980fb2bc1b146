"""How a node that cannot join says why."""

from pathlib import Path

import pytest
from ebbtide_agent.link.joining import MasterAwayError, join
from ebbtide_protos.invitation import Invitation

from tests.certificates import an_authority
from tests.ports import free_port


async def test_a_master_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    port = free_port()
    certificate = an_authority().certificate.pem
    with pytest.raises(MasterAwayError, match=f"no master at localhost:{port}"):
        await join(Invitation(f"localhost:{port}", "a secret", certificate), "n1", tmp_path)

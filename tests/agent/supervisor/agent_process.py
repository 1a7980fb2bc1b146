"""An agent's attempts in a process of its own: launches what it is told to, reports every status, stays until killed.

python agent_process.py DISK [ORDER in hexadecimal]...
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from ebbtide_agent.accounts.accounts import AllowedAccounts
from ebbtide_agent.attempts.attempts import Attempts
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.files.exchange import Exchange
from ebbtide_agent.supervisor.lease import boottime
from ebbtide_protos.v1 import agent_pb2


def report(status: agent_pb2.AttemptStatus) -> None:
    print(status.SerializeToString().hex(), flush=True)


class Gpus:
    """Those of which nothing is known, yet or ever."""

    async def gone(self, uuids: Sequence[str]) -> str:
        return ""

    async def prove_free(self, key: tuple[str, int], allocation: object) -> dict[str, str]:
        return await asyncio.Future()


async def main(disk: Path, orders: list[str]) -> None:
    places = NodeDirectories(disk / "node", disk / "checkpoints", "c1")
    attempts = Attempts(places, Gpus(), Exchange(), on_change=report, warm=1, allowed=AllowedAccounts(0))
    await attempts.start()
    attempts.renew(boottime())
    for order in orders:
        await attempts.launch(agent_pb2.Launch.FromString(bytes.fromhex(order)))
    while True:  # as if a master acknowledged everything, until this process is stopped or killed
        attempts.renew(boottime())
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))

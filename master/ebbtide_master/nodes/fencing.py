"""Runs the administrator's fencing hook for silent nodes, to make sure that they are dead."""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import NodeId
from ebbtide_core.resources.books import Node

from ebbtide_master.clock import Clock
from ebbtide_master.config.fencing import FencingSettings
from ebbtide_master.convert import is_host
from ebbtide_master.loop import MasterLoop, RefusedError, StoppedError

LOOK_S: Final = 5.0
"""Seconds between checks whether the master still believes that it is the one that is cut off."""
FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 600.0
"""Longest pause in seconds before the next try; each failure doubles the pause up to this."""
MAX_WORDS: Final = 200
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LOGNAME")

log = logging.getLogger(__name__)


class Fencing:
    """Tries to fence each node, one try at a time, as long as the node is silent and jobs wait for it."""

    def __init__(self, settings: FencingSettings, loop: MasterLoop, clock: Clock) -> None:
        self._settings = settings
        self._loop = loop
        self._clock = clock
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}

    def silent(self, node: NodeId) -> None:
        """Fence ``node``, which counts as lost, once it has been silent for long enough, unless it comes back."""
        if self._settings.hook and node not in self._tasks:
            task = self._tasks[node] = asyncio.create_task(self._fence(node), name=f"fencing {node}")
            task.add_done_callback(lambda _: self._tasks.pop(node))

    async def close(self) -> None:
        """End the hooks that run."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fence(self, node: NodeId) -> None:
        pause_s = FIRST_PAUSE_S
        with suppress(StoppedError):
            while (facts := await self._loop.ask(lambda cluster: self._facts(cluster, node))) is not None:
                if (wait_s := await self._loop.ask(lambda cluster: self._too_early_s(cluster, node))) > 0.0:
                    await asyncio.sleep(wait_s)
                    continue
                failure = await self._run(node, facts)
                if not failure and await self._confirm(node):
                    return
                failure = failure or "it said that the node is dead, and the node is connected"
                await self._tell(e.FenceFailed(node, failure, pause_s))
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)

    async def _tell(self, failure: e.FenceFailed) -> None:
        log.error("event=fence-failed node=%s reason=%r", failure.node, failure.reason)
        await self._loop.tell(lambda _: [failure], lambda _: None)

    def _facts(self, cluster: Cluster, id: NodeId) -> dict[str, str] | None:
        """Return the hook's environment variables for the node, or None if it need not be fenced any more."""
        node = cluster.state.nodes[id]
        if node.connected or not node.lost or node.dead or not node.attempts:
            return None
        address = next((one for one in (node.facts.address, node.facts.hostname) if is_host(one)), "")
        return {"EBB_NODE": id, "EBB_ADDRESS": address, "EBB_SILENT_S": f"{self._silent_s(node):.0f}"}

    def _silent_s(self, node: Node) -> float:
        return max(0.0, self._clock.now() - node.last_seen)

    def _too_early_s(self, cluster: Cluster, id: NodeId) -> float:
        """Return the seconds until the node may be fenced, or be looked at again."""
        if id in cluster.state.silent.doubted:
            return LOOK_S
        return max(0.0, self._settings.after_s - self._silent_s(cluster.state.nodes[id]))

    async def _confirm(self, node: NodeId) -> bool:
        """Record that the node is dead, so that its jobs go on elsewhere; return False if the node came back."""
        try:
            fact = e.NodeConfirmedDead(node=node, by_hook=True)
            await self._loop.tell(lambda _: [fact], lambda _: None)
        except RefusedError:
            return False
        log.warning("event=fenced node=%s", node)
        return True

    async def _run(self, node: NodeId, facts: Mapping[str, str]) -> str:
        """Run the hook and return why it failed, or an empty string if it succeeded."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | dict(facts)
        log.warning("event=fencing node=%s silent_s=%s", node, facts["EBB_SILENT_S"])
        try:
            process = await asyncio.create_subprocess_exec(
                *self._settings.hook,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be run: {error.strerror}"
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                words = await _last_words(process)
                code = await process.wait()
        except TimeoutError:
            return f"not done after {self._settings.timeout_s:g} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return "" if code == 0 else f"ended with {code}{f': {words}' if words else ''}"


async def _last_words(process: asyncio.subprocess.Process) -> str:
    """Return the last line that the process writes to stderr, read until stderr is closed."""
    assert process.stderr is not None
    said = b""
    while data := await process.stderr.read(4096):
        said = (said + data)[-4096:]
    lines = said.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else ""
    return "".join(letter for letter in last if letter.isprintable())[:MAX_WORDS]

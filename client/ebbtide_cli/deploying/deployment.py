"""Bring hosts into the wanted state, several at a time: look at each, and do the steps that it lacks."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ebbtide_cli.deploying.hosts import Host
from ebbtide_cli.deploying.membership import TargetCluster
from ebbtide_cli.deploying.remote import Remote, StepFailed
from ebbtide_cli.terminal.text import one_line

AT_ONCE: Final = 8
"""Hosts that are worked on at a time."""
UP_S: Final = 60.0
"""Seconds until a node that was started must be up."""
REJOIN_S: Final = 15.0
"""Seconds after which a node that is not up joins anew: its certificate may have expired or been revoked."""

Facts = dict[str, list[str]]


class Result(Enum):
    """How a host is in the end."""

    PLANNED = "planned"  # nothing was done
    UP = "up"
    PROBLEM = "problem"  # up, and the doctor found a problem
    REMOVED = "removed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(slots=True)
class HostReport:
    """What happened on one host: ``done`` (or what would be done) in order, and ``step``, which it is at."""

    host: Host
    result: Result = Result.INTERRUPTED
    done: list[str] = field(default_factory=list)
    step: str = ""
    why: str = ""
    facts: Facts = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def fact(self, name: str) -> str:
        """Return one fact of the host; empty if it did not say it."""
        return self.facts.get(name, [""])[0]

    def problems(self) -> list[dict[str, Any]]:
        """Return what the doctor found that keeps the node from its work."""
        return [finding for finding in self.findings if finding["level"] == "problem"]


Work = Callable[[Remote, HostReport], Awaitable[Result]]


async def on_all(
    remotes: Sequence[Remote], reports: Sequence[HostReport], work: Work, on_change: Callable[[], None]
) -> None:
    """Do the work on every host, `AT_ONCE` at a time; whatever fails on one changes nothing for the others.

    ``on_change`` is called whenever a report has changed.
    """
    places = asyncio.Semaphore(AT_ONCE)

    async def one(remote: Remote, report: HostReport) -> None:
        async with places:
            try:
                report.result = await work(remote, report)
            except StepFailed as failed:
                report.result, report.step, report.why = Result.FAILED, failed.step, failed.why
            except OSError as error:  # of this machine: no more processes, or the bundle is gone
                report.result, report.why = Result.FAILED, one_line(str(error))
            on_change()

    async with asyncio.TaskGroup() as group:
        for remote, report in zip(remotes, reports, strict=True):
            group.create_task(one(remote, report))


def missing_steps(facts: Facts, remote: Remote) -> list[str]:
    """Return the steps that a host still needs. Raises `StepFailed` where no step can help."""
    bundle = remote.bundle
    assert bundle is not None
    steps = list[str]()
    if "installed" not in facts:
        machine = facts.get("machine", [""])[0]
        if bundle.machine and machine != bundle.machine:
            raise StepFailed("look", f"the bundle is for {bundle.machine}, and the host is {machine}")
        if "python" not in facts:
            raise StepFailed("look", f"the bundle needs Python {bundle.python}, and there is no python{bundle.python}")
        steps.append("send")
    if "installed" not in facts or "linked" not in facts:
        steps.append("install")
    if remote.keeps_options:
        if "deployed" not in facts:
            raise _not_deployed(remote, facts)
    elif "joined" not in facts:
        steps.append("join")
    if "current" not in facts.get("agent", ()):
        steps.append("start")
    return steps


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is done on each host, for the cluster of one master."""

    cluster: TargetCluster
    on_change: Callable[[], None]
    dry: bool

    async def bring_up(self, remote: Remote, report: HostReport) -> Result:
        """Install, join and start what is not yet there, wait until the node is up, and have its doctor look."""
        steps = missing_steps(await self._look(remote, report), remote)
        if self.dry:
            report.done = steps
            return Result.PLANNED
        since = 0.0
        for step in steps:
            self._enter(report, step)
            match step:
                case "send":
                    await remote.send()
                case "join":
                    await self._join(remote)
                case _:
                    await remote.run(step)
            report.done.append(step)
        if "start" in steps:
            since = await self.cluster.now()
        self._enter(report, "wait")
        await self._until_up(remote, report, since)
        self._enter(report, "doctor")
        report.findings = _findings(await remote.run("doctor"))
        return Result.PROBLEM if report.problems() else Result.UP

    async def take_back(self, remote: Remote, report: HostReport) -> Result:
        """End the agent and remove what was deployed, unless jobs run there; the master then forgets the node."""
        name = remote.host.node
        facts = await self._look(remote, report)
        node = await self.cluster.node(name)
        here = bool(facts.keys() & {"deployed", "joined", "agent"})
        if node is None and "agent" in facts and "joined" not in facts:
            raise StepFailed("look", f"the agent of {name} that runs there is of another master: end it first")
        if not here and "other" in facts:
            raise _not_deployed(remote, facts)
        if self.dry:
            report.done = [*(["drain"] if node else []), *(["remove"] if here else []), *(["forget"] if node else [])]
            return Result.PLANNED
        if node is not None:
            self._enter(report, "drain")
            drained = await self.cluster.drain(name)
            if jobs := sorted(job.job_id for job in drained.jobs):
                left = f"job {', '.join(jobs[:5])} is still there, and nothing new starts"
                raise StepFailed("drain", f"{left}: 'ebb node drain {name} --now --wait' suspends it; then try again")
            if keeps := sorted(drained.keeps):
                lost = f"job {', '.join(keeps[:5])} has its checkpoints there, and nowhere else"
                raise StepFailed("drain", f"{lost}: cancel it, or let it go on there ('ebb node resume {name}')")
            report.done.append("drain")
        if here:
            self._enter(report, "remove")
            await remote.run("remove")
            report.done.append("remove")
        if node is not None:
            self._enter(report, "forget")
            await self.cluster.forget(name)
            report.done.append("forget")
        return Result.REMOVED

    async def _look(self, remote: Remote, report: HostReport) -> Facts:
        self._enter(report, "look")
        report.facts = facts = await remote.run("look")
        if "keeper" not in facts:
            raise StepFailed("look", "the host did not answer as a shell would: does its account have one?")
        if lacks := facts.get("lacks"):
            raise StepFailed("look", f"the host lacks {', '.join(lacks)}")
        if "joined" in facts and facts["joined"] != [_quoted(self.cluster.ca)]:
            where = report.fact("joined-at")
            raise StepFailed("look", f"it is a node of another cluster, at {where}: only there can it be removed")
        return facts

    async def _join(self, remote: Remote) -> None:
        invitation = await self.cluster.invitation(remote.host.node)
        await remote.run("join", {"@INVITATION@": invitation})

    async def _until_up(self, remote: Remote, report: HostReport, since: float) -> None:
        name, may_join = remote.host.node, "join" not in report.done and not remote.keeps_options
        if may_join and not await self.cluster.is_up(name, since, REJOIN_S):
            self._enter(report, "join")
            await self._join(remote)
            report.done.append("join")
            self._enter(report, "wait")
        if not await self.cluster.is_up(name, since, UP_S):
            said = (await remote.run("say")).get("log", ["its agent says nothing"])
            raise StepFailed("wait", f"node {name} is not up after {UP_S:g} s: {said[-1]}")

    def _enter(self, report: HostReport, step: str) -> None:
        report.step = step
        self.on_change()


def _not_deployed(remote: Remote, facts: Facts) -> StepFailed:
    others, words = ", ".join(facts.get("other", ())), f"no node {remote.host.node} was deployed there"
    if others:
        return StepFailed("look", f"{words}, but {others}: name it by --name, in a --hostfile")
    return StepFailed("look", f"{words}: 'ebb deploy ssh' does that")


def _quoted(text: str) -> str:
    """Return a text as it stands between the quotes of a JSON file."""
    return json.dumps(text)[1:-1]


def _findings(facts: Facts) -> list[dict[str, Any]]:
    """Read what a doctor found. Raises `StepFailed`."""
    from ebbtide_agent.doctor.finding import Finding

    try:
        return [Finding.from_json(one).to_json() for one in json.loads(facts["doctor"][0])]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise StepFailed("doctor", "what it printed cannot be read") from None

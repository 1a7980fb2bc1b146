"""Serve one supply: ask the lender and the master how things are, and the lender for what follows from it.

What is to be asked for is on disk before it is asked for, so a supplier that was killed finds its loans again by their
names. Loans go on without it.
"""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ebbtide_core.supply.supply import SUPPLY_LABEL, AskForLoan, BorrowedNode, CallOff, NodeSupply
from ebbtide_protos.invitation import Invitation, encode
from ebbtide_protos.v1 import agent_pb2, client_pb2
from google.protobuf import json_format

from ebbtide_cli.errors import Failure, TooFast, Unreachable
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.supplying.files import SupplyFolder, facts_of
from ebbtide_cli.supplying.lender import Lender, LenderAwayError, LenderRefusedError
from ebbtide_cli.supplying.settings import Borrowing
from ebbtide_cli.terminal.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_S: Final = 30.0
"""Seconds between two questions to the lender about all loans."""
ROUND_S: Final = 1.0
DEMAND_S: Final = 5.0
"""Seconds between two questions to the master about how many nodes are needed, and about those that have ended."""
MOVED_S: Final = 10.0
"""Seconds by which the lender's word of an end and the node's may differ."""
INVITED_S: Final = 7 * 86400.0
"""Seconds for which an invitation is good: a loan may wait for long."""
LONGEST_WORDS: Final = 200
_GONE: Final = frozenset({"down", "ended"})


@dataclass(slots=True)
class Supplier:
    """Serves one supply until `stop` is set. ``say`` gets a line for each thing that happens."""

    borrowing: Borrowing
    folder: SupplyFolder
    lender: Lender
    master: str | None
    say: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    supply: NodeSupply = field(init=False)
    _counted_at: float = float("-inf")
    _counted_with: frozenset[str] = frozenset()
    _demand: int | None = None
    _left_at: float = float("-inf")
    _said: dict[str, str] = field(default_factory=dict)
    _saved: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Serve until asked to stop."""
        self.folder.make()
        with self.folder.locked(), _until_signalled(self.stop):
            supply = self.supply = self.folder.load(self.borrowing.name, self.borrowing.settings)
            supply.describe(self.borrowing.mark)
            for loan in supply.unfinished():
                self._tell(loan)
            while not self.stop.is_set():
                self.round(time.time())
                self.stop.wait(ROUND_S)

    def round(self, now: float) -> None:
        """Hear what is new, and do what follows."""
        self._grant_wishes()
        nodes = self._nodes()
        self._hear(nodes, now)
        self._remember(nodes or {})
        for action in list(self.supply.decide(self._needed(nodes, now), now, away=nodes is None)):
            self._save()
            match action:
                case AskForLoan(id):
                    self._ask(self.supply.loans[id], now)
                case CallOff(id):
                    with self._lender_may_be_away():
                        self.lender.call_off(id, self.supply.loans[id].job)
        for loan in self.supply.loans.values():
            self._tell(loan)
        if nodes is not None and not 0.0 <= now - self._left_at < DEMAND_S:
            self._left_at = now
            self._take_leave(nodes)
            self._withdraw_invitations(nodes)
            self.supply.forget({*nodes, *(loan.id for loan in self.supply.loans.values() if loan.invited)})
        self._note("supply", self._state(now))
        self._save()

    def _save(self) -> None:
        if (facts := facts_of(self.supply)) != self._saved:
            self.folder.save(facts)
            self._saved = facts

    # --- hearing ---

    def _nodes(self) -> dict[str, client_pb2.Node] | None:
        """Return the nodes that the supply has borrowed, as the master knows them; None if it is away."""
        try:
            with connected(self.master) as stub:
                found = ask(stub.ListNodes, client_pb2.ListNodesRequest()).nodes
        except Failure as failure:
            self._note("master", f"the master is away: {failure}")
            return None
        self._note("master", "")
        return {node.name: node for node in found if node.labels.get(SUPPLY_LABEL) == self.borrowing.name}

    def _hear(self, nodes: dict[str, client_pb2.Node] | None, now: float) -> None:
        up = None if nodes is None else {name for name, node in nodes.items() if node.state not in _GONE}
        self.supply.see_up(up or (), now)
        if not 0.0 <= now - self.supply.looked_at < LOOK_S:  # the clock may have been set back
            self.supply.looked_at = now
            self._save()  # a supplier that is killed, and started again and again, asks no more often
            with self._lender_may_be_away():
                silent = {name for name, node in (nodes or {}).items() if node.state == "down" and not node.dead}
                self.supply.hear(self.lender.look(), up, now, silent, nodes or ())
                self._note("lender", "")
                self._pass_on_ends(nodes or {}, now)

    def _remember(self, nodes: dict[str, client_pb2.Node]) -> None:
        """Remember what the newest node that is up has, so that no node is asked for that would be of no use.

        One that has lost GPUs says nothing about others; one that never had them all does if it is not the only one.
        """
        up = set[str]()
        for name, node in nodes.items():
            if node.state in _GONE or (loan := self.supply.loans.get(name)) is None:
                continue
            is_poor = len(node.gpus) < self.borrowing.gpus or not all(gpu.info.mem_bytes for gpu in node.gpus)
            loan.poor = loan.poor is not False and is_poor
            if loan.poor or not is_poor:
                up.add(name)
        if (newest := self.supply.newest(up)) is not None:
            self.supply.known = json_format.MessageToDict(_hello(nodes[newest.id]), preserving_proto_field_name=True)

    def _pass_on_ends(self, nodes: dict[str, client_pb2.Node], now: float) -> None:
        """Tell the master which nodes end earlier than they know, because the lender has moved their ends."""
        for loan in self.supply.unfinished():
            node = nodes.get(loan.id)
            if node is None or node.state in _GONE or loan.until is None or not node.HasField("loan"):
                continue
            if node.loan.until - loan.until > MOVED_S:
                left_s = max(1.0, loan.until - now)
                with suppress(Failure), connected(self.master) as stub:  # it has ended, or is asked again
                    ask(stub.EndNode, client_pb2.EndNodeRequest(node=loan.id, ends_in_s=left_s, user=user_name()))
                    self.say(f"{loan.id}: the lender has moved its end, which is in {left_s:.0f} s")

    def _take_leave(self, nodes: dict[str, client_pb2.Node]) -> None:
        """Tell the master which nodes are dead for certain, and forget those that have ended."""
        for name, node in nodes.items():
            loan = self.supply.loans.get(name)
            if loan is None or not loan.is_over or node.state not in _GONE:
                continue
            request = client_pb2.NodeRequest(node=name, user=user_name())
            with suppress(Failure), connected(self.master) as stub:  # it is not silent for long enough, or not empty
                if loan.proved and node.state == "down" and not node.dead:
                    ask(stub.ConfirmDead, request)
                ask(stub.RemoveNode, request)
                self.say(f"{name}: forgotten")

    def _withdraw_invitations(self, nodes: dict[str, client_pb2.Node]) -> None:
        """Have the master revoke what loans that have ended could come by: their invitations and certificates.

        While a node that was up is among the master's ``nodes``, its removal comes first.
        """
        for loan in self.supply.loans.values():
            if loan.is_over and loan.invited and not (loan.was_up and loan.id in nodes):
                try:
                    self._withdraw(loan.id)
                    loan.invited = False
                except Failure as error:  # it has expired, or was used after all, unless the master is away
                    loan.invited = isinstance(error, Unreachable | TooFast)

    def _withdraw(self, id: str) -> None:
        with connected(self.master) as stub:
            ask(stub.RevokeNode, client_pb2.RevokeNodeRequest(node=id))

    def _needed(self, nodes: dict[str, client_pb2.Node] | None, now: float) -> int | None:
        """Return how many more nodes are needed; None if that is not known."""
        if nodes is None:
            return None
        coming = frozenset(loan.id for loan in self.supply.unfinished() if loan.comes)
        is_known = 0.0 <= now - self._counted_at < DEMAND_S  # the clock may have been set back
        if coming != self._counted_with or not is_known:  # a node that came is no demand any more
            self._counted_at, self._counted_with = now, coming
            up = sum(node.state not in _GONE for node in nodes.values())
            request = client_pb2.DemandRequest(
                like=self.borrowing.like(_known(self.supply.known), now),
                nodes=max(1, self.borrowing.settings.max_nodes - up),
                after_s=self.borrowing.after_s,
                supply=self._status(now),
            )
            try:
                with connected(self.master) as stub:
                    reply = ask(stub.CountDemand, request)
            except Failure as failure:
                self._note("demand", str(failure))
                self._demand = None
            else:
                self._note("demand", reply.why_not)
                self._demand = None if reply.why_not else reply.nodes
        return self._demand

    # --- doing ---

    def _ask(self, loan: BorrowedNode, now: float) -> None:
        """Ask the lender for a loan, for which the master has to invite a node first."""
        loan.invited = True
        self._save()
        try:
            job = self.lender.ask(loan.id, self._invitation(loan.id), loan.kept)
        except (Unreachable, TooFast) as error:
            self.supply.not_asked(loan.id, str(error), now)
        except LenderAwayError as error:
            self.supply.unanswered(str(error), now)
        except (Failure, LenderRefusedError, OSError) as error:
            self.supply.refused(loan.id, str(error), now)
        else:
            self.supply.heard_job(loan.id, job, now)

    def _invitation(self, id: str) -> Path:
        with connected(self.master) as stub:
            reply = ask(stub.InviteNode, client_pb2.InviteNodeRequest(node=id, expires_s=INVITED_S))
        return self.folder.write_secret(f"{id}.invitation", encode(Invitation(reply.address, reply.secret, reply.ca)))

    def _grant_wishes(self) -> None:
        """Grant each wish once, though the supplier may be killed before or after that is saved."""
        wishes = self.folder.wishes()
        for name, wish in wishes.items():
            if name not in self.supply.granted:
                self._grant(wish)
        if wishes:
            self.supply.granted = [*wishes]
            self._save()
            self.folder.remove_wishes(wishes)

    def _grant(self, wish: object) -> None:
        match wish:
            case {"do": "pause"}:
                self.supply.paused = True
            case {"do": "resume"}:
                self.supply.resume()
            case {"do": "add", "nodes": int(nodes)}:
                self.supply.wanted += nodes
                self.supply.not_before = 0.0
            case {"do": "release", "loan": str(id), "user": str(user)}:
                with suppress(KeyError):
                    self.supply.release(id, f"released by {user}")
            case _:
                self.say(f"an unknown wish: {wish}")

    # --- saying ---

    def _tell(self, loan: BorrowedNode) -> None:
        job, why = (f" as job {loan.job}" if loan.job else ""), (f": {loan.reason}" if loan.reason else "")
        if self._note(loan.id, f"{loan.phase.value}{job}{why}") and loan.is_over:
            for left in (f"{loan.id}.invitation", f"{loan.id}.sh"):
                (self.folder.path / left).unlink(missing_ok=True)

    def _status(self, now: float) -> client_pb2.SupplyStatus:
        """Return what those see who ask why a job waits."""
        coming = [loan for loan in self.supply.unfinished() if loan.comes]
        status = client_pb2.SupplyStatus(name=self.borrowing.name, coming=len(coming))
        status.not_asking = one_line(self._state(now))[:LONGEST_WORDS]
        if not coming and len(self.supply.unfinished()) >= self.borrowing.settings.max_nodes:
            status.not_asking = f"all {self.borrowing.settings.max_nodes} nodes are borrowed"
        if coming:
            status.since, status.reason = coming[0].asked_at, one_line(coming[0].reason)[:LONGEST_WORDS]
        return status

    def _state(self, now: float) -> str:
        if self.supply.paused:
            return "paused"
        if now < self.supply.not_before:
            return f"backing off after {self.supply.failures} failures: {self.supply.trouble}"
        return ""

    def _note(self, about: str, words: str) -> bool:
        """Say what is new about something, and return whether it is; nothing is said twice."""
        if self._said.get(about, "") == words:
            return False
        self._said[about] = words
        self.say(f"{about}: {words or 'well again'}")
        return True

    @contextmanager
    def _lender_may_be_away(self) -> "Iterator[None]":
        try:
            yield
        except LenderAwayError as error:
            self._note("lender", f"does not answer: {error}")


def _known(facts: dict[str, object]) -> agent_pb2.Hello | None:
    """Return what is remembered of a node; None if nothing is."""
    return json_format.ParseDict(facts, agent_pb2.Hello(), ignore_unknown_fields=True) if facts else None


def _hello(node: client_pb2.Node) -> agent_pb2.Hello:
    """Return how a node like ``node`` would introduce itself."""
    return agent_pb2.Hello(
        gpus=[_when_well(gpu.info) for gpu in node.gpus],
        cpus=node.cpus,
        mem_bytes=node.mem_bytes,
        checkpoint_root_id=node.checkpoint_root_id,
        labels=node.labels,
        taints=node.taints,
    )


def _when_well(gpu: agent_pb2.GpuInfo) -> agent_pb2.GpuInfo:
    found = agent_pb2.GpuInfo()
    found.CopyFrom(gpu)
    found.healthy, found.unhealthy_reason = True, ""
    return found


@contextmanager
def _until_signalled(stop: threading.Event) -> "Iterator[None]":
    def asked(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

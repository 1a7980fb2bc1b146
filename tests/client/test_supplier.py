"""How often a supplier asks Slurm and the master, by a clock of the test."""

import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
from ebbtide_cli.errors import Failure, TooFast, Unreachable
from ebbtide_cli.home import Home
from ebbtide_cli.supplying.files import SupplyFolder, facts_of
from ebbtide_cli.supplying.settings import FILE, read
from ebbtide_cli.supplying.slurm import Slurm
from ebbtide_cli.supplying.supplier import Supplier
from ebbtide_core.model.limits import MAX_CPUS
from ebbtide_core.supply.supply import REMEMBERED, BorrowedNode, LoanPhase, NodeSupply
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.client.runs import Ebb
from tests.client.scripted_master import ScriptedMaster, serving

KNOWN = 500
"""Loans that Slurm knows; those that do not run have ended."""


class NeedyMaster(ScriptedMaster):
    """A master whose jobs would use any number of nodes, and that ``cuts_off`` the replies to removals, or does not."""

    cuts_off = False

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def RemoveNode(self, request: client_pb2.NodeRequest, context: grpc.ServicerContext) -> client_pb2.RemoveNodeReply:
        reply = super().RemoveNode(request, context)
        self.nodes[:] = [node for node in self.nodes if node.name != request.node]
        self.order.append(f"remove {request.node}")
        if self.cuts_off:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the master is stopping")
        return reply

    def CountDemand(self, request: client_pb2.DemandRequest, context: grpc.ServicerContext) -> client_pb2.DemandReply:
        self._note("CountDemand", request, context)
        return client_pb2.DemandReply(nodes=request.nodes)

    def InviteNode(
        self, request: client_pb2.InviteNodeRequest, context: grpc.ServicerContext
    ) -> client_pb2.InviteNodeReply:
        self._note("InviteNode", request, context)
        return client_pb2.InviteNodeReply(address="localhost:1", secret="s", ca="")

    def ConfirmDead(self, request: client_pb2.NodeRequest, context: grpc.ServicerContext) -> client_pb2.NodeReply:
        self._note("ConfirmDead", request, context)
        return client_pb2.NodeReply()

    def RevokeNode(
        self, request: client_pb2.RevokeNodeRequest, context: grpc.ServicerContext
    ) -> client_pb2.RevokeNodeReply:
        self._note("RevokeNode", request, context)
        self.order.append(f"revoke {request.node}")
        return client_pb2.RevokeNodeReply()


class Counted:
    """A supply with so many nodes up, and a Slurm whose commands are counted, and for which they run or have ended."""

    def __init__(self, home: Path, master: NeedyMaster, nodes: int, run: bool = True) -> None:
        self.home = home
        self.describe("gpus_per_node = 2")
        self.folder = SupplyFolder.of(Home(home), "hpc")
        self.folder.make()
        self.log = home / "commands"
        self.log.touch()
        self.now = time.time()
        self.at: dict[str, list[float]] = defaultdict(list)
        loans = [BorrowedNode(f"hpc-{number}", 1.0, 1.0, phase=LoanPhase.UP, was_up=True) for number in range(nodes)]
        known = NodeSupply("hpc", self.borrowing.settings, {loan.id: loan for loan in loans}, number=KNOWN)
        self.folder.save(facts_of(known))
        master.nodes += [client_pb2.Node(name=loan.id, state="up", labels={"supply": "hpc"}) for loan in loans]
        states = ["RUNNING" if run else "COMPLETED"] * nodes + ["COMPLETED"] * (KNOWN - nodes)
        listed = "\n".join(f"ebb-hpc-{number}|{number}|{state}|N/A|None" for number, state in enumerate(states))
        asked = f"sed -n 's/^sbatch .*\\/\\(hpc-[0-9]*\\)\\.sh$/ebb-\\1|9|PENDING|N\\/A|Priority/p' {self.log}"
        for name, does in (
            ("squeue", f"cat <<'E'\n{listed}\nE\n{asked}"), ("sbatch", "echo 9"),
            ("scontrol", "echo 'ProctrackType = proctrack/cgroup'"), ("scancel", ""),
        ):  # fmt: skip
            path = home / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.log}\n{does}\n')
            path.chmod(0o755)

    def describe(self, words: str) -> None:
        """Have the file say what nodes are like."""
        (self.home / FILE).write_text(f'[supply.hpc]\nmax_nodes = 256\nbacklog = 256\ntime = "8h"\n{words}\n')
        self.borrowing = read(self.home / FILE, "hpc")

    def supplier(self) -> Supplier:
        """One that begins with what the last one has left."""
        lender = Slurm(self.borrowing, self.borrowing.lender, self.folder.path)
        made = Supplier(self.borrowing, self.folder, lender, None, lambda line: None)
        made.supply = self.folder.load("hpc", self.borrowing.settings)
        made.supply.describe(self.borrowing.mark)
        return made

    def serve(self, supplier: Supplier, seconds: int) -> None:
        """Let it serve for so long."""
        for _ in range(seconds):
            before = len(self.log.read_text().splitlines())
            supplier.round(self.now)
            for line in self.log.read_text().splitlines()[before:]:
                self.at[line.split()[0]].append(self.now)
            self.now += 1.0


@pytest.fixture
def needy(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NeedyMaster]:
    monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin")
    scripted = NeedyMaster()
    with serving(scripted) as address:
        monkeypatch.setenv("EBB_MASTER", address)
        yield scripted


@pytest.mark.parametrize("nodes", [1, 250])
def test_slurm_is_asked_twice_a_minute_however_many_loans_there_are(home: Path, needy: NeedyMaster, nodes: int) -> None:
    counted = Counted(home, needy, nodes)
    counted.serve(counted.supplier(), 61)
    assert len(counted.at["squeue"]) == 3
    assert all(later - earlier >= 30.0 for earlier, later in pairwise(counted.at["squeue"]))
    assert len(counted.at["sbatch"]) == min(13, 256 - nodes)
    assert all(later - earlier >= 5.0 for earlier, later in pairwise(counted.at["sbatch"]))
    assert set(counted.at) <= {"squeue", "sbatch", "scontrol"}
    assert len(counted.at["scontrol"]) == 1


def test_suppliers_that_are_started_again_and_again_ask_no_more_often_together(home: Path, needy: NeedyMaster) -> None:
    counted = Counted(home, needy, 1)
    for _ in range(11):
        counted.serve(counted.supplier(), 3)
    assert len(counted.at["squeue"]) == 2
    assert len(counted.at["sbatch"]) == 7


def test_what_the_last_node_had_is_remembered_when_it_has_gone_until_the_file_says_something_else(
    home: Path, needy: NeedyMaster
) -> None:
    counted = Counted(home, needy, 2)
    counted.describe("gpus_per_node = 1")
    has = agent_pb2.GpuInfo(
        uuid="G", model="A100", mem_bytes=1 << 35, healthy=True, compute_capability="8.0", mps=True, parent="P"
    )
    for node, gpu in zip(needy.nodes, (agent_pb2.GpuInfo(model="H100", mem_bytes=1 << 36), has), strict=True):
        node.gpus.add().info.CopyFrom(gpu)
    needy.nodes[1].gpus[0].info.healthy = False
    counted.serve(counted.supplier(), 1)
    needy.nodes.clear()
    counted.serve(counted.supplier(), 1)
    assert [list(request.like.gpus) for request in needy.sent("CountDemand")] == [[has]] * 2
    counted.describe("gpus_per_node = 4")
    counted.serve(counted.supplier(), 1)
    assert len(needy.sent("CountDemand")[-1].like.gpus) == 4


A_GPU = agent_pb2.GpuInfo(model="A100", mem_bytes=1 << 35, healthy=True)
UNREAD = agent_pb2.GpuInfo(model="A100", healthy=True)


def up(number: int, *gpus: agent_pb2.GpuInfo) -> client_pb2.Node:
    """The node of a loan, with these GPUs."""
    shown = [client_pb2.NodeGpu(info=gpu) for gpu in gpus]
    return client_pb2.Node(name=f"hpc-{number}", state="up", labels={"supply": "hpc"}, gpus=shown)


def counted_on(counted: Counted, needy: NeedyMaster, supplier: Supplier, *nodes: client_pb2.Node) -> tuple[int, int]:
    """How many GPUs, and how many of known memory, the next node is expected to have while these are up."""
    needy.nodes[:] = nodes
    counted.serve(supplier, 6)
    like = needy.sent("CountDemand")[-1].like
    return len(like.gpus), sum(gpu.mem_bytes > 0 for gpu in like.gpus)


@pytest.mark.parametrize("poor", [(A_GPU,), (A_GPU, UNREAD), ()], ids=["fewer GPUs", "one unread", "no GPUs"])
def test_one_node_with_less_than_was_asked_for_does_not_keep_a_supply_from_asking(
    home: Path, needy: NeedyMaster, poor: tuple[agent_pb2.GpuInfo, ...]
) -> None:
    counted = Counted(home, needy, 3)
    supplier = counted.supplier()
    assert counted_on(counted, needy, supplier, up(0, A_GPU, A_GPU)) == (2, 2)
    assert counted_on(counted, needy, supplier, up(1, *poor)) == (2, 2)
    assert counted_on(counted, needy, counted.supplier(), up(0, A_GPU, A_GPU), up(1, *poor)) == (2, 2)
    assert counted_on(counted, needy, counted.supplier()) == (2, 2)


def test_nodes_that_have_less_than_the_file_says_one_after_the_other_are_believed_until_one_has_all(
    home: Path, needy: NeedyMaster
) -> None:
    counted = Counted(home, needy, 3)
    supplier = counted.supplier()
    assert counted_on(counted, needy, supplier, up(0, A_GPU)) == (2, 2)
    assert counted_on(counted, needy, supplier) == (2, 2)
    assert counted_on(counted, needy, supplier, up(1, A_GPU)) == (1, 1)
    assert counted_on(counted, needy, counted.supplier()) == (1, 1)
    assert counted_on(counted, needy, counted.supplier(), up(2, A_GPU, A_GPU)) == (2, 2)


def test_nodes_that_have_lost_gpus_say_nothing_about_others(home: Path, needy: NeedyMaster) -> None:
    counted = Counted(home, needy, 2)
    supplier = counted.supplier()
    assert counted_on(counted, needy, supplier, up(0, A_GPU, A_GPU), up(1, A_GPU, A_GPU)) == (2, 2)
    assert counted_on(counted, needy, counted.supplier(), up(0, A_GPU), up(1, A_GPU)) == (2, 2)


def test_who_resumes_a_supply_has_it_forget_what_its_nodes_had(home: Path, needy: NeedyMaster) -> None:
    counted = Counted(home, needy, 2)
    supplier = counted.supplier()
    assert counted_on(counted, needy, supplier, up(0, A_GPU), up(1, A_GPU)) == (1, 1)
    counted.folder.wish(do="resume")
    assert counted_on(counted, needy, supplier, up(0, A_GPU), up(1, A_GPU)) == (2, 2)


@pytest.mark.parametrize("poor", [(), (up(1, A_GPU),)], ids=["good nodes only", "and one poor one"])
def test_who_resumes_a_supply_has_it_forget_nothing_about_good_nodes(
    home: Path, needy: NeedyMaster, poor: tuple[client_pb2.Node, ...]
) -> None:
    counted = Counted(home, needy, 4)
    supplier = counted.supplier()
    of_a_model = agent_pb2.GpuInfo(model="H100", mem_bytes=1 << 36, healthy=True)
    for left in ((up(0, of_a_model, of_a_model), *poor), ()):
        counted_on(counted, needy, supplier, *left)
        counted.folder.wish(do="resume")
        counted_on(counted, needy, supplier, *left)
        assert [gpu.model for gpu in needy.sent("CountDemand")[-1].like.gpus] == ["H100", "H100"]
    later = agent_pb2.GpuInfo(model="B200", mem_bytes=1 << 37, healthy=True)
    counted_on(counted, needy, supplier, up(2, later, later))
    assert {gpu.model for gpu in needy.sent("CountDemand")[-1].like.gpus} == {"B200"}, "it was asked for before"


@pytest.mark.parametrize(("wanted", "cpus"), [(0, 3.0), (2, MAX_CPUS)])
def test_a_node_without_gpus_is_known_for_what_it_has_only_if_none_were_asked_for(
    home: Path, needy: NeedyMaster, wanted: int, cpus: float
) -> None:
    counted = Counted(home, needy, 1)
    counted.describe(f"gpus_per_node = {wanted}")
    needy.nodes[0].cpus = 3.0
    counted.serve(counted.supplier(), 1)
    assert needy.sent("CountDemand")[-1].like.cpus == cpus


def test_slurm_is_asked_though_the_clock_was_set_back(home: Path, needy: NeedyMaster) -> None:
    counted = Counted(home, needy, 1)
    counted.serve(counted.supplier(), 1)
    counted.now -= 3600.0
    counted.serve(counted.supplier(), 1)
    assert len(counted.at["squeue"]) == 2


def test_the_master_is_asked_and_told_though_the_clock_was_set_back(home: Path, needy: NeedyMaster) -> None:
    counted = Counted(home, needy, 1, run=False)
    counted.folder.wish(do="pause")
    supplier = counted.supplier()
    counted.serve(supplier, 1)
    asked = len(needy.sent("CountDemand"))
    counted.now -= 3600.0
    needy.nodes[0].state = "down"
    counted.serve(supplier, 1)
    assert len(needy.sent("CountDemand")) == asked + 1
    assert [request.node for request in needy.sent("ConfirmDead")] == ["hpc-0"]


def test_the_nodes_of_any_number_of_loans_that_end_together_are_confirmed_dead_and_removed(
    home: Path, needy: NeedyMaster
) -> None:
    counted = Counted(home, needy, REMEMBERED + 10, run=False)
    for node in needy.nodes:
        node.state = "down"
    names = {node.name for node in needy.nodes}
    supplier = counted.supplier()
    counted.serve(supplier, 1)
    assert {request.node for request in needy.sent("ConfirmDead")} == names
    assert {request.node for request in needy.sent("RemoveNode")} == names
    needy.nodes.clear()
    counted.serve(supplier, 36)
    assert len([loan for loan in supplier.supply.loans.values() if loan.is_over]) == REMEMBERED


def test_while_the_master_is_away_nothing_is_asked_for_and_no_wish_is_used_up(
    home: Path, needy: NeedyMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(home, needy, 1)
    counted.folder.wish(do="add", nodes=2)
    supplier = counted.supplier()
    with monkeypatch.context() as patch:
        patch.setattr(type(supplier), "_nodes", lambda self: None)
        counted.serve(supplier, 31)
    assert (len(counted.at["squeue"]), counted.at["sbatch"]) == (2, [])
    assert (supplier.supply.wanted, supplier.supply.failures) == (2, 0)
    counted.serve(supplier, 6)
    assert (len(counted.at["sbatch"]), supplier.supply.wanted) == (2, 0)


@pytest.mark.parametrize("error", [Unreachable("the master is away"), TooFast("too fast", 1.0)], ids=["away", "busy"])
def test_a_master_that_invites_no_node_just_now_is_asked_again_and_makes_no_failure(
    home: Path, needy: NeedyMaster, monkeypatch: pytest.MonkeyPatch, error: Failure
) -> None:
    def not_now(*_: object) -> None:
        raise error

    counted = Counted(home, needy, 1)
    counted.folder.wish(do="add", nodes=2)
    supplier = counted.supplier()
    with monkeypatch.context() as patch:
        patch.setattr(type(supplier), "_invitation", not_now)
        counted.serve(supplier, 11)
    assert (supplier.supply.wanted, supplier.supply.failures, counted.at["sbatch"]) == (2, 0, [])
    assert len(needy.sent("RevokeNode")) == 3, "the master may have made an invitation, though nobody heard so"
    counted.serve(supplier, 11)
    assert (len(counted.at["sbatch"]), supplier.supply.wanted) == (2, 0)


def test_who_adds_nodes_is_told_how_many_there_may_be(home: Path, ebb: Ebb) -> None:
    (home / FILE).write_text('[supply.hpc]\nmax_nodes = 2\ngpus_per_node = 2\ntime = "8h"\n')
    told = ebb("supply", "add", "hpc", "--nodes", "5").out
    assert told.startswith("2 nodes will be asked for, as hpc borrows at most 2; no supplier runs")
    assert ebb("supply", "add", "hpc", "--nodes", "2").out.startswith("2 nodes will be asked for; no supplier runs")


def test_loans_that_ran_well_while_no_supplier_ran_are_no_failures(home: Path, needy: NeedyMaster) -> None:
    counted = Counted(home, needy, 3, run=False)
    supplier = counted.supplier()
    for loan in supplier.supply.loans.values():
        loan.phase, loan.was_up = LoanPhase.QUEUED, False
    for node in needy.nodes:
        node.state = "ended"
    counted.serve(supplier, 1)
    assert all(loan.is_over for loan in supplier.supply.loans.values() if loan.id != f"hpc-{KNOWN + 1}")
    assert (supplier.supply.failures, len(counted.at["sbatch"])) == (0, 1)


@pytest.mark.parametrize("amid", ["save", "remove_wishes"])
def test_wishes_are_granted_once_though_the_supplier_is_killed_meanwhile(
    home: Path, needy: NeedyMaster, monkeypatch: pytest.MonkeyPatch, amid: str
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    counted = Counted(home, needy, 1)
    counted.folder.wish(do="add", nodes=3)
    counted.folder.wish(do="pause")
    with monkeypatch.context() as patch:
        patch.setattr(SupplyFolder, amid, killed)
        with pytest.raises(KeyboardInterrupt):
            counted.serve(counted.supplier(), 1)
    supplier = counted.supplier()
    counted.serve(supplier, 1)
    assert (supplier.supply.paused, supplier.supply.wanted, len(counted.at["sbatch"])) == (True, 2, 1)


def test_the_invitation_of_a_loan_that_ends_before_its_node_came_is_withdrawn(home: Path, needy: NeedyMaster) -> None:
    counted = Counted(home, needy, 1, run=False)
    (home / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2\nexit 1\n")
    counted.serve(counted.supplier(), 12)
    invited = [request.node for request in needy.sent("InviteNode")]
    assert len(invited) > 1
    assert [request.node for request in needy.sent("RevokeNode")] == invited


def test_an_invitation_is_withdrawn_once_the_master_answers_again(
    home: Path, needy: NeedyMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unreachable("the master is away")

    counted = Counted(home, needy, 1, run=False)
    (home / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2\nexit 1\n")
    supplier = counted.supplier()
    with monkeypatch.context() as patch:
        patch.setattr(type(supplier), "_withdraw", away)
        counted.serve(supplier, 6)
    invited = [request.node for request in needy.sent("InviteNode")]
    assert invited
    assert needy.sent("RevokeNode") == []
    counted.serve(supplier, 6)
    assert {request.node for request in needy.sent("RevokeNode")} >= set(invited)


@pytest.mark.parametrize("cuts_off", [False, True])
def test_the_certificate_of_a_machine_that_was_given_back_is_revoked_once_its_node_is_removed(
    home: Path, needy: NeedyMaster, cuts_off: bool
) -> None:
    counted = Counted(home, needy, 1, run=False)
    counted.folder.wish(do="pause")
    needy.nodes[0].state, needy.cuts_off = "down", cuts_off
    supplier = counted.supplier()
    supplier.supply.loans["hpc-0"].invited = True
    counted.serve(supplier, 20)
    assert needy.order == ["remove hpc-0", "revoke hpc-0"]

"""The master dies while something is on its way: a reply, or a launch (promises P1 and P2)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2

from tests.e2e.cluster import ANY_ACCOUNT, wait_for
from tests.e2e.day.line import Line
from tests.faults.daemons import Daemon, end_all_of, published
from tests.faults.proxy import Hold, Proxy, Way, a_line
from tests.proof import reach

WITNESS = Path(__file__).parents[1] / "e2e" / "witness.py"


class World:
    """A master that is killed and started again, a line to it, and one that is never bad."""

    def __init__(self, home: Path, bad: Proxy) -> None:
        self.home, self.bad = home, bad
        self.master = Daemon(home, "master", "master")
        self.line = Line(home)

    def start(self) -> None:
        self.master.start()
        published(self.home, self.master)

    def jobs(self) -> list[client_pb2.Job]:
        return list(self.line.ask("ListJobs", client_pb2.ListJobsRequest(all=True)).jobs)

    def request(self, *command: str, operation: str = "one") -> client_pb2.SubmitRequest:
        spec = job_pb2.JobSpec(
            command=command, workdir="/", env={"PATH": "/usr/bin:/bin"},
            gpus_min=job_pb2.Share(numerator=1, denominator=1),
        )  # fmt: skip
        return client_pb2.SubmitRequest(spec=spec, operation_id=operation)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """It serves; nothing of it is left in the end."""
    with a_line(tmp_path, "bad") as bad:
        world = World(tmp_path, bad)
        with world.master:
            world.start()
            try:
                yield world
            finally:
                world.line.close()
                end_all_of(tmp_path)


def test_who_asks_again_because_the_reply_never_came_gets_the_job_that_is_there(world: World) -> None:
    request = world.request("true")
    with reach(world.home, over=world.bad.home) as channel:
        grpc.channel_ready_future(channel).result(10)
        world.bad.set(Hold(), Way.BACK)
        reply = client_pb2_grpc.ClientServiceStub(channel).Submit.future(request, timeout=30)
        [job] = wait_for("it is on disk", world.jobs)
        world.master.kill()
        world.bad.drop()
        assert reply.code() == grpc.StatusCode.UNAVAILABLE
    world.start()
    assert [found.job_id for found in world.jobs()] == [job.job_id]
    assert world.line.ask("Submit", request).job_id == job.job_id
    assert len(world.jobs()) == 1


@pytest.mark.parametrize("arrives", [False, True], ids=["and-is-lost", "and-arrives-later"])
def test_one_attempt_runs_if_the_master_dies_while_its_launch_is_on_its_way(world: World, arrives: bool) -> None:
    options = ("--gpus", "1xT4", "--warm", "0", "--master", f"unix:{world.bad.home}")
    with Daemon(world.home, "agent-n1", "agent", "--name", "n1", *ANY_ACCOUNT, *options) as agent:
        agent.start()
        wait_for("the node is there", lambda: world.line.ask("ListNodes", client_pb2.ListNodesRequest()).nodes)
        world.bad.set(Hold(), Way.BACK)
        request = world.request(sys.executable, str(WITNESS), str(world.home), "10", "7")
        job = world.line.ask("Submit", request).job_id
        wait_for("it is ordered", lambda: world.jobs()[0].state == job_pb2.JOB_STATE_STARTING)
        world.master.kill()
        if not arrives:
            world.bad.drop()
        world.bad.heal()
        world.start()
        wait_for("it is over", lambda: world.jobs()[0].state == job_pb2.JOB_STATE_FAILED)
        [shown] = world.jobs()
        assert (shown.job_id, shown.exit_code, shown.attempt) == (job, 7, 1)
        [output] = world.home.glob("nodes/n1/attempts/*/output.log")
        assert output.read_text().count("attempt 1") == 1
        assert not (world.home / "overlap").exists()

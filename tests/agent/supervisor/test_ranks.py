"""Jobs of several ranks, one process for each GPU."""

import json
import signal
import socket

from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import GIB, gpus, order, python

DDP = {"launch": job_pb2.LAUNCH_MODE_DDP}
SLEEP = python("import time; time.sleep(600)")
TELL = "import json, os, sys; sys.stdout.write(json.dumps(dict(os.environ)) + '\\n')"
WAIT = """
import os, signal, sys, time
rank = os.environ["RANK"]
def end(signum, frame):
    time.sleep(float(sys.argv[2]) * int(rank))
    print(f"rank {rank} got it\\n", end="", flush=True)
    os._exit(85)
signal.signal(signal.SIGTERM, end)
print(f"rank {rank} up\\n", end="", flush=True)
while rank != "2" or not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os._exit(3)
"""


async def test_each_gpu_gets_a_rank_and_all_ranks_one_port(agent):
    async with agent() as node:
        status = await node.run(python(TELL), gpus=gpus(3), cpus=7.0, **DDP)
        assert status.exit.exit_code == 0
        ranks = sorted((json.loads(line) for line in node.log().splitlines()), key=lambda rank: rank["RANK"])
        assert [rank["RANK"] for rank in ranks] == ["0", "1", "2"]
        assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2"]
        shared = {(rank["WORLD_SIZE"], rank["LOCAL_WORLD_SIZE"], rank["MASTER_ADDR"]) for rank in ranks}
        assert shared == {("3", "3", "127.0.0.1")}
        assert {rank["CUDA_VISIBLE_DEVICES"] for rank in ranks} == {"GPU-0,GPU-1,GPU-2"}
        assert {rank["OMP_NUM_THREADS"] for rank in ranks} == {"2"}
        (port,) = {int(rank["MASTER_PORT"]) for rank in ranks}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


async def test_a_rank_that_fails_stops_the_others_and_speaks_for_the_attempt(agent, tmp_path):
    async with agent() as node:
        go = tmp_path / "go"
        await node.launch(python(WAIT, str(go), "0"), gpus=gpus(4), **DDP)
        await node.until(lambda: node.log().count("up") == 4)
        go.touch()
        status = await node.end()
        assert (status.exit.exit_code, status.exit.signal, status.exit.failed_rank) == (3, 0, 2)
        assert not status.exit.stop_requested
        assert node.log().count("got it") == 3


async def test_asked_to_stop_every_rank_is_signalled_and_has_the_whole_grace_period(agent, tmp_path):
    async with agent() as node:
        await node.launch(python(WAIT, str(tmp_path / "go"), "0.3"), gpus=gpus(3), **DDP)
        await node.until(lambda: node.log().count("up") == 3)
        status = await node.stop()
        assert (status.exit.exit_code, status.exit.killed, status.exit.failed_rank) == (85, False, 0)
        assert node.log().count("got it") == 3


async def test_when_the_leader_has_ended_well_the_others_may_finish(agent):
    code = "import os, time; time.sleep(0.3 * int(os.environ['RANK'])); print('done', flush=True)"
    async with agent() as node:
        status = await node.run(python(code), gpus=gpus(2), **DDP)
        assert (status.exit.exit_code, status.exit.failed_rank) == (0, 0)
        assert node.log() == "done\ndone\n"


async def test_fake_gpus_show_each_rank_on_its_own_gpu_and_nothing_after_the_end(agent, disk):
    async with agent(fake_gpus=True) as node:
        await node.launch(SLEEP, gpus=gpus(2), gpu_mem_bytes=3 * GIB, **DDP)
        await node.running()
        entries = [json.loads(path.read_text()) for path in (disk / "gpus" / "processes").glob("*.json")]
        held = {entry["pid"]: entry["gpus"] for entry in entries}
        leader, other = sorted(held, key=lambda pid: pid != node.status().pid)
        assert held == {leader: {"GPU-0": 3 * GIB}, other: {"GPU-1": 3 * GIB}}
        assert {entry["starttime"] for entry in entries} == {process.starttime for process in node.jobs()}
        assert (await node.stop(0.0)).exit.signal == signal.SIGKILL
        assert list((disk / "gpus" / "processes").iterdir()) == []


async def test_fake_gpus_show_a_single_process_on_all_its_gpus_with_a_nominal_amount(agent, disk):
    async with agent(fake_gpus=True) as node:
        small, large = gpus(1, (1, 4), 500 << 20)[0], gpus(2)[1]
        await node.launch(SLEEP, gpus=(small, large))
        pid = (await node.running()).pid
        entry = json.loads((disk / "gpus" / "processes" / f"{pid}.json").read_text())
        assert entry["gpus"] == {"GPU-0": 500 << 20, "GPU-1": 600 << 20}


async def test_if_a_rank_cannot_start_none_stays(agent, disk):
    """The second rank finds the directory of fake GPUs' processes gone bad."""
    async with agent(fake_gpus=True) as node:
        (disk / "gpus").touch()
        status = await node.run(SLEEP, gpus=gpus(2), **DDP)
        assert "cannot start the attempt" in status.refusal
        assert node.jobs() == []


async def test_the_allocation_is_what_was_launched_on(agent):
    async with agent() as node:
        await node.attempts.launch(order(SLEEP, gpus=gpus(2, (1, 4))))
        assert node.attempts.holders.allocation("1", 1) == gpus(2, (1, 4))
        assert node.attempts.holders.allocation("1", 2) == ()

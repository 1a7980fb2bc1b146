"""Pools over the wire: nodes and jobs that name one, and what is told of them."""

import grpc
from ebbtide_core.model.settings import Fitting, PoolSettings, Settings
from ebbtide_protos.v1 import client_pb2

from tests.master.world import (
    EXITED,
    FREED,
    RUNNING,
    STEPPED_ASIDE,
    a_master,
    make_hello,
    make_spec,
    make_status,
    refused,
)

BIG = PoolSettings(policy="priority", options={"preemption": "off"}, fitting=Fitting.WORST)
TWO = Settings(pools={"default": PoolSettings(), "big": BIG}, gpu_pool="big")


async def change(master, job, **fields):
    return await master.ask.Change(client_pb2.ChangeRequest(job_id=job, user="ann", **fields))


async def pool_of(master, node):
    return (await master.until_node(node, "up")).pool


async def test_a_node_that_names_no_pool_is_in_the_default_one(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        await master.agent("n1")
        await master.agent("n2", pool="big")
        assert (await pool_of(master, "n1"), await pool_of(master, "n2")) == ("default", "big")


async def test_a_node_of_a_pool_that_there_is_not_is_rejected_with_those_that_there_are(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        agent = master.connect(make_hello("n1", pool="small"))
        await agent.send(hello=agent.hello)
        rejected = await agent.receive("rejected")
        assert rejected.reason == "--pool small: the master has no such pool: there are default, big"
        assert not (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes


async def test_jobs_that_name_no_pool_go_where_their_like_goes(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        gpu, cpu = await master.submit(1), await master.submit(0)
        named = await master.submit(1, pool="default")
        assert [(await master.show(job)).pool for job in (gpu, cpu, named)] == ["big", "default", "default"]


async def test_a_pool_that_there_is_not_is_refused_at_submit_and_in_a_dry_run(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        for dry_run in (False, True):
            request = client_pb2.SubmitRequest(spec=make_spec(pool="small"), user="ann", dry_run=dry_run)
            assert await refused(master.ask.Submit(request)) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "--pool: there is no pool 'small': there are default, big",
            )
        assert (await master.ask.Submit(client_pb2.SubmitRequest(spec=make_spec(), dry_run=True))).job_id == ""


async def test_a_running_job_is_moved_and_is_launched_on_the_other_pool_s_node(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        here, there = await master.agent("n1", pool="big"), await master.agent("n2")
        job = await master.running(here, 1)
        message = await change(master, job, pool="default")
        assert (message.pool, message.moves_to) == ("big", "default")
        assert (await here.receive("stop")).job_id == job
        await here.report(job, 1, EXITED, exit=STEPPED_ASIDE)
        await here.report(job, 1, FREED, exit=STEPPED_ASIDE)
        launch = await there.receive("launch")
        assert (launch.job_id, launch.attempt) == (job, 2)
        message = await master.show(job)
        assert (message.pool, message.moves_to) == ("default", "")


async def test_of_a_change_that_is_refused_in_part_nothing_is_done(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        job = await master.submit(1)
        code, _ = await refused(change(master, job, pool="default", priority=200))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        code, _ = await refused(change(master, job, pool="small", priority=5))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        message = await master.show(job)
        assert (message.pool, message.spec.priority) == ("big", 42)


async def test_the_tasks_of_an_array_that_are_not_over_are_moved(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        agent = await master.agent("n1", 1, pool="big")
        tasks = [client_pb2.ArrayTask(index=index) for index in range(3)]
        array = (await master.ask.Submit(client_pb2.SubmitRequest(spec=make_spec(), tasks=tasks))).job_id
        await agent.receive("launch")
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=f"{array}.2"))
        await change(master, array, pool="default")
        shown = [await master.show(f"{array}.{index}") for index in range(3)]
        assert [task.moves_to or task.pool for task in shown] == ["default", "default", "big"]
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=f"{array}.1"))
        await agent.report(f"{array}.0", 1, FREED)
        await master.becomes(f"{array}.0", "COMPLETED")
        code, words = await refused(change(master, array, pool="big"))
        assert (code, words) == (grpc.StatusCode.FAILED_PRECONDITION, f"job {array}.0 is COMPLETED already")


async def test_a_node_with_a_job_stays_in_its_pool_until_that_is_over(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        agent = await master.agent("n1", pool="big")
        job = await master.running(agent, 1)
        await agent.hang_up()
        again = await master.agent("n1", pool="default", attempts=[make_status(job, 1, RUNNING)])
        node = await master.until_node("n1", "up")
        assert (node.pool, node.moves_to) == ("big", "default")
        await again.report(job, 1, FREED)
        await master.becomes(job, "COMPLETED")
        node = await master.until_node("n1", "up")
        assert (node.pool, node.moves_to) == ("default", "")


async def test_a_node_that_was_rebooted_is_in_its_new_pool_at_once(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        agent = await master.agent("n1", pool="big")
        job = await master.running(agent, 1)
        await agent.hang_up()
        await master.agent("n1", pool="default", boot_id="boot-2")
        node = await master.until_node("n1", "up")
        assert (node.pool, node.moves_to) == ("default", "")
        assert (await master.show(job)).pool == "big"


async def test_the_pools_are_told_with_their_policies(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        info = await master.ask.ShowCluster(client_pb2.ShowClusterRequest())
        told = {pool.name: (pool.policy, dict(pool.options), pool.fitting, pool.for_gpus) for pool in info.pools}
        assert told == {
            "default": ("fitgpp", {}, "best", False),
            "big": ("priority", {"preemption": "off"}, "worst", True),
        }
        assert [pool.name for pool in (await master.ask.ListNodes(client_pb2.ListNodesRequest())).pools] == [*told]


async def test_a_node_of_a_pool_that_is_configured_no_more_is_let_in_and_its_job_can_be_moved(tmp_path):
    async with a_master(tmp_path, settings=TWO) as master:
        agent = await master.agent("n1", pool="big")
        job = await master.running(agent, 1)
    async with a_master(tmp_path) as master:
        await master.agent("n1", pool="big", attempts=[make_status(job, 1, RUNNING)])
        assert (await master.becomes(job, "RUNNING")).pool == "big"
        fresh = master.connect(make_hello("n2", pool="big"))
        await fresh.send(hello=fresh.hello)
        assert "no such pool" in (await fresh.receive("rejected")).reason
        info = await master.ask.ShowCluster(client_pb2.ShowClusterRequest())
        assert [(pool.name, pool.policy) for pool in info.pools] == [("default", "fitgpp"), ("big", "")]
        assert (await change(master, job, pool="default")).moves_to == "default"

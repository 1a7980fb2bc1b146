"""Finished jobs, and dead nodes, that somebody removes."""

import asyncio

import grpc
from ebbtide_core.model import limits
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.api.test_users import people
from tests.master.world import DEADLINE_S, FREED, Agent, Master, a_master, make_spec, refused

UNKNOWN, CONFLICT = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION


def remove(job: str) -> client_pb2.JobRequest:
    return client_pb2.JobRequest(job_id=job)


async def over(master: Master, agent: Agent) -> str:
    job = await master.running(agent)
    await agent.report(job, 1, FREED)
    await master.becomes(job, "COMPLETED")
    return job


async def test_a_finished_job_is_removed_for_good_and_nodes_are_told_to_ask(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        gone, kept = await over(master, agent), await over(master, agent)
        assert list((await master.ask.Remove(remove(gone))).job_ids) == [gone]
        await agent.receive("jobs_removed")
        await agent.send(read_checkpoint=agent_pb2.ReadCheckpoint(request_id=7, ended_of=[gone, kept]))
        answer = await agent.receive("checkpoint_data")
        assert (list(answer.removed), list(answer.ended_ago_s)) == ([gone], [kept])
        assert await refused(master.ask.ShowJob(remove(gone))) == (UNKNOWN, f"job {gone} was removed")
        assert await refused(master.ask.Remove(remove(gone))) == (UNKNOWN, f"job {gone} was removed")
    async with a_master(tmp_path) as master:
        listed = (await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True))).jobs
        assert [job.job_id for job in listed] == [kept]
        assert await master.submit() not in (gone, kept)


async def test_what_others_need_is_not_removed(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await over(master, agent)
        again = (await master.ask.Requeue(client_pb2.RequeueRequest(job_id=job))).job_id
        words = f"job {job} was submitted again as job {again}: remove that one first"
        assert await refused(master.ask.Remove(remove(job))) == (CONFLICT, words)
        request = client_pb2.SubmitRequest(spec=make_spec(), hold=True)
        request.spec.after.add(job_id=again)
        waits = (await master.ask.Submit(request)).job_id
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=again, now=True))
        await agent.report(again, 1, FREED)
        await master.becomes(again, "COMPLETED")
        words = f"job {waits}, which is not finished, was submitted with --after {again}"
        assert await refused(master.ask.Remove(remove(again))) == (CONFLICT, words)
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=waits))
        for id in (waits, again, job):
            await master.ask.Remove(remove(id))
        assert not (await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True))).jobs


async def test_an_array_goes_as_a_whole_and_others_jobs_are_their_own(tmp_path):
    async with people(tmp_path) as (_, found):
        ann = found["ann"]
        tasks = [client_pb2.ArrayTask(index=index) for index in range(2)]
        request = client_pb2.SubmitRequest(spec=make_spec(), tasks=tasks, operation_id="once")
        assert (await ann.Submit(request)).job_id == "1"
        await ann.Cancel(client_pb2.CancelRequest(job_id="1.1"))
        assert await refused(ann.Remove(remove("1.1"))) == (CONFLICT, "tasks go with their array: remove job 1")
        assert "only a finished one" in (await refused(ann.Remove(remove("1"))))[1]
        await ann.Cancel(client_pb2.CancelRequest(job_id="1"))
        assert (await refused(found["bob"].Remove(remove("1"))))[0] is grpc.StatusCode.PERMISSION_DENIED
        assert list((await ann.Remove(remove("1"))).job_ids) == ["1.0", "1.1"]
        assert await refused(ann.ShowJob(remove("1"))) == (UNKNOWN, "job 1 was removed")
        assert (await ann.Submit(request)).job_id == "1"  # what was asked for once is not done again
        assert await ann.submit() == "2"


async def test_a_dead_node_is_listed_no_more(tmp_path):
    async with a_master(tmp_path) as master:
        await master.agent()
        code, words = await refused(master.ask.RemoveNode(client_pb2.NodeRequest(node="n1")))
        assert (code, words) == (CONFLICT, "node n1 is connected: stop its agent first")
        assert (await refused(master.ask.RemoveNode(client_pb2.NodeRequest(node="n9"))))[0] is UNKNOWN


async def test_an_idle_node_that_does_not_come_back_to_a_new_master_is_lost_and_may_be_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "RECOVERY_GRACE_S", 0.01)
    async with a_master(tmp_path) as master:
        await master.agent()
    async with a_master(tmp_path) as master, asyncio.timeout(DEADLINE_S):
        async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest(follow=True)):
            if event.kind == "NodeLost":
                break
        await master.ask.RemoveNode(client_pb2.NodeRequest(node="n1"))
        assert not (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes

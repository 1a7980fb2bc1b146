"""Which jobs a listing has, and which one somebody means by `@`."""

from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.master.api.test_users import UNKNOWN, Person, people
from tests.master.world import make_spec, refused

CANCELLED = job_pb2.JOB_STATE_CANCELLED


async def listed(person: Person, **asked) -> list[str]:
    return [job.job_id for job in (await person.ListJobs(client_pb2.ListJobsRequest(**asked))).jobs]


async def shown(person: Person, id: str) -> str:
    return (await person.ShowJob(client_pb2.JobRequest(job_id=id))).job_id


async def test_a_listing_may_be_of_ones_own_of_a_user_of_a_state_and_of_the_last_jobs(tmp_path):
    async with people(tmp_path) as (_, found):
        ann, bob = found["ann"], found["bob"]
        first, other, second, third = [await person.submit() for person in (ann, bob, ann, ann)]
        await ann.Cancel(client_pb2.CancelRequest(job_id=second))
        assert await listed(ann) == [first, other, third]
        assert await listed(ann, all=True, states=[CANCELLED]) == [second]
        assert await listed(bob, limit=1) == [third]
        assert await listed(ann, mine=True, all=True, limit=2) == [second, third]
        assert await listed(bob, of_user="ann") == await listed(ann, mine=True) == [first, third]
        assert await listed(ann, of_user="nobody") == []


async def test_an_array_is_listed_if_one_of_its_tasks_is_asked_for(tmp_path):
    async with people(tmp_path) as (_, found):
        ann = found["ann"]
        tasks = [client_pb2.ArrayTask(index=index) for index in range(3)]
        await ann.Submit(client_pb2.SubmitRequest(spec=make_spec(), tasks=tasks))
        await ann.Cancel(client_pb2.CancelRequest(job_id="1.1"))
        assert await listed(ann, all=True, folded=True, states=[CANCELLED]) == ["1"]
        assert await listed(ann, all=True, states=[CANCELLED]) == ["1.1"]


async def test_the_last_job_of_who_asks_has_a_name(tmp_path):
    async with people(tmp_path) as (_, found):
        ann = found["ann"]
        code, words = await refused(ann.ShowJob(client_pb2.JobRequest(job_id="@")))
        assert (code, words) == (UNKNOWN, "there is no job @: you have not submitted any")
        first = await ann.submit()
        await found["bob"].submit()
        tasks = [client_pb2.ArrayTask(index=index) for index in range(2)]
        array = (await ann.Submit(client_pb2.SubmitRequest(spec=make_spec(), tasks=tasks))).job_id
        assert [await shown(ann, id) for id in ("@", "@~1", "@.1")] == [array, first, f"{array}.1"]
        code, words = await refused(ann.ShowJob(client_pb2.JobRequest(job_id="@~2")))
        assert (code, words) == (UNKNOWN, "there is no job @~2: the oldest of yours that is known is @~1")

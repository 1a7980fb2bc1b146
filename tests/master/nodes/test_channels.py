"""The master between a client's channel and a node's stream: what it checks, passes on and bounds."""

import asyncio

import grpc
from ebbtide_core.model import limits
from ebbtide_master.nodes.outbox import AgentOutbox
from ebbtide_protos.v1 import agent_pb2, channel_pb2, job_pb2

from tests.master.world import DEADLINE_S, EXITED, a_master, make_status

RUN = {"run": channel_pb2.RunInside(command=["true"])}


class Client:
    """One call of Connect."""

    def __init__(self, master, job, **want):
        self.call = master.ask.Connect()
        self.want = channel_pb2.OpenChannel(job_id=job, **(want or RUN))

    async def open(self):
        await self.give(open=self.want)

    async def give(self, **body):
        await self.call.write(channel_pb2.ChannelInput(**body))

    async def receive(self):
        async with asyncio.timeout(DEADLINE_S):
            return await self.call.read()

    async def refused(self):
        """The status and words with which the channel is refused."""
        try:
            await self.open()
            await self.receive()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()
        raise AssertionError("it was not refused")


async def accepted(master, agent, job):
    """A channel that both its ends know of, and its number on the node's stream."""
    client = Client(master, job)
    await client.open()
    return client, (await agent.receive("channel")).channel


async def test_frames_are_passed_on_both_ways_to_the_end(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        client = Client(master, job)
        await client.open()
        opening = await agent.receive("channel")
        assert (opening.open.job_id, opening.open.attempt, list(opening.open.run.command)) == (job, 1, ["true"])
        await agent.send(
            channel=channel_pb2.ChannelOutput(channel=opening.channel, opened={"node": "n1", "attempt": 1})
        )
        assert (await client.receive()).opened.node == "n1"
        await client.give(data=b"question")
        assert (await agent.receive("channel")).data == b"question"
        await agent.send(channel=channel_pb2.ChannelOutput(channel=opening.channel, data=b"answer"))
        assert (await client.receive()).data == b"answer"
        await agent.send(channel=channel_pb2.ChannelOutput(channel=opening.channel, closed={"exit_code": 3}))
        assert (await client.receive()).closed.exit_code == 3
        client.call.cancel()


async def test_a_channel_to_what_is_not_there_is_refused(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=1)
        job = await master.running(agent)
        waits = await master.submit()
        assert await Client(master, "77").refused() == (grpc.StatusCode.NOT_FOUND, "job 77 does not exist")
        code, words = await Client(master, waits).refused()
        assert (code, words) == (grpc.StatusCode.FAILED_PRECONDITION, f"job {waits} does not run: it is PENDING")
        code, words = await Client(master, job, node="other", **RUN).refused()
        assert (code, words) == (grpc.StatusCode.NOT_FOUND, f"job {job} is on node n1, not on 'other'")
        code, words = await Client(master, job, session=channel_pb2.AttachSession()).refused()
        assert (code, words) == (
            grpc.StatusCode.FAILED_PRECONDITION, f"job {job} is no shell: 'ebb exec {job}' starts one in it"
        )  # fmt: skip
        code, _ = await Client(master, job, port=70_000).refused()
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        too_many = channel_pb2.ReadTree(paths=["x"] * (limits.MAX_TREE_PATHS + 1))
        code, words = await Client(master, job, tree=too_many).refused()
        assert (code, words) == (grpc.StatusCode.INVALID_ARGUMENT, "paths: 257 are more than the limit of 256")


async def test_input_is_for_jobs_that_read_it(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent(stdin=True)
        job = await master.running(agent)
        reads = await master.running(agent, stdin=True, suspend=job_pb2.SUSPEND_MODE_NONE)
        code, words = await Client(master, job, input=channel_pb2.FeedInput()).refused()
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert words == f"job {job} has no standard input: only what is piped into 'ebb run' has"
        client = Client(master, reads, input=channel_pb2.FeedInput())
        await client.open()
        opening = await agent.receive("channel")
        assert (opening.open.job_id, opening.open.attempt, opening.open.WhichOneof("want")) == (reads, 1, "input")
        client.call.cancel()


async def test_a_client_that_sends_more_than_the_window_is_cut_off(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        client, _ = await accepted(master, agent, job)
        frames = limits.CHANNEL_WINDOW_BYTES // limits.CHANNEL_FRAME_BYTES
        for _ in range(frames + 1):
            await client.give(data=bytes(limits.CHANNEL_FRAME_BYTES))
        assert "262144 bytes were sent without waiting" in (await client.receive()).closed.error
        for _ in range(frames):
            assert len((await agent.receive("channel")).data) == limits.CHANNEL_FRAME_BYTES
        assert (await agent.receive("channel")).close
        large, _ = await accepted(master, agent, job)
        await large.give(data=bytes(limits.CHANNEL_FRAME_BYTES + 1))
        assert "over the limit of 65536 bytes" in (await large.receive()).closed.error


async def test_orders_overtake_frames_and_channels_take_turns():
    outbox = AgentOutbox()
    for channel in (1, 1, 1, 2):
        outbox.put_frame(channel_pb2.ChannelInput(channel=channel))
    outbox.put_nowait(agent_pb2.MasterMessage(stop=agent_pb2.Stop()))
    taken = [await outbox.get() for _ in range(5)]
    assert [message.WhichOneof("body") for message in taken] == ["stop", *["channel"] * 4]
    assert [message.channel.channel for message in taken[1:]] == [1, 2, 1, 1]


async def test_a_node_that_goes_away_ends_its_channels_and_a_client_that_does_tells_the_node(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        left, _ = await accepted(master, agent, job)
        left.call.cancel()
        assert (await agent.receive("channel")).close == "the client went away"
        client, _ = await accepted(master, agent, job)
        agent.vanish()
        assert (await client.receive()).closed.error == "node n1 went away"


async def test_a_job_has_so_many_channels_and_no_more(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        clients = [await accepted(master, agent, job) for _ in range(limits.MAX_CHANNELS_PER_JOB)]
        code, words = await Client(master, job).refused()
        assert (code, words) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED, f"job {job} has 32 open channels already, which is the limit"
        )  # fmt: skip
        clients[0][0].call.cancel()
        await agent.receive("channel")
        await accepted(master, agent, job)


async def test_a_session_has_the_idle_limit_of_the_configuration_unless_it_says_another_or_none(tmp_path):
    async with a_master(tmp_path) as master:
        shell = {"kind": job_pb2.JOB_KIND_SHELL, "suspend": job_pb2.SUSPEND_MODE_NONE}
        limits_s = [(await master.show(await master.submit(**shell, **said))).spec for said in (
            {}, {"idle_limit_s": 60.0}, {"idle_limit_s": 0.0}
        )]  # fmt: skip
        assert [(spec.HasField("idle_limit_s"), spec.idle_limit_s) for spec in limits_s] == [
            (True, 8 * 3600.0), (True, 60.0), (False, 0.0)
        ]  # fmt: skip
        batch = (await master.show(await master.submit())).spec
        assert not batch.HasField("idle_limit_s")


async def test_files_can_be_read_once_the_job_is_over_but_nothing_runs_in_it(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        await agent.send(status=make_status(job, 1, EXITED))
        await master.becomes(job, "COMPLETED")
        code, words = await Client(master, job).refused()
        assert (code, words) == (grpc.StatusCode.FAILED_PRECONDITION, f"job {job} does not run: it is COMPLETED")
        client = Client(master, job, tree=channel_pb2.ReadTree(paths=["x"]))
        await client.open()
        assert (await agent.receive("channel")).open.tree.workdir == "/"

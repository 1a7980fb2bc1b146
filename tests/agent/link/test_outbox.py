"""What waits for a slow stream is the newest of everything, and no more."""

import asyncio

import pytest
from ebbtide_agent.link.outbox import Outbox
from ebbtide_protos.v1 import agent_pb2


def status(job_id, step):
    return agent_pb2.AttemptStatus(job_id=job_id, attempt=1, progress={"step": step})


async def drain(outbox):
    taken = []
    while True:
        try:
            async with asyncio.timeout(0.05):
                taken.append(await outbox.take())
        except TimeoutError:
            return taken


async def test_only_the_newest_status_of_each_attempt_is_sent():
    outbox = Outbox()
    for step in range(1000):
        outbox.put_status(status("17", step))
        outbox.put_status(status("18", step))
    taken = await drain(outbox)
    assert [(message.status.job_id, message.status.progress.step) for message in taken] == [("17", 999), ("18", 999)]


async def test_only_the_newest_heartbeat_is_sent():
    outbox = Outbox()
    for uuid in ("GPU-1", "GPU-2"):
        outbox.put_heartbeat(agent_pb2.Heartbeat(gpus=[agent_pb2.GpuReading(uuid=uuid)]))
    (message,) = await drain(outbox)
    assert message.heartbeat.gpus[0].uuid == "GPU-2"


async def test_every_log_answer_is_sent_in_order_after_what_is_urgent():
    outbox = Outbox()
    for request_id in (1, 2):
        outbox.put_log(agent_pb2.LogData(request_id=request_id))
    outbox.put_heartbeat(agent_pb2.Heartbeat())
    outbox.put_status(status("17", 1))
    kinds = [message.WhichOneof("body") for message in await drain(outbox)]
    assert kinds == ["status", "heartbeat", "log", "log"]


async def test_an_attempt_can_be_told_again_after_it_was_sent():
    outbox = Outbox()
    outbox.put_status(status("17", 1))
    await outbox.take()
    outbox.put_status(status("17", 2))
    assert (await outbox.take()).status.progress.step == 2


async def test_who_takes_from_an_empty_outbox_waits_for_the_next_message():
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put_status(status("17", 1))
    assert (await taking).status.job_id == "17"


@pytest.mark.parametrize("heartbeats", [0, 1])
async def test_a_take_that_is_given_up_loses_nothing(heartbeats):
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    for _ in range(heartbeats):
        outbox.put_heartbeat(agent_pb2.Heartbeat())
    outbox.put_status(status("17", 1))
    assert len(await drain(outbox)) == 1 + heartbeats

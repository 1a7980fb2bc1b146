"""Run a command inside a running job, and return its output."""

from ebbtide_protos.v1 import channel_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.channels.client_channel import open_channel
from ebbtide_cli.submitting.checks import user_name


def output_of(master: str | None, job_id: str, *command: str) -> str:
    """Return all that the command prints on its standard output, whatever its exit code. Raises `Failure`."""
    run = channel_pb2.RunInside(command=command)
    return interrupts.run(_run(master, channel_pb2.OpenChannel(job_id=job_id, user=user_name(), run=run)))


async def _run(master: str | None, want: channel_pb2.OpenChannel) -> str:
    printed = b""
    async with open_channel(master, want) as channel:
        await channel.send_end()
        async for frame in channel.frames():
            printed += frame.data
            await channel.done_with(len(frame.data) + len(frame.errors))
    return printed.decode(errors="replace")

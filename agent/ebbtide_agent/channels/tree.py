"""Sends files of a job over a channel; ebbtide_agent/channels/archive.py reads them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import channel_pb2

import ebbtide_agent
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.channels.channel_end import ChannelEnd, ChannelError
from ebbtide_agent.channels.flow import copy_out, readable

_BOOT = "import sys; sys.path.append(sys.argv[1]); from ebbtide_agent.channels.archive import main; sys.exit(main())"
_LARGEST_REQUEST = 60 * 1024  # fits into a pipe, so that the write does not block
_LONGEST_ANSWER = 64 * 1024


async def send(
    client: ChannelEnd,
    want: channel_pb2.ReadTree,
    roots: Mapping[str, Path],
    opened: channel_pb2.ChannelOpened,
    account: Account | None = None,
) -> channel_pb2.ChannelClosed:
    """Send the wanted files, read with the account's rights. Raises ChannelError. Stops reading when cancelled."""
    names = {name: str(path) for name, path in roots.items()}
    asked = {"paths": list(want.paths), "roots": names, "workdir": want.workdir, "one_file": want.one_file}
    request = json.dumps(asked).encode()
    if len(request) > _LARGEST_REQUEST:
        raise ChannelError(f"the paths have more than {_LARGEST_REQUEST} bytes")
    with ExitStack() as stack:
        reader = _reader(account)
        stack.callback(_give_up, reader)
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdin.write(request)
        reader.stdin.close()
        for pipe in (reader.stdout, reader.stderr):
            os.set_blocking(pipe.fileno(), False)
        head, data = await _head(reader.stdout.fileno())
        if "error" in head:
            raise ChannelError(str(head["error"]))
        opened.total_bytes = int(str(head["total"]))
        client.opened(opened)
        while data:
            room = await client.room()
            client.send(data[:room])
            data = data[room:]
        never = asyncio.Event()
        errors = asyncio.create_task(
            copy_out(client, reader.stderr.fileno(), never, errors=True), name="channel errors"
        )
        try:
            await copy_out(client, reader.stdout.fileno(), never)
            await errors
        finally:
            errors.cancel()
        if await on_daemon_thread(reader.wait):
            raise ChannelError("the files could not be read to their end")
        client.send_end()
    return channel_pb2.ChannelClosed(exit_code=0)


def _reader(account: Account | None) -> "subprocess.Popen[bytes]":
    assert ebbtide_agent.__file__ is not None
    command = [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(ebbtide_agent.__file__).parents[1])]
    pipe = subprocess.PIPE
    given = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
    reader: subprocess.Popen[bytes] = subprocess.Popen(
        command,
        cwd="/",
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},  # nothing secret: the account that it runs as can read it
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        bufsize=0,
        start_new_session=True,
        **given,  # type: ignore[call-overload]  # none of them, or all three
    )
    return reader


def _give_up(reader: "subprocess.Popen[bytes]") -> None:
    """Kill the reader if it still runs, and wait in a thread, because a hanging file system may keep it alive."""
    for pipe in (reader.stdin, reader.stdout, reader.stderr):
        if pipe is not None:
            pipe.close()
    if reader.poll() is None:
        reader.kill()
        on_daemon_thread(reader.wait)


async def _head(source: int) -> tuple[dict[str, object], bytes]:
    """Return the reader's first line, and the data that came after it."""
    received = b""
    while b"\n" not in received and len(received) < _LONGEST_ANSWER:
        await readable(source)
        if not (data := os.read(source, _LONGEST_ANSWER)):
            raise ChannelError("the files cannot be read")
        received += data
    line, _, rest = received.partition(b"\n")
    return json.loads(line), rest

"""``ebb cp``: fetch files of a job from its node."""

import asyncio
import os
import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.quantities import abbreviated
from ebbtide_protos.v1 import channel_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.channels.client_channel import ClientChannel, open_channel, write_all
from ebbtide_cli.channels.extracting import NotAnArchive, Unpacked, unpack
from ebbtide_cli.commands.verb import examples, json_option, known_id, master_option
from ebbtide_cli.errors import FAILED, OK, USAGE, Failure
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import StatusLine, complain, print_json
from ebbtide_cli.values import format_size

STDOUT: Final = "-"
SHOWN: Final = 10
"""Lines on files that could not be copied."""
_CLOSING_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobPath:
    """A job and a path in it."""

    job_id: str
    path: str

    @property
    def name(self) -> str:
        """Its name in a directory that it is copied into; empty if the directory's contents are copied."""
        last = posixpath.basename(self.path.rstrip("/"))
        return "" if last in ("", ".", "..") else last.removeprefix("{").removesuffix("}")


@click.command(
    epilog=examples(
        "ebb cp 17:model.pt .",
        "ebb cp 17:runs '17:{output}' results/",
        "ebb cp 17:metrics.csv - | head",
        "ebb cp --node left 17:'{checkpoints}' ckpt",
    )
)
@click.argument("sources", metavar="ID:PATH...", nargs=-1, required=True)
@click.argument("dest", metavar="DEST")
@click.option("--node", default="", metavar="NAME", help="Node of the job to copy from (default: its first).")
@json_option
@master_option
def command(sources: tuple[str, ...], dest: str, node: str, as_json: bool, master: str | None) -> int:
    """Copy files and directories of a running or finished job from its node to here ("-": one file to stdout).

    PATH is relative to the job's working directory; {output} stands for its EBB_OUTPUT_DIR and {checkpoints} for its
    checkpoints. Other files of the node cannot be read. A link that stays within what is copied is copied as a link.
    """
    wanted = [_source(master, text) for text in sources]
    if dest == STDOUT:
        if len(wanted) != 1:
            raise Failure("cp: -: takes one file", USAGE)
        interrupts.run(_print(master, wanted[0], node))
        return OK
    targets = _targets(wanted, Path(dest))
    total = Unpacked()
    for job_id in dict.fromkeys(source.job_id for source in wanted):
        mine = [source for source in wanted if source.job_id == job_id]
        done = interrupts.run(_copy(master, mine, node, [targets[source] for source in mine]))
        total.files, total.bytes = total.files + done.files, total.bytes + done.bytes
        total.left_out += done.left_out
    if as_json:
        print_json(asdict(total))
    for line in total.left_out[:SHOWN]:
        complain(f"left out: {line}")
    if len(total.left_out) > SHOWN:
        complain(f"left out: {len(total.left_out) - SHOWN} more")
    return FAILED if total.left_out else OK


def _source(master: str | None, text: str) -> JobPath:
    job_id, separator, path = text.partition(":")
    if not separator or not re.fullmatch(r"([0-9]{1,18}|@(~[0-9]{1,4})?)(\.[0-9]{1,18})?", job_id):
        raise Failure(f"cp: {abbreviated(text)!r} is not ID:PATH, such as 17:model.pt", USAGE)
    return JobPath(known_id(master, job_id), path or ".")


def _targets(sources: Sequence[JobPath], dest: Path) -> dict[JobPath, Path]:
    """Return where each source goes: into an existing directory, else to the given name."""
    if dest.is_dir():
        targets = {source: dest / source.name for source in sources}
    elif len(sources) > 1:
        raise Failure(f"cp: {dest}: is not a directory, as several sources need", USAGE)
    elif not dest.absolute().parent.is_dir():
        raise Failure(f"cp: {dest.parent}: no such directory", USAGE)
    else:
        targets = {sources[0]: dest}
    if len(set(targets.values())) < len(sources):
        raise Failure("cp: two sources have the same name: copy them into different directories", USAGE)
    return targets


def _tree(sources: Sequence[JobPath], node: str, *, one_file: bool = False) -> channel_pb2.OpenChannel:
    tree = channel_pb2.ReadTree(paths=[source.path for source in sources], one_file=one_file)
    return channel_pb2.OpenChannel(job_id=sources[0].job_id, node=node, user=user_name(), tree=tree)


async def _print(master: str | None, source: JobPath, node: str) -> None:
    async with open_channel(master, _tree([source], node, one_file=True)) as channel:
        async for frame in channel.frames():
            await write_all(1, frame.data)
            await channel.done_with(len(frame.data) + len(frame.errors))


async def _copy(master: str | None, sources: Sequence[JobPath], node: str, targets: Sequence[Path]) -> Unpacked:
    with StatusLine() as status:
        async with open_channel(master, _tree(sources, node)) as channel:
            total = channel.opened.total_bytes

            def show(done: Unpacked) -> None:
                size = f"{format_size(done.bytes)} of {format_size(total)}"
                status.show(f"copied {size} from job {sources[0].job_id}", done=done.bytes / total if total else None)

            reading, writing = os.pipe()
            with open(reading, "rb") as archive:
                unpacking = on_daemon_thread(lambda: unpack(archive, targets, show))
                receiving = asyncio.create_task(_receive(channel, writing))
                both: list[asyncio.Future[Any]] = [receiving, unpacking]
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
                finally:
                    receiving.cancel()  # which closes the pipe, so that the unpacking thread does not wait
                    await asyncio.wait(both, timeout=_CLOSING_S)
    return _outcome(receiving, unpacking)


def _outcome(receiving: "asyncio.Task[list[str]]", unpacking: "asyncio.Future[Unpacked]") -> Unpacked:
    """Return the result of both tasks, or raise the error that came first."""
    if not receiving.cancelled() and (error := receiving.exception()) is not None:
        raise error
    try:
        done = unpacking.result()
    except NotAnArchive as damage:
        raise Failure(f"cp: {damage}") from None
    done.left_out += receiving.result()
    return done


async def _receive(channel: ClientChannel, writing: int) -> list[str]:
    """Pass the archive on to the unpacking thread; return a line for each file that the node could not read."""
    errors = b""
    try:
        async for frame in channel.frames():
            if frame.data:
                with suppress(BrokenPipeError):  # unpacking has failed, and reports why
                    await write_all(writing, frame.data)
            errors += frame.errors
            await channel.done_with(len(frame.data) + len(frame.errors))
    finally:
        os.close(writing)
    return errors.decode(errors="replace").splitlines()

"""Files of a job through a channel."""

import io
import os
import tarfile

from ebbtide_core.model import limits
from ebbtide_protos.v1 import channel_pb2

from tests.agent.channels.end import End


def tree(end, workdir, *paths, one_file=False, acknowledge=True):
    return end.open(
        acknowledge, tree=channel_pb2.ReadTree(paths=paths, workdir=str(workdir), one_file=one_file)
    )  # fmt: skip


async def test_files_with_links_and_odd_names_come_as_they_are_and_nothing_else_can_be_read(agent, tmp_path):
    runs = tmp_path / "runs"
    (runs / "deep").mkdir(parents=True)
    (runs / "deep/model").write_bytes(os.urandom(500_000))
    (runs / "two\nlines").write_text("odd")
    with open(os.fsencode(runs) + b"/\xff\xfe", "w") as file:
        file.write("no text")
    (runs / "link").symlink_to("deep")
    (runs / "out").symlink_to("/etc")
    os.mkfifo(runs / "fifo")
    async with agent() as node:
        await node.run(["sh", "-c", "echo result > $EBB_OUTPUT_DIR/r.txt"], workdir=str(tmp_path))
        await node.attempts.forget("1", 1)
        end = End(node)
        copy = tree(end, tmp_path, "runs", "{output}")
        assert (await end.end(copy)).error == ""
        opened = next(m.opened for m in end.said[copy] if m.WhichOneof("body") == "opened")
        with tarfile.open(fileobj=io.BytesIO(end.out(copy))) as tar:
            members = {member.name: member for member in tar}
            names = {"0", "0/deep", "0/deep/model", "0/two\nlines", "0/\udcff\udcfe", "0/link", "0/out", "1", "1/r.txt"}
            assert members.keys() == names
            assert tar.extractfile("0/deep/model").read() == (runs / "deep/model").read_bytes()
        assert (members["0/link"].linkname, members["0/out"].issym()) == ("deep", True)
        assert opened.total_bytes == 500_000 + len("odd") + len("no text") + len("result\n")
        assert end.errors(copy) == f"{runs}/fifo: neither a file nor a directory nor a link\n".encode()
        for path in ("/etc/passwd", "../x", "runs/out/passwd", "runs/out"):
            assert "is not below what a job's files are copied from" in (await end.end(tree(end, tmp_path, path))).error
        assert (await end.end(tree(end, tmp_path, "none"))).error == "none: no such file or directory"
        assert (await end.end(tree(end, tmp_path, "runs", one_file=True))).error == "runs: is not one file"
        one = tree(end, tmp_path, "{output}/r.txt", one_file=True)
        await end.end(one)
        assert end.out(one) == b"result\n"


async def test_a_copy_that_nobody_reads_waits_at_its_window_and_is_given_up(agent, tmp_path):
    (tmp_path / "big").write_bytes(bytes(3_000_000))
    async with agent() as node:
        await node.run(["true"], workdir=str(tmp_path))
        end = End(node)
        copy = tree(end, tmp_path, "big", acknowledge=False)
        await end.until(lambda: len(end.out(copy)) >= limits.CHANNEL_WINDOW_BYTES)
        end.give(copy, close="gone")
        await end.channels.detach()
        assert len(end.out(copy)) == limits.CHANNEL_WINDOW_BYTES


async def test_a_job_with_a_copy_of_its_directory_has_its_files_there(agent, tmp_path):
    async with agent() as node:
        copied = node.dir.resolve() / "workdirs" / "1"
        copied.mkdir(parents=True)
        (copied / "log").write_text("mine")
        (tmp_path / "log").write_text("what I edit now")
        await node.run(["true"], workdir=str(tmp_path))
        end = End(node)
        found = tree(end, tmp_path, "log", one_file=True)
        await end.end(found)
        assert end.out(found) == b"mine"

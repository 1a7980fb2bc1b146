"""Which checkpoint an attempt goes on from."""

import errno
import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from ebbtide import checkpoints, manifests
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.supervisor.launching.preparation import prepare
from ebbtide_agent.supervisor.sealing import settling
from ebbtide_agent.supervisor.sealing.settling import LeftFiles
from ebbtide_agent.supervisor.status import Refused, WireRefusalCause
from ebbtide_protos.v1 import agent_pb2

from tests.agent.contract.test_environment import PLAIN
from tests.agent.supervisor.node import EXITED, REFUSED, Node, order, python

TELL = ["sh", "-c", 'echo "$EBB_RESUME_DIR"; echo "$EBB_CHECKPOINT_DIR"']


def publish(node: Node, attempt: int, step: int) -> Path:
    directory = node.checkpoints.resolve() / "1" / f"attempt-{attempt}"
    saved = checkpoints.publish(
        directory, step, lambda path: (path / "state").write_text(f"{attempt} {step}"), job_id="1", attempt=attempt
    )
    return saved.path


async def test_a_first_attempt_has_nothing_to_resume_and_a_directory_to_write_to(agent):
    async with agent() as node:
        status = await node.run(TELL)
        own = node.checkpoints.resolve() / "1" / "attempt-1"
        assert node.log() == f"\n{own}\n"
        assert own.is_dir()
        assert not status.HasField("resumed_step")


async def test_the_newest_checkpoint_of_the_attempts_before_is_resumed(agent):
    async with agent() as node:
        publish(node, 1, 900)
        publish(node, 2, 100)
        newest = publish(node, 2, 200)
        publish(node, 4, 1)  # of an attempt that cannot have been
        status = await node.run(TELL, attempt=3, needs_checkpoint=True)
        assert node.log(attempt=3).splitlines()[0] == str(newest)
        assert status.resumed_step == 200


@pytest.mark.parametrize("damage", ["flipped", "missing", "shortened"])
async def test_a_damaged_checkpoint_is_passed_over(agent, damage):
    async with agent() as node:
        older = publish(node, 1, 100)
        state = publish(node, 1, 200) / "state"
        match damage:
            case "flipped":
                state.write_text("1 201")
            case "shortened":
                state.write_text("1")
            case "missing":
                state.unlink()
        status = await node.run(TELL, attempt=2)
        assert node.log(attempt=2).splitlines()[0] == str(older)
        assert status.resumed_step == 100


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("node_rank", [0, 1])
def test_a_checkpoint_that_cannot_be_read_just_now_is_passed_over_only_after_three_launches(
    shared, monkeypatch, code, node_rank
):
    for step in (100, 200):
        shared.publish(1, step)
    with monkeypatch.context() as for_a_moment:
        break_files(for_a_moment, "step-000000000200/state", code)
        for attempt in (2, 3, 4):
            with pytest.raises(Refused, match="step-000000000200/state") as refused:
                shared.prepared(attempt, node_rank)
            assert refused.value.cause == WireRefusalCause.NODE
        assert shared.prepared(5, node_rank).resumed_step == 100
    assert shared.prepared(6, node_rank).resumed_step == 200


def test_every_node_of_a_job_passes_over_what_none_can_read_at_the_same_launch(shared, monkeypatch):
    for step in (100, 200):
        shared.publish(1, step)
    break_files(monkeypatch, "step-000000000200/state", errno.EIO)
    for attempt in (2, 3, 4):
        with pytest.raises(Refused):  # the other nodes do not start then
            shared.prepared(attempt)
    assert [shared.prepared(5, node_rank).resumed_step for node_rank in (0, 1, 2)] == [100] * 3


def test_a_launch_that_is_refused_for_another_reason_costs_no_patience_with_a_checkpoint(shared, monkeypatch):
    for step in (100, 200):
        shared.publish(1, step)
    with monkeypatch.context() as for_a_moment:
        break_files(for_a_moment, "step-000000000200/state", errno.EIO)
        with pytest.raises(Refused):
            shared.prepared(5)  # attempts 2 to 4 were refused before anybody looked at checkpoints
    with pytest.raises(Refused, match="no Python environment"):
        shared.prepared(6, python_env="/nowhere")
    assert shared.prepared(7).resumed_step == 200
    assert list(shared.job_dir.glob(".*")) == []


def test_a_directory_that_cannot_be_listed_is_passed_over_only_after_three_launches(shared, monkeypatch):
    shared.publish(1, 100)
    shared.publish(2, 200)
    with monkeypatch.context() as for_long:
        break_files(for_long, "attempt-2", errno.EIO)
        for attempt in (3, 4, 5):
            with pytest.raises(Refused, match="attempt-2"):
                shared.prepared(attempt)
        assert shared.prepared(6).resumed_step == 100
    assert shared.prepared(7).resumed_step == 200


def test_what_lies_before_a_directory_that_cannot_be_listed_is_sealed_in_the_end(shared, monkeypatch):
    saved = shared.save(1)
    shared.save(2)
    break_files(monkeypatch, "attempt-2", errno.EACCES)
    for attempt in (3, 4, 5):
        with pytest.raises(Refused, match="attempt-2"):
            shared.prepared(attempt)
    assert shared.resumed(6) == saved


def test_what_lies_after_a_directory_that_cannot_be_listed_is_sealed_in_the_end(shared, monkeypatch):
    shared.publish(1, 100)
    saved = shared.save(2)
    break_files(monkeypatch, "attempt-1", errno.EIO)
    for attempt in (3, 4, 5):
        with pytest.raises(Refused, match="attempt-1"):
            shared.prepared(attempt)
    assert shared.resumed(6) == saved


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("broken", ["attempt-2/.MANIFEST.json", "weights"])
def test_what_cannot_be_sealed_just_now_is_passed_over_only_after_three_launches(shared, monkeypatch, broken, code):
    older = shared.save(1)
    checkpoints.seal(older, job_id="17", attempt=1, complete=True)
    newer = shared.save(2)
    with monkeypatch.context() as for_long:
        break_files(for_long, broken, code, unless="attempt-1")
        for attempt in (3, 4, 5):
            with pytest.raises(Refused, match="attempt-2"):
                shared.prepared(attempt)
        assert [shared.resumed(attempt) for attempt in (6, 7)] == [older] * 2  # attempt 6 saves nothing
    assert shared.resumed(8) == newer
    assert list(shared.job_dir.glob(".*")) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_what_may_never_be_sealed_is_not_waited_for_and_what_is_known_of_it_is_kept(shared, monkeypatch, capfd, code):
    older = shared.save(1)
    checkpoints.seal(older, job_id="17", attempt=1, complete=True)
    newer = shared.save(2)
    settling.note(shared.intent(2), LeftFiles(2, complete=True))
    with monkeypatch.context() as for_long:
        break_files(for_long, "weights", code, unless="attempt-1")
        keep_to_its_owner(for_long, newer / "weights")
        assert shared.resumed(3) == older
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("event=not-sealed job=17 attempt=2 reason=")
    assert str(newer / "weights") in line
    assert shared.resumed(4) == newer
    assert checkpoints.verify(newer).complete


def test_a_launch_is_refused_with_the_file_for_which_an_attempt_cannot_be_sealed(shared, monkeypatch):
    folder = shared.save(1) / "shards"
    folder.mkdir()
    (folder / "7.bin").touch()
    break_files(monkeypatch, "7.bin", errno.EIO)
    with pytest.raises(Refused, match=r"attempt-1/shards/7\.bin"):
        shared.prepared(2)


def test_what_is_known_of_half_a_save_is_kept_while_its_directory_is_passed_over(shared, monkeypatch):
    older = shared.save(1)
    checkpoints.seal(older, job_id="17", attempt=1, complete=True)
    shared.save(2)
    settling.note(shared.intent(2), LeftFiles(2, cut_short=("weights",)))
    with monkeypatch.context() as for_long:
        break_files(for_long, "attempt-2", errno.EIO)
        for attempt in (3, 4, 5):
            with pytest.raises(Refused, match="attempt-2"):
                shared.prepared(attempt)
        assert shared.resumed(6) == older
    assert shared.resumed(7) == older


def test_what_is_newer_than_all_that_was_passed_over_is_waited_for_again(shared, monkeypatch):
    shared.save(1)
    break_files(monkeypatch, "attempt-1", errno.EIO)
    for attempt in (2, 3, 4):
        with pytest.raises(Refused, match="attempt-1"):
            shared.prepared(attempt)
    shared.prepared(5)
    shared.publish(5, 100)
    with monkeypatch.context() as for_a_moment:
        break_files(for_a_moment, "step-000000000100/state", errno.EIO)
        with pytest.raises(Refused, match="step-000000000100/state"):
            shared.prepared(6)
    assert shared.prepared(7).resumed_step == 100


def test_too_many_files_for_a_checkpoint_are_read_at_no_launch(shared, monkeypatch):
    older = shared.save(1)
    checkpoints.seal(older, job_id="17", attempt=1, complete=True)
    newer = shared.save(2)
    for number in range(20):
        (newer / f"shard-{number}").write_bytes(bytes(10**number if number < 6 else number))
    files = [asdict(checkpoints.File(path.name, path.stat().st_size, "0" * 64)) for path in newer.iterdir()]
    monkeypatch.setattr(manifests, "MANIFEST_BYTES", len(json.dumps(files)[1:-1]) - 1)
    monkeypatch.setattr(checkpoints, "_record_file", Mock(side_effect=checkpoints._record_file))
    assert [shared.resumed(attempt) for attempt in (3, 4, 5)] == [older] * 3
    assert checkpoints._record_file.call_count == 0


def break_files(monkeypatch, name, code, unless="\0"):
    """However what has a path that ends so is opened or listed, the system refuses, unless the path has that in it."""
    real_open, real_scandir = os.open, os.scandir

    def broken_open(path, *arguments, **options):
        if str(path).endswith(name) and unless not in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return real_open(path, *arguments, **options)

    def broken_scandir(path):
        if str(path).endswith(name) and unless not in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return real_scandir(path)

    monkeypatch.setattr(os, "open", broken_open)
    monkeypatch.setattr(os, "scandir", broken_scandir)


def keep_to_its_owner(monkeypatch, path):
    """However the file is looked at by this path, it belongs to another account, which lets nobody else read it."""
    real_lstat = os.lstat

    def foreign(looked_at, **options):
        status = real_lstat(looked_at, **options)
        if str(looked_at) != str(path):
            return status
        return os.stat_result((stat.S_IFREG | 0o600, *status[1:4], os.geteuid() + 1, *status[5:]))

    monkeypatch.setattr(os, "lstat", foreign)


class SharedJob:
    """A job's checkpoint directory, and the preparation of its attempts on nodes that share it."""

    def __init__(self, folder):
        self.job_dir = folder / "job"
        self.node_dir = folder / "node"
        self._folder = folder
        self.job_dir.mkdir()

    def publish(self, attempt, step):
        directory = self.job_dir / f"attempt-{attempt}"
        checkpoints.publish(
            directory, step, lambda path: (path / "state").write_text("state"), job_id="17", attempt=attempt
        )

    def save(self, attempt):
        directory = self.job_dir / f"attempt-{attempt}"
        directory.mkdir()
        (directory / "weights").write_text("weights")
        return directory

    def intent(self, attempt, node_rank=0, **options):
        self.node_dir.mkdir(exist_ok=True)
        own = {"attempt": attempt, "job_checkpoint_dir": str(self.job_dir), "node_dir": str(self.node_dir)}
        return replace(PLAIN, node_rank=node_rank, num_nodes=3, **own, **options)

    def prepared(self, attempt, node_rank=0, **options):
        intent = self.intent(attempt, node_rank, **options)
        place = AttemptDir(self._folder / f"place-{node_rank}")
        return prepare(intent, place, lambda task, arguments, account: task(*arguments))

    def resumed(self, attempt):
        [environment] = self.prepared(attempt).environments
        return Path(environment["EBB_RESUME_DIR"])


@pytest.fixture
def shared(tmp_path):
    return SharedJob(tmp_path)


async def test_a_sealed_directory_is_resumed_without_a_step(agent):
    save = 'echo state > "$EBB_CHECKPOINT_DIR/state"'
    async with agent() as node:
        await node.run(["sh", "-c", save])
        status = await node.run(TELL, attempt=2, needs_checkpoint=True)
        assert node.log(attempt=2).splitlines()[0] == str(node.checkpoints.resolve() / "1" / "attempt-1")
        assert not status.HasField("resumed_step")


def save(node: Node, attempt: int, *names: str) -> Path:
    """Leave files of a script without the SDK as a node leaves them that loses power: nobody seals them there."""
    directory = node.checkpoints.resolve() / "1" / f"attempt-{attempt}"
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_text(name)
    return directory


def sealed(node: Node, attempt: int) -> Path:
    """Leave a checkpoint of a script without the SDK that saved and left in peace."""
    directory = save(node, attempt, "state")
    checkpoints.seal(directory, job_id="1", attempt=attempt, complete=True)
    return directory


async def resumed(node: Node, attempt: int) -> str:
    """What EBB_RESUME_DIR is in this attempt."""
    await node.run(TELL, attempt=attempt)
    return node.log(attempt=attempt).splitlines()[0]


async def test_what_a_script_saved_by_itself_on_a_node_that_died_is_sealed_and_resumed_by_the_next_attempt(agent):
    async with agent() as node:
        sealed(node, 1)
        saved = save(node, 2, "state", "epoch")
        save(node, 3)  # of an attempt that had no time to save
        save(node, 4, "state")  # of an attempt that cannot have been
        assert await resumed(node, 4) == str(saved)
        found = checkpoints.verify(saved)
        assert (found.bytes, found.complete, found.cut_short) == (10, False, False)


async def test_only_the_first_node_seals_what_a_node_that_died_left(agent):
    async with agent() as node:
        saved = save(node, 1, "state")
        launch = order(TELL, attempt=2)
        launch.node_rank, launch.num_nodes, launch.master_addr, launch.master_port = 1, 2, "127.0.0.1", 20001
        await node.attempts.launch(launch)
        await node.end(attempt=2)
        assert [path.name for path in saved.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("left", "has_whole_files"),
    [
        (LeftFiles(2, cut_short=("state",)), True),
        (LeftFiles(2, doubtful=True), True),
        (LeftFiles(2, cut_short=("epoch", "state")), False),
    ],
)
async def test_a_save_that_was_cut_short_stays_behind_a_complete_one_where_another_node_has_to_seal_it(
    agent, left, has_whole_files
):
    async with agent() as node:
        complete = sealed(node, 1)
        saved = save(node, 2, "state", "epoch")
        full = saved / f".{checkpoints.MANIFEST}"
        full.mkdir()  # stands for a disk without room for the manifest
        with suppress(OSError):
            settling.seal(saved.parent, "1", left, None)
        full.rmdir()
        assert await resumed(node, 3) == str(complete)
        assert (saved / checkpoints.MANIFEST).exists() == has_whole_files
        assert await resumed(node, 4) == str(complete)


async def test_what_is_noted_on_a_disk_without_room_for_a_note_counts_as_cut_short(agent):
    async with agent() as node:
        complete = sealed(node, 1)
        saved = save(node, 2, "state")
        (saved.parent / ".attempt-2-unsealed").touch()
        assert await resumed(node, 3) == str(complete)
        assert checkpoints.verify(saved).cut_short
        assert sorted(path.name for path in saved.parent.glob(".*")) == []


async def test_what_only_this_node_knows_of_a_save_counts_here(agent):
    async with agent() as node:
        complete = sealed(node, 1)
        save(node, 2, "state")
        (node.dir / "unsealed").mkdir()
        note = node.dir / "unsealed" / "1.2"
        note.write_text(json.dumps(asdict(LeftFiles(2, cut_short=("state",)))))
        assert await resumed(node, 3) == str(complete)
        assert not note.exists()
        assert await resumed(node, 4) == str(complete)


async def test_what_a_node_knows_of_a_save_that_it_cannot_seal_is_kept(agent):
    async with agent() as node:
        sealed(node, 1)
        hindered = 'echo state > "$EBB_CHECKPOINT_DIR/state"; mkdir "$EBB_CHECKPOINT_DIR/.MANIFEST.json"'
        status = await node.run(["sh", "-c", hindered], attempt=2)  # stands for a disk without room for the manifest
        assert not status.HasField("checkpoint")
        saved = node.checkpoints.resolve() / "1" / "attempt-2"
        (saved / ".MANIFEST.json").rmdir()
        assert await resumed(node, 3) == str(saved)
        assert checkpoints.verify(saved).complete
        assert list((node.dir / "unsealed").iterdir()) == []


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 1", "exit 0"])
async def test_a_log_in_the_checkpoint_directory_does_not_go_before_what_the_job_published(agent, end):
    async with agent() as node:
        published = publish(node, 1, 500)
        for attempt in (2, 3):  # neither comes to its first save
            status = await node.run(["sh", "-c", f'echo started > "$EBB_CHECKPOINT_DIR/log"; {end}'], attempt=attempt)
            assert not status.HasField("checkpoint")
        status = await node.run(TELL, attempt=4)
        assert node.log(attempt=4).splitlines()[0] == str(published)
        assert status.resumed_step == 500


async def test_what_a_job_saves_by_itself_goes_before_what_an_attempt_of_it_saved_so_earlier(agent):
    async with agent() as node:
        sealed(node, 1)
        await node.run(["sh", "-c", 'echo more > "$EBB_CHECKPOINT_DIR/state"'], attempt=2)
        assert await resumed(node, 3) == str(node.checkpoints.resolve() / "1" / "attempt-2")


async def test_a_job_that_had_progress_does_not_start_without_a_valid_checkpoint(agent):
    async with agent() as node:
        (publish(node, 1, 100) / "state").unlink()
        status = await node.run(TELL, attempt=2, needs_checkpoint=True)
        assert (status.phase, status.refusal_cause) == (REFUSED, agent_pb2.REFUSAL_CAUSE_NO_CHECKPOINT)
        assert "had progress" in status.refusal
        assert node.log(attempt=2) == ""


async def test_a_job_without_progress_starts_without_a_checkpoint(agent):
    async with agent() as node:
        status = await node.run(TELL, attempt=2)
        assert status.phase == EXITED
        assert node.log(attempt=2).splitlines()[0] == ""


async def test_two_clusters_on_one_disk_do_not_see_each_others_checkpoints(agent):
    async with agent() as node:
        publish(node, 1, 100)
        node.attempts.join("c2")
        status = await node.run(TELL, attempt=2, needs_checkpoint=True)
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_NO_CHECKPOINT


async def test_a_script_that_wrote_nothing_leaves_nothing_to_resume(agent):
    async with agent() as node:
        assert not (await node.run(python("pass"))).HasField("checkpoint")
        assert not list(checkpoints._candidates(node.checkpoints / "1"))


async def test_resume_arguments_are_appended_once_there_is_a_checkpoint_that_they_can_name(agent):
    tell = ["sh", "-c", 'printf "%s\\n" "$#" "$@"', "sh", "--lr", "1"]
    arguments = ["--from={checkpoint}/state", "{output}", "${checkpoint}", "{a:1}"]
    async with agent() as node:
        await node.run(tell, resume_args=arguments)
        await node.run(tell, attempt=2, resume_args=arguments)
        assert node.log() == node.log(attempt=2) == "2\n--lr\n1\n"
        newest = publish(node, 2, 100)
        await node.run(tell, attempt=3, resume_args=arguments)
        output = node.checkpoints.resolve() / "1" / "output"
        assert node.log(attempt=3).splitlines()[3:] == [f"--from={newest}/state", str(output), "${checkpoint}", "{a:1}"]


async def test_every_node_of_a_job_appends_the_same_resume_arguments(agent):
    async with agent() as node:
        newest = publish(node, 1, 100)
        launch = order(["echo"], attempt=2, resume_args=["--from", "{checkpoint}"])
        launch.node_rank, launch.num_nodes, launch.master_addr, launch.master_port = 1, 2, "127.0.0.1", 20001
        await node.attempts.launch(launch)
        await node.end(attempt=2)
        assert node.log(attempt=2) == f"--from {newest}\n"


async def test_resume_arguments_that_name_no_checkpoint_are_appended_from_the_second_attempt_on(agent):
    async with agent() as node:
        for attempt in (1, 2):
            await node.run(["echo", "go"], attempt=attempt, resume_args=["--resume", "{output}"])
        assert node.log() == "go\n"
        assert node.log(attempt=2) == f"go --resume {node.checkpoints.resolve() / '1' / 'output'}\n"


async def test_the_output_directory_stays_from_attempt_to_attempt(agent):
    async with agent() as node:
        for attempt in (1, 2):
            await node.run(
                ["sh", "-c", 'echo >> "$EBB_OUTPUT_DIR/log"; wc -l < "$EBB_OUTPUT_DIR/log"'], attempt=attempt
            )
        assert (node.log(), node.log(attempt=2)) == ("1\n", "2\n")
        assert not node.status(attempt=2).HasField("resumed_step")  # what lies there is no checkpoint

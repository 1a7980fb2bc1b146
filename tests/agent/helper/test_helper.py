"""A helper's process: whose rights it has, what it does not inherit, and that nobody waits for one that hangs."""

import asyncio
import os
import pwd
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper import asking
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask, ask_and_wait
from ebbtide_agent.helper.task import HelperTask
from ebbtide_agent.helper.worker import LARGEST, Worker
from ebbtide_machine.process import Identity

LONG_S = 60.0


def facts() -> dict[str, object]:
    return {
        "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
        "environment": dict(os.environ),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "privileges": "NoNewPrivs:\t1" in Path("/proc/self/status").read_text(),
        "umask": os.umask(0),
    }


def fail_with_many_words() -> None:
    raise RuntimeError("so it is")


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """One that nobody writes to: who opens it waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


class TestAsked:
    def test_the_answer_is_what_the_task_returns(self, tmp_path: Path) -> None:
        (tmp_path / "odd \udcff name").touch()
        assert ask_and_wait(os.listdir, str(tmp_path), account=None, within_s=LONG_S) == ["odd \udcff name"]

    def test_an_error_of_the_system_is_raised_here(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            ask_and_wait(os.listdir, str(tmp_path / "none"), account=None, within_s=LONG_S)
        assert caught.value.filename == str(tmp_path / "none")

    def test_any_other_error_means_that_nobody_knows(self) -> None:
        found = ask_and_wait(os.strerror, "no number", account=None, within_s=LONG_S)
        assert isinstance(found, NoAnswer)
        assert "TypeError" in found.reason

    def test_one_that_hangs_is_killed_and_the_answer_is_unknown(self, pipe: str) -> None:
        assert isinstance(ask_and_wait(os.open, pipe, os.O_RDONLY, account=None, within_s=0.2), NoAnswer)

    async def test_an_event_loop_goes_on_while_one_hangs(self, pipe: str) -> None:
        hanging = ask(os.open, pipe, os.O_RDONLY, account=None, within_s=LONG_S)
        assert await ask(os.path.basename, "/a/b", account=None, within_s=LONG_S) == "b"
        assert not hanging.done()
        writer = os.open(pipe, os.O_WRONLY)
        os.close(writer)
        assert isinstance(await hanging, int)

    def test_threads_ask_at_once(self) -> None:
        found: list[object] = []

        def look(number: int) -> None:
            found.append(ask_and_wait(os.path.basename, f"/a/{number}", account=None, within_s=LONG_S))

        threads = [threading.Thread(target=look, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, found)) == sorted(map(str, range(20)))

    def test_a_server_that_was_killed_is_started_again(self) -> None:
        assert ask_and_wait(os.path.basename, "/a/b", account=None, within_s=LONG_S) == "b"
        process = asking._server._process
        assert process is not None
        process.kill()
        process.wait()
        assert ask_and_wait(os.path.basename, "/a/b", account=None, within_s=LONG_S) == "b"

    def test_it_inherits_no_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EBB_SECRET", "of the agent")
        shown = ask_and_wait(subprocess.getoutput, "env; cat /proc/$PPID/environ", account=None, within_s=LONG_S)
        assert "PATH=" in str(shown)
        assert "EBB_SECRET" not in str(shown)

    def test_descriptors_come_after_the_arguments(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("text")
        with (tmp_path / "file").open() as file:
            assert ask_and_wait(os.fstat, account=None, within_s=LONG_S, descriptors=[file.fileno()])[6] == 4

    def test_an_answer_of_any_length_is_bounded(self) -> None:
        found = ask_and_wait(subprocess.getoutput, "yes | head -c 20000000", account=None, within_s=LONG_S)
        assert isinstance(found, NoAnswer)

    @pytest.mark.root
    def test_it_has_the_rights_of_the_account(self, tmp_path: Path) -> None:
        somebody = Account.of(pwd.getpwnam("nobody"))
        (tmp_path / "secret").write_text("of root")
        tmp_path.chmod(0o700)
        assert ask_and_wait(os.getresuid, account=somebody, within_s=LONG_S) == [somebody.uid] * 3
        with pytest.raises(PermissionError):
            ask_and_wait(os.listdir, str(tmp_path), account=somebody, within_s=LONG_S)


class TestErrand:
    def test_it_inherits_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EBB_SECRET", "of the agent")
        found = HelperTask(facts, account=None, within_s=LONG_S).wait()
        assert isinstance(found, dict)
        assert "EBB_SECRET" not in found["environment"]
        assert found["privileges"] is True
        assert found["descriptors"] == 5  # the standard streams, the way back, and the one that lists them

    @pytest.mark.root
    def test_it_has_the_rights_of_the_account(self) -> None:
        somebody = Account.of(pwd.getpwnam("nobody"))
        found = HelperTask(facts, account=somebody, within_s=LONG_S).wait()
        assert isinstance(found, dict)
        assert found["ids"] == [[somebody.uid] * 3, [somebody.gid] * 3, list(somebody.groups)]
        assert found["umask"] == 0o077

    def test_one_that_hangs_is_killed_and_the_answer_is_unknown(self, pipe: str) -> None:
        helper_task = HelperTask(os.open, pipe, os.O_RDONLY, account=None, within_s=0.1)
        process = Identity.of(helper_task.pid)
        assert process is not None
        assert helper_task.wait() == NoAnswer("no answer in time")
        until = time.monotonic() + LONG_S
        while process.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        assert not process.is_alive()

    def test_one_that_is_killed_by_its_user_answers_nothing(self, pipe: str) -> None:
        helper_task = HelperTask(os.open, pipe, os.O_RDONLY, account=None, within_s=LONG_S)
        os.kill(helper_task.pid, signal.SIGKILL)
        assert helper_task.wait() == NoAnswer("its process ended without an answer")

    def test_what_went_wrong_is_told(self, tmp_path: Path) -> None:
        assert HelperTask(fail_with_many_words, account=None, within_s=LONG_S).wait() == NoAnswer(
            "RuntimeError: so it is"
        )
        with pytest.raises(FileNotFoundError):
            HelperTask(os.listdir, str(tmp_path / "none"), account=None, within_s=LONG_S).wait()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(None)
    yield worker
    worker.end()


def asked(worker: Worker, task: Callable[..., object], *arguments: object, within_s: float = LONG_S) -> object:
    return HelperTask(task, *arguments, account=worker.account, within_s=within_s, worker=worker).wait()


def pid_of(worker: Worker) -> int:
    pid = asked(worker, os.getpid)
    assert isinstance(pid, int)
    return pid


class TestWorker:
    def test_one_process_answers_one_question_after_the_other(self, worker: Worker) -> None:
        first = pid_of(worker)
        with pytest.raises(FileNotFoundError):
            asked(worker, os.listdir, "/none")
        assert asked(worker, fail_with_many_words) == NoAnswer("RuntimeError: so it is")
        assert first == pid_of(worker) != os.getpid()

    def test_it_inherits_nothing_and_keeps_nothing_of_a_question(
        self, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EBB_SECRET", "of the agent")
        for _ in range(2):
            found = asked(worker, facts)
            assert isinstance(found, dict)
            assert "EBB_SECRET" not in found["environment"]
            assert found["privileges"] is True
            assert found["descriptors"] == 6  # standard streams, questions, the way back, and the one that lists them

    def test_one_that_its_user_has_killed_is_replaced(self, worker: Worker) -> None:
        first = pid_of(worker)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        assert pid_of(worker) != first

    def test_one_that_its_user_kills_in_the_middle_is_followed_by_a_process_of_its_own(
        self, worker: Worker, pipe: str
    ) -> None:
        first = pid_of(worker)
        hanging = HelperTask(os.open, pipe, os.O_RDONLY, account=None, within_s=LONG_S, worker=worker)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        with ThreadPoolExecutor(1) as other:
            writing = other.submit(os.open, pipe, os.O_WRONLY)  # until somebody opens it to read
            assert isinstance(hanging.wait(), int)
            os.close(writing.result(LONG_S))

    def test_one_that_its_user_has_stopped_goes_on(self, worker: Worker) -> None:
        first = pid_of(worker)
        os.kill(first, signal.SIGSTOP)
        os.waitpid(first, os.WUNTRACED)
        assert pid_of(worker) == first

    def test_one_that_hangs_is_killed_and_replaced(self, worker: Worker, pipe: str) -> None:
        first = pid_of(worker)
        assert asked(worker, os.open, pipe, os.O_RDONLY, within_s=0.1) == NoAnswer("no answer in time")
        assert os.waitpid(first, 0) == (first, signal.SIGKILL)
        assert pid_of(worker) != first

    def test_while_it_is_busy_others_are_asked(self, worker: Worker, pipe: str) -> None:
        first = pid_of(worker)
        hanging = HelperTask(os.open, pipe, os.O_RDONLY, account=None, within_s=LONG_S, worker=worker)
        assert pid_of(worker) != first
        os.close(os.open(pipe, os.O_WRONLY))
        assert isinstance(hanging.wait(), int)
        assert pid_of(worker) == first

    def test_a_question_of_any_length_is_answered(self, worker: Worker) -> None:
        assert asked(worker, os.path.basename, "x" * 2 * LARGEST) == "x" * 2 * LARGEST

    @pytest.mark.root
    def test_it_has_the_rights_of_the_account(self) -> None:
        somebody = Account.of(pwd.getpwnam("nobody"))
        worker = Worker(somebody)
        found = [asked(worker, facts) for _ in range(2)]
        worker.end()
        assert isinstance(found[0], dict)
        assert isinstance(found[1], dict)
        assert found[0]["ids"] == found[1]["ids"] == [[somebody.uid] * 3, [somebody.gid] * 3, list(somebody.groups)]
        assert found[0]["umask"] == 0o077


async def test_many_questions_leave_no_process_behind() -> None:
    await asyncio.gather(*[ask(os.getpid, account=None, within_s=LONG_S) for _ in range(20)])
    assert asking._server._process is not None
    server = asking._server._process.pid
    until = time.monotonic() + LONG_S
    while Path(f"/proc/{server}/task/{server}/children").read_text() and time.monotonic() < until:
        await asyncio.sleep(0.01)
    assert Path(f"/proc/{server}/task/{server}/children").read_text() == ""

"""One control daemon of MPS: started with its server, recognised by a later agent, and ended for certain."""

import json
import os
import signal
from pathlib import Path

import pytest
from ebbtide_agent.mps import daemon
from ebbtide_agent.mps.control import ControlFailed, MpsControl
from ebbtide_agent.mps.daemon import MpsDaemon
from ebbtide_machine.process import Identity

UUID = "GPU-8a4f"


@pytest.fixture
def control(place, binary):
    return MpsControl(binary, UUID, place / "mps" / "8a4f")


@pytest.fixture
def started(control):
    found = daemon.start(control)
    yield found
    daemon.end(found)


def knob(control, **knobs):
    control.directory.parent.mkdir(exist_ok=True)
    (control.directory.parent / "knobs.json").write_text(json.dumps(knobs))


def test_it_starts_with_a_server_for_its_gpu_alone(control, started):
    environment = Path(f"/proc/{started.daemon.pid}/environ").read_bytes()
    assert f"CUDA_VISIBLE_DEVICES={UUID}".encode() in environment.split(b"\0")
    assert [server.pid for server in started.servers] == list(control.servers())
    assert (started.failure(), started.clients()) == ("", ())


def test_it_ends_and_leaves_its_logs_only(control, started):
    assert daemon.end(started) == ()
    assert not any(process.is_alive() for process in started.processes)
    assert sorted(path.name for path in control.directory.parent.iterdir()) == ["8a4f.log"]


def test_a_later_agent_knows_it_by_its_record(control, started):
    [record] = daemon.records(control.directory.parent)
    assert MpsDaemon.load(record) == started


def test_one_that_does_not_obey_is_killed(control, started):
    knob(control, deaf=True)
    started.daemon.signal(signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemon, "_QUIT_S", 0.1)
        patch.setattr(daemon, "_KILL_S", 0.3)
        patch.setattr("ebbtide_agent.mps.control._TIMEOUT_S", 0.2)
        left = daemon.end(started)
    assert daemon._wait_for_end(left, 30.0) == ()
    assert not any(process.is_alive() for process in started.processes)


def test_a_server_that_died_is_noticed(started):
    started.servers[0].signal(signal.SIGKILL)
    assert daemon._wait_for_end(started.servers, 10.0) == ()
    assert started.failure() == "its server died"


def test_a_daemon_that_died_is_noticed_and_its_server_ended(control, started):
    started.daemon.signal(signal.SIGKILL)
    assert daemon._wait_for_end((started.daemon,), 10.0) == ()
    assert started.failure() == "its control daemon died"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemon, "_QUIT_S", 0.1)
        assert daemon.end(started) == ()
    assert not started.servers[0].is_alive()


def test_one_that_does_not_start_says_why_and_leaves_nothing(control):
    knob(control, start=1)
    with pytest.raises(ControlFailed, match="ended with status 1: An instance of this daemon is already running"):
        daemon.start(control)
    assert not control.directory.exists()


def test_one_that_starts_no_server_is_ended(control):
    knob(control, no_server=True)
    with pytest.MonkeyPatch.context() as patch:
        begin = MpsControl.start_server

        def asked(control: MpsControl) -> None:
            begin(control)
            patch.setattr(daemon, "_START_S", 0.3)  # the daemon itself has answered by now

        patch.setattr(MpsControl, "start_server", asked)
        with pytest.raises(ControlFailed, match="it starts no server: see "):
            daemon.start(control)
    assert not control.directory.exists()


def test_one_that_an_agent_died_over_before_it_could_note_it_is_replaced(control, started):
    for record in daemon.records(control.directory.parent):
        record.unlink()
    again = daemon.start(control)
    assert not started.daemon.is_alive()
    assert again.daemon != started.daemon
    assert daemon.end(again) == ()


def test_a_reboot_leaves_no_daemon_whoever_has_its_pid_now(control, started):
    [record] = daemon.records(control.directory.parent)
    content = json.loads(record.read_text())
    content["daemon"] = {"boot_id": "another", "pid": os.getpid(), "starttime": Identity.own().starttime}
    record.write_text(json.dumps(content))
    assert MpsDaemon.load(record).died() == "its control daemon died"


def test_a_path_too_long_for_a_socket_is_refused(binary, place):
    with pytest.raises(ControlFailed, match="bytes, and MPS needs a path of"):
        daemon.start(MpsControl(binary, UUID, place / ("n" * 100) / "8a4f"))

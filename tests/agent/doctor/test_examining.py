"""A node examined from outside: on this machine's own disks and clock, with GPUs made up for it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ebbtide_agent.doctor import machine, python, storage
from ebbtide_agent.doctor.examine import examine
from ebbtide_agent.doctor.finding import Finding, Level
from ebbtide_agent.doctor.probes import GROUPS, Probe, devices, holder
from ebbtide_agent.doctor.subject import Subject
from ebbtide_agent.jsonfile import write_json
from ebbtide_agent.processes.procfs import read_stat
from ebbtide_machine.process import Identity

BY_NAME = {probe.name: probe for group in GROUPS.values() for probe in group}


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(home=tmp_path / "home", node="ws1", gpus="2xRTX4090")


def checked(subject: Subject, *names: str) -> list[Finding]:
    return examine(subject, lambda name: None, {"some": tuple(BY_NAME[name] for name in names)})


def test_a_subject_and_a_finding_survive_the_way_to_another_process(subject: Subject) -> None:
    assert Subject.from_json(json.loads(json.dumps(subject.to_json()))) == subject
    finding = Finding("driver", Level.NOTE, "old", "upgrade")
    assert Finding.from_json(json.loads(json.dumps(finding.to_json()))) == finding


def test_a_node_that_is_not_set_up_yet_is_examined_and_left_as_it_was(subject: Subject, tmp_path: Path) -> None:
    began: list[str] = []
    names = [name for name in BY_NAME if name != "PyTorch"]
    found = examine(subject, began.append, {"some": tuple(BY_NAME[name] for name in names)})
    assert began == names
    assert {finding.check for finding in found} >= {"driver", "GPUs", "GPU 0", "GPU 1", "MPS", "swap", *names}
    assert [finding.text for finding in found if finding.check == "GPUs"] == ["2 x RTX4090 (fake)"]
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_hangs_is_given_up_and_the_others_are_made(subject: Subject, tmp_path: Path) -> None:
    pipe = tmp_path / "profile.toml"
    os.mkfifo(pipe)  # whoever reads it waits for a writer for ever
    stuck = Subject(home=subject.home, node="ws1", gpus=str(pipe))
    groups = {"some": (Probe("GPUs", BY_NAME["GPUs"].run, limit_s=0.2), BY_NAME["limits"])}
    lost, *others = examine(stuck, lambda name: None, groups)
    assert (lost.check, lost.level, lost.text) == ("GPUs", Level.PROBLEM, "did not answer in time, after 0.2 s")
    assert [finding.check for finding in others] == ["limits"]


def test_a_check_that_is_given_up_leaves_no_file(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    (temporary := subject.home.parent / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which is kept from an earlier look
    made_up(subject, {}, hang=["nvmlDeviceGetUtilizationRates"])
    examine(subject, lambda name: None, {"some": (Probe("GPUs", BY_NAME["GPUs"].run, limit_s=2.0),)})
    assert list(temporary.iterdir()) == []


def test_checks_that_cannot_even_begin_are_a_problem(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (finding,) = checked(subject, "clock", "ports")
    assert (finding.level, finding.text) == (Level.PROBLEM, "crashed (exit code 1): the checks could not begin")


def test_what_a_check_raises_is_what_it_found(subject: Subject) -> None:
    (finding,) = checked(Subject(home=subject.home, node="ws1", ports="9-1"), "ports")
    assert finding.level is Level.PROBLEM
    assert "could not be checked: ValueError" in finding.text


def test_a_foreign_process_on_a_fake_gpu_of_the_agents_is_seen(subject: Subject) -> None:
    state = subject.home / "nodes" / "ws1" / "gpus"
    (state / "processes").mkdir(parents=True)
    gpu = {"uuid": "GPU-a", "model": "RTX4090", "mem_bytes": 2**34, "idle_bytes": 2**24}
    write_json(state / "gpus.json", {"gpus": [gpu]})
    me = Identity.own()
    held = {"pid": me.pid, "starttime": me.starttime, "gpus": {"GPU-a": 2**30}}
    write_json(state / "processes" / f"{me.pid}.json", held)
    (finding,) = (each for each in checked(subject, "GPUs") if each.check == "processes")
    assert f"(pid {me.pid} of " in finding.text
    assert finding.text.endswith("on GPU 0 with 1.0 GiB is not a job of Ebbtide")


def made_up(subject: Subject, *gpus: dict[str, object], **faults: object) -> None:
    """GPUs of the node's agent, and what is wrong with them; see the fake for the words."""
    state = subject.home / "nodes" / "ws1" / "gpus"
    (state / "processes").mkdir(parents=True)
    common = {"model": "RTX4090", "mem_bytes": 2**34, "idle_bytes": 2**24, "compute_capability": "8.9"}
    described = [common | {"uuid": f"GPU-{index}"} | gpu for index, gpu in enumerate(gpus)]
    write_json(state / "gpus.json", {"driver": "570.10", "cuda": "12.8", "gpus": described})
    write_json(state / "faults.json", faults)


def test_how_an_admin_has_set_the_gpus_is_read_from_the_driver(subject: Subject) -> None:
    made_up(subject, {"persistence": False}, {"compute_mode": 2})
    found = {(each.check, each.level.value): each.text for each in checked(subject, "GPUs")}
    assert found["driver", "ok"] == "570.10, CUDA 12.8"
    assert "persistence mode is off" in found["GPU 0", "warning"]
    assert "no job can use it" in found["GPU 1", "problem"]
    assert "needs driver 580" in found["swap", "note"]


def test_a_driver_that_hangs_is_given_up_and_the_other_checks_are_made(subject: Subject) -> None:
    made_up(subject, {}, hang=["nvmlDeviceGetUtilizationRates"])
    groups = {"some": (Probe("GPUs", BY_NAME["GPUs"].run, limit_s=0.5), BY_NAME["limits"])}
    found = examine(subject, lambda name: None, groups)
    assert [(each.check, each.level.value) for each in found if each.level is Level.PROBLEM] == [("GPUs", "problem")]
    assert found[-1].check == "limits"


def test_a_process_is_ours_if_a_supervisor_is_above_it() -> None:
    me, parent = os.getpid(), os.getppid()
    assert holder(me, (parent,)).ours
    assert holder(me, (me,)).ours
    assert not holder(me, ()).ours
    assert read_stat(2**22 + 1) is None
    assert holder(2**22 + 1, ()).alive is None


def test_a_disk_that_refuses_to_be_written_is_a_problem(subject: Subject, tmp_path: Path) -> None:
    root = Path("/proc/self/fdinfo")  # a directory that nobody may write to, not even root
    (_, finding) = storage.checkpoints(Subject(home=tmp_path, node="ws1", checkpoint_root=root))
    assert finding.level is Level.PROBLEM
    assert "--checkpoint-root" in finding.advice


def test_the_id_of_a_checkpoint_root_is_read_and_not_made(tmp_path: Path) -> None:
    assert storage.root_id(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".ebbtide-root").write_text("abc\n")
    assert storage.root_id(tmp_path) == "abc"


def test_a_port_that_somebody_listens_on_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port in machine.listening(Path("/proc/net"))
        found = list(machine.ports(Subject(home=Path("/"), node="ws1", ports=f"{port}-{port}")))
    assert found[0].level is Level.PROBLEM


def device(bus: Path, name: str, vendor: str, kind: str, driver: str = "") -> None:
    place = bus / name
    place.mkdir(parents=True)
    (place / "vendor").write_text(f"{vendor}\n")
    (place / "class").write_text(f"{kind}\n")
    if driver:
        (place / "driver").symlink_to(f"../drivers/{driver}")


def test_nvidias_devices_are_found_on_the_bus_and_those_that_its_driver_has(tmp_path: Path) -> None:
    assert devices(tmp_path / "absent") == (0, 0)
    device(tmp_path, "a", "0x8086", "0x030000", "i915")
    device(tmp_path, "b", "0x10de", "0x040300", "snd_hda_intel")  # the sound of one
    assert devices(tmp_path) == (0, 0)
    device(tmp_path, "c", "0x10de", "0x030200", "nvidia")
    device(tmp_path, "d", "0x10de", "0x030000", "vfio-pci")  # given to a virtual machine
    assert devices(tmp_path) == (2, 1)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    slow = script(tmp_path, "sleep 1000 & wait")
    finding = python.examine(2, fake=False, python=slow, timeout_s=0.1)
    assert "did not end within 0.1 s" in finding.text


def test_an_interpreter_whose_torch_is_broken_says_why(tmp_path: Path) -> None:
    broken = script(tmp_path, "echo 'ImportError: libcudnn.so.9' >&2; exit 1")
    finding = python.examine(2, fake=False, python=broken)
    assert finding.level is Level.PROBLEM
    assert finding.text.endswith("import torch: ImportError: libcudnn.so.9")


def test_the_torch_of_an_interpreter_is_asked_what_it_sees(tmp_path: Path) -> None:
    good = script(tmp_path, 'echo \'["2.9.0", "12.8", 2]\'')
    assert python.examine(2, fake=False, python=good).level is Level.OK


def test_nothing_is_taken_from_the_directory_that_it_is_run_in(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    command = [sys.executable, "-P", "-m", "ebbtide_agent.doctor", "limits"]
    said = json.dumps(subject.to_json())
    done = subprocess.run(command, cwd=tmp_path, input=said, capture_output=True, text=True, check=True)
    assert '"begins": "limits"' in done.stdout

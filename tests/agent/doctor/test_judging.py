"""What is said of what a node answers: one sentence for each thing that can be wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_agent.doctor import hardware, machine, python, storage
from ebbtide_agent.doctor.finding import Level
from ebbtide_agent.doctor.hardware import Answer, GpuHolder
from ebbtide_agent.doctor.python import Torch
from ebbtide_agent.doctor.subject import Subject
from ebbtide_agent.gpu.backend import Driver, Gpu, GpuProcess, GpuReading, GpuSettings

GIB = 2**30
GPU = Gpu("GPU-a", 0, "H100", 80 * GIB)


def answer(seconds=0.001, settings=None, gpu=GPU, **reading) -> Answer:
    known = {"mem_used_bytes": 0, "mem_total_bytes": gpu.mem_bytes, "processes": ()}
    return Answer(gpu, GpuReading(gpu.uuid, **(known | reading)), settings or GpuSettings(), seconds)


def of_gpu(*answers):
    return [finding for each in answers for finding in hardware.judge_gpu(each)]


def levels(findings):
    return [finding.level.value for finding in findings]


def test_a_gpu_that_answers_at_once_and_is_set_as_usual_is_fine():
    settings = GpuSettings(persistence=True, compute_mode="default", mig=False)
    assert levels(of_gpu(answer(settings=settings))) == ["ok"]


def test_what_a_driver_does_not_tell_is_nobodys_fault():
    assert levels(of_gpu(answer(settings=GpuSettings()))) == ["ok"]


@pytest.mark.parametrize(
    ("found", "level", "command"),
    [
        (answer(unhealthy_reason="GPU is lost"), "problem", "nvidia-smi --gpu-reset -i 0"),
        (answer(unhealthy_reason="NVML does not answer"), "problem", "reboot"),
        (answer(seconds=1.4), "warning", "nvidia-smi -pm 1"),
        (answer(settings=GpuSettings(persistence=False)), "warning", "nvidia-smi -i 0 -pm 1"),
        (answer(settings=GpuSettings(compute_mode="prohibited")), "problem", "nvidia-smi -i 0 -c DEFAULT"),
        (answer(settings=GpuSettings(compute_mode="exclusive process")), "note", "nvidia-smi -i 0 -c DEFAULT"),
    ],
)
def test_what_is_wrong_with_a_gpu_comes_with_its_command(found, level, command):
    last = of_gpu(found)[-1]
    assert last.level is Level(level)
    assert command in last.advice


@pytest.mark.parametrize(
    ("reason", "devices", "level", "words"),
    [
        ("NVML Shared Library Not Found", 0, "note", "install the NVIDIA driver"),
        ("Driver Not Loaded", 2, "problem", "modprobe nvidia"),
        ("the driver was upgraded under us: reload it or reboot", 2, "problem", "modprobe -r"),
    ],
)
def test_why_no_gpu_answers(reason, devices, level, words):
    finding = hardware.judge_absence(reason, devices)
    assert (finding.level, words in finding.advice) == (Level(level), True)


def test_a_gpu_that_fell_off_the_bus_is_missed_though_nvml_does_not_name_it():
    slices = [Gpu(f"MIG-{n}", 0, "H100 MIG 1g.10gb", 10 * GIB, parent="GPU-b") for n in range(2)]
    assert hardware.judge_count([GPU, *slices], 2).text == "1 x H100, 2 x H100 MIG 1g.10gb"
    assert hardware.judge_count([GPU, *slices], 3).level is Level.PROBLEM
    assert hardware.judge_count([GPU], None).text == "1 x H100 (fake)"


def test_a_mig_gpu_without_slices_is_a_problem_and_slices_are_slots():
    unsliced = answer(settings=GpuSettings(mig=True))
    assert levels(hardware.judge_slices([unsliced])) == ["problem"]
    part = Gpu("MIG-a", 0, "H100 MIG 1g.10gb", 10 * GIB, parent="GPU-a")
    assert levels(hardware.judge_slices([answer(gpu=part, settings=GpuSettings(mig=True))])) == ["note"]


def test_of_mig_slices_a_program_sees_one_and_none_can_be_swapped():
    slices = [answer(gpu=Gpu(f"MIG-{n}", n, "H100 MIG 1g.10gb", 10 * GIB, parent="GPU-a")) for n in range(7)]
    assert hardware.visible([each.gpu for each in slices]) == 1
    assert hardware.visible([GPU, GPU]) == 2
    assert hardware.judge_swap(Driver("580.65.06"), 0, True, slices).text == "not on MIG slices"


def test_swap_needs_a_new_driver_and_the_right_to_trace():
    assert hardware.judge_swap(Driver("580.65.06", "13.0"), 1, single_user=True).level is Level.OK
    assert hardware.judge_swap(Driver("575.51", "12.9"), 1, single_user=True).level is Level.NOTE
    assert "ptrace_scope" in hardware.judge_swap(Driver("580.65.06"), 3, single_user=True).text


def test_an_old_driver_is_named():
    assert hardware.judge_driver(Driver("470.82", "11.4")).level is Level.WARNING
    assert hardware.judge_driver(Driver("580.65.06", "13.0")).text == "580.65.06, CUDA 13.0"


def processes(*found, used=0, who=None):
    reading = answer(mem_used_bytes=used, processes=found)
    return list(hardware.judge_processes([reading], who or (lambda pid: GpuHolder(True, "ada", "python"))))


def test_a_foreign_process_is_named_with_its_user_command_and_memory():
    (finding,) = processes(GpuProcess(7, 10 * GIB), used=10 * GIB)
    assert finding.text == "python (pid 7 of ada) on GPU 0 with 10.0 GiB is not a job of Ebbtide"
    assert finding.level is Level.NOTE


def test_a_zombie_comes_with_the_parent_that_should_notice():
    (finding,) = processes(GpuProcess(7, None), who=lambda pid: GpuHolder(False, "ada", "python", parent=3))
    assert finding.level is Level.WARNING
    assert "kill 3" in finding.advice


def test_a_process_of_another_pid_namespace_is_told_apart_from_a_foreign_one():
    (finding,) = processes(GpuProcess(7, None), who=lambda pid: GpuHolder(None))
    assert "--pid=host" in finding.advice


def test_memory_that_nobody_holds_is_found_unless_somebodys_is_not_known():
    (finding,) = processes(used=3 * GIB)
    assert finding.text == "3.0 GiB of GPU 0 are used by no process that shows"
    unknown = processes(GpuProcess(7, None), used=3 * GIB, who=lambda pid: GpuHolder(True, ours=True))
    assert levels(unknown) == ["ok"]


def test_the_jobs_of_this_node_are_not_foreign():
    assert levels(processes(GpuProcess(7, GIB), used=GIB, who=lambda pid: GpuHolder(True, ours=True))) == ["ok"]


@pytest.mark.parametrize(
    ("ahead", "doubt", "level"),
    [(0.2, 0.0, "ok"), (3.0, 0.0, "warning"), (-40.0, 0.0, "problem"), (3.0, 2.5, "ok"), (None, 0.0, "ok")],
)
def test_a_clock_is_compared_with_the_masters_as_well_as_the_way_there_allows(ahead, doubt, level):
    assert machine.judge_clock(1.8e9, ahead, doubt).level is Level(level)


def test_a_clock_that_was_never_set_is_a_problem():
    assert machine.judge_clock(12.0, None, 0.0).level is Level.PROBLEM


def test_little_shared_memory_is_said_before_a_loader_dies_of_it():
    assert machine.judge_shared_memory(64 * 2**20, 64 * 2**20, "/dev/shm", "more").level is Level.WARNING
    assert machine.judge_shared_memory(8 * GIB, 0, "/dev/shm", "more").level is Level.WARNING
    assert machine.judge_shared_memory(8 * GIB, 8 * GIB, "/dev/shm", "more").level is Level.OK


@pytest.mark.parametrize(
    ("found", "gpus", "level", "words"),
    [
        (None, 2, "note", "has none"),
        (Torch("2.9.0", "12.8", 2), 2, "ok", "sees 2 GPUs"),
        (Torch("2.9.0+cpu", "", 0), 2, "problem", "built without CUDA"),
        (Torch("2.9.0", "12.8", 1), 2, "problem", "sees 1 of 2 GPUs"),
        (Torch("2.9.0+cpu", "", 0), 0, "ok", "on the CPU"),
    ],
)
def test_a_pytorch_that_does_not_see_the_gpus_is_a_problem(found, gpus, level, words):
    finding = python.judge(found, gpus, fake=False, python="python")
    assert (finding.level, words in finding.text) == (Level(level), True)


def test_two_checkpoint_roots_are_the_same_if_their_ids_are(tmp_path):
    assert storage.judge_root("a", {}, tmp_path).level is Level.OK
    assert storage.judge_root("a", {"ws2": "a"}, tmp_path).text.endswith("is shared with ws2")
    assert "not the one of ws3" in storage.judge_root("a", {"ws2": "a", "ws3": "b"}, tmp_path).text
    assert storage.judge_root("", {"ws2": "a"}, tmp_path).level is Level.NOTE


def test_what_becomes_of_cpus_and_memory_is_what_the_agent_has_found_out(tmp_path: Path) -> None:
    place = tmp_path / "nodes" / "ws1"
    place.mkdir(parents=True)
    subject = Subject(home=tmp_path, node="ws1", agent_pid=1)
    assert "an agent that runs says" in machine.job_limits(subject).text
    for told, level in (("enforced", Level.OK), ("watched", Level.NOTE)):
        (place / "agent.json").write_text(json.dumps({"cpu_limits": "booked", "mem_limits": told}))
        assert f"its --mem {told}" in machine.job_limits(subject).text
        assert machine.judge_job_limits("enforced", told).level is level
    assert "an agent that runs says" in machine.job_limits(replace(subject, agent_pid=0)).text

"""`ebb ls`, `show`, `story`, `nodes` and `events` against a master that answers."""

import time

import grpc
import pytest
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.client.runs import start_ebb
from tests.client.scripted_master import make_job, make_node, share

SHOW_KEYS = {
    "id", "name", "user", "state", "reason", "held_by", "class", "preemptible", "priority", "pool", "gpus",
    "gpu_mem_bytes", "nodes", "gpu_uuids", "attempt", "preemptions", "resizes", "restarts", "progress", "submit_time",
    "start_time", "end_time", "waiting_s", "running_s", "exit_code", "checkpoint", "suspensions", "attempts", "command",
    "workdir", "grace_s", "pid", "weight", "group",
}  # fmt: skip


def suspended_job() -> client_pb2.Job:
    """A job with a past."""
    allocation = client_pb2.NodeAllocation(node="ws1", gpus=[job_pb2.GpuAllocation(uuid="GPU-a")])
    return make_job(
        state="SUSPENDED",
        reason="preempted by job 18",
        held_by="user",
        attempt=1,
        preemptions=1,
        start_time=1001.0,
        waiting_s=0.5,
        running_s=60.0,
        progress=job_pb2.Progress(step=120, total=1000, loss=0.5),
        checkpoint=job_pb2.Checkpoint(step=120, bytes=2048, path="/ck/step-000000000120", verified=True),
        suspensions=[
            client_pb2.Suspension(
                requested=1061.0, exited=1063.5, checkpointed=job_pb2.CHECKPOINTED_YES, reason="preempted by job 18",
                checkpoint_s=1.5, checkpoint_bytes=2048,
                note="1.0 GiB moved to host memory in 0.6 s",
                parts_s={"exit": 1.0, "save": 1.5},
            )
        ],
        attempts=[
            client_pb2.AttemptSummary(
                attempt=1, placed_time=1000.9, start_time=1001.0, end_time=1063.5, allocation=[allocation], pid=4711,
                outcome="checkpointed and stepped aside", warm=True,
            )
        ],
    )  # fmt: skip


def test_show_prints_every_promised_key_with_its_true_value(ebb, master):
    master.add(suspended_job())
    shown = ebb("show", "17", "--json").json
    assert shown.keys() >= SHOW_KEYS
    assert (shown["id"], shown["state"], shown["class"], shown["held_by"]) == ("17", "SUSPENDED", "be", "user")
    assert (shown["priority"], shown["weight"], shown["group"]) == (42, 1.0, None)
    assert shown["gpus"] == {"min": 1, "max": 4, "allocated": 0}
    assert shown["progress"] == {"step": 120, "total": 1000, "loss": 0.5, "metrics": {}}
    assert shown["checkpoint"] == {"step": 120, "bytes": 2048, "path": "/ck/step-000000000120", "verified": True}
    assert (shown["submit_time"], shown["end_time"], shown["exit_code"], shown["pid"]) == (1000.5, None, None, None)
    (suspension,) = shown["suspensions"]
    assert suspension["requested"] == 1061.0
    assert suspension["exited"] == 1063.5
    assert suspension["gpu_free"] is None
    assert suspension["resumed"] is None
    assert (suspension["checkpointed"], suspension["checkpoint_s"], suspension["checkpoint_bytes"]) == (
        "yes",
        1.5,
        2048,
    )
    assert suspension["note"] == "1.0 GiB moved to host memory in 0.6 s"
    assert list(suspension["parts_s"].items()) == [("save", 1.5), ("exit", 1.0)]
    assert shown["attempts"][0]["gpu_uuids"] == ["GPU-a"]
    assert shown["attempts"][0]["warm"] is True


def test_show_has_nulls_for_what_has_not_come_yet(ebb, master):
    master.add(make_job())
    shown = ebb("show", "17", "--json").json
    assert shown["progress"] == {"step": None, "total": None, "loss": None, "metrics": {}}
    assert shown["checkpoint"] is None
    assert shown["start_time"] is None
    assert shown["held_by"] is None


def test_show_gives_shares_of_a_gpu_as_numbers(ebb, master):
    job = make_job(state="RUNNING")
    job.spec.gpus_min.denominator = 4
    job.gpus_allocated.denominator = 4
    master.add(job)
    shown = ebb("show", "17", "--json").json
    assert shown["gpus"] == {"min": 0.25, "max": 4, "allocated": 0.25}
    assert shown["nodes"] == ["ws1"]
    assert shown["gpu_uuids"] == ["GPU-a"]


def test_a_checkpoint_that_the_supervisor_sealed_has_no_step(ebb, master):
    master.add(make_job(checkpoint=job_pb2.Checkpoint(bytes=1, path="/ck/attempt-1")))
    assert ebb("show", "17", "--json").json["checkpoint"]["step"] is None


def test_show_never_prints_the_environment(ebb, master):
    master.add(make_job())
    assert "secret" not in ebb("show", "17", "--json").out + ebb("show", "17").out + ebb("ls", "--json").out


def test_show_tells_a_person_the_same(ebb, master):
    master.add(suspended_job())
    out = ebb("show", "17").out
    assert "Job 17  train.py  SUSPENDED" in out
    assert "python train.py --lr 3e-4" in out
    assert "step 120, 2KiB, verified: /ck/step-000000000120" in out
    assert "120/1000 12%" in out
    assert "checkpointed and stepped aside" in out
    assert "2.5s" in out  # from the request to the exit
    assert "yes, 2KiB, 1.5s" in out


def test_show_says_how_much_gpu_memory_a_job_needs_and_how_that_is_known(ebb, master):
    attempt = client_pb2.AttemptSummary(attempt=1, placed_time=1000.9, gpu_mem_peak_bytes=4 << 30)
    master.add(make_job(gpu_mem_bytes=9 << 29, gpu_mem_from="from its last 5 runs", attempts=[attempt]))
    shown = ebb("show", "17", "--json").json
    assert (shown["gpu_mem_bytes"], shown["gpu_mem_from"]) == (9 << 29, "from its last 5 runs")
    assert shown["attempts"][0]["gpu_mem_peak_bytes"] == 4 << 30
    assert "4.5GiB: from its last 5 runs" in ebb("show", "17").out


@pytest.mark.parametrize("verb", ["show", "story", "logs", "suspend", "resume", "cancel", "hold", "release", "wait"])
def test_an_unknown_id_is_one_line_and_exit_1(ebb, master, verb):
    result = ebb(verb, "99")
    assert (result.code, result.complaint) == (1, "job 99 does not exist")


@pytest.mark.parametrize("job_id", ["abc", "", "1\x00", "9" * 5000, "\udcff", "17;rm"])
def test_what_cannot_be_an_id_is_an_unknown_id(ebb, master, job_id):
    result = ebb("show", job_id)
    assert result.code == 1
    assert result.complaint.startswith("no job ")


def test_ls_lists_jobs_with_progress_and_reason(ebb, master):
    running = make_job(state="RUNNING", waiting_s=3.0, running_s=5400.0, reason="running")
    running.progress.CopyFrom(job_pb2.Progress(step=120, total=1000))
    master.add(running, make_job("18", reason="waiting for 1 GPU"))
    lines = ebb("ls").out.splitlines()
    titles = "ID NAME USER STATE GPUS PROGRESS CLASS WAITED/RAN NODE REASON"
    assert lines[0].split() == titles.split()
    assert lines[1].split() == (
        ["17", "train.py", "ada", "RUNNING", "1", "of", "1-4", "120/1000", "12%", "be", "3s/1h30m", "ws1", "running"]
    )
    assert lines[2].endswith("waiting for 1 GPU")


def test_ls_json_is_an_array_of_what_show_prints(ebb, master):
    master.add(suspended_job(), make_job("18"))
    listed = ebb("ls", "--json").json
    assert [job["id"] for job in listed] == ["17", "18"]
    assert listed[0] == ebb("show", "17", "--json").json


def test_ls_asks_for_finished_jobs_only_with_all(ebb, master):
    ebb("ls")
    ebb("ls", "--all")
    assert [request.all for request in master.sent("ListJobs")] == [False, True]


def test_an_empty_queue_says_so(ebb, master):
    assert ebb("ls").out == "No unfinished jobs ('ebb ls --all' shows finished ones).\n"
    assert ebb("ls", "--json").json == []


def test_a_name_cannot_write_to_the_terminal(ebb, master):
    job = make_job(reason="\x1b]0;owned\x07\nforged line")
    job.spec.name = "\u202egpj.exe\x1b[2J"
    job.spec.command[:] = ["echo", "\x1b[2J"]
    master.add(job)
    for out in (ebb("ls").out, ebb("show", "17").out):
        assert not any(letter in out for letter in "\x1b\x07\u202e")
    assert len(ebb("ls").out.splitlines()) == 2


def test_a_closed_pipe_ends_ls_without_a_word(master, home):
    for number in range(2000):
        master.add(make_job(str(number), reason="r" * 200))
    with start_ebb("ls") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 141


def test_a_full_disk_is_one_line(master, home):
    master.add(make_job())
    with open("/dev/full", "w") as full, start_ebb("ls", stdout=full) as process:
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "ebb: output: No space left on device\n")


def test_nodes_show_gpus_jobs_and_foreign_processes(ebb, master):
    master.nodes.append(make_node())
    out = ebb("nodes").out
    assert "ws1  up" in out
    assert "A100-40GB  10GiB/40GiB  50%" in out
    assert "jupyter of bob 2GiB" in out
    assert "python of ada" not in out
    (node,) = ebb("nodes", "--json").json
    (gpu,) = node["gpus"]
    assert (gpu["share_allocated"], gpu["job_ids"], gpu["utilisation"]) == (0.25, ["17"], 0.5)
    assert [process["id"] for process in gpu["processes"]] == ["17", None]


def test_nodes_tell_who_had_gpus_past_the_cluster_and_for_how_long(ebb, master):
    master.nodes.append(make_node())
    assert "past the cluster" not in ebb("nodes").out
    master.foreign_gpu_s.update({"bob": 7200.0, "ada": 90.0})
    assert ebb("nodes").out.endswith("\nGPU time past the cluster: ada 1m30s, bob 2h\n")
    assert ebb("top", "--once", "--json").json["foreign_gpu_s"] == {"ada": 90.0, "bob": 7200.0}


def test_a_node_tells_where_its_gpus_are_and_what_joins_them(ebb, master):
    node = make_node(cgroup="/sys/fs/cgroup/ebb")
    first = node.gpus[0]
    first.reading.temperature_c, first.reading.power_w = 61, 250.5
    first.info.pci_bus_id, first.info.numa_node = "0000:01:00.0", 0
    first.info.peers.add(uuid="GPU-b", link=agent_pb2.GPU_LINK_NVLINK)
    second = node.gpus.add(info=agent_pb2.GpuInfo(uuid="GPU-b", index=1, parent="GPU-x"))
    second.info.peers.add(uuid="GPU-a", link=agent_pb2.GPU_LINK_NVLINK)
    master.nodes.append(node)
    assert "control groups: yes" in ebb("nodes").out
    (facts,) = ebb("nodes", "--json").json
    assert (facts["cgroup"], facts["nvlinks"]) == ("/sys/fs/cgroup/ebb", [["GPU-a", "GPU-b"]])
    here, slice = facts["gpus"]
    assert (here["temperature_c"], here["power_w"], here["links"]) == (61, 250.5, {"GPU-b": "nvlink"})
    assert (here["pci_bus_id"], here["numa_node"], here["mig_parent"]) == ("0000:01:00.0", 0, None)
    assert (slice["temperature_c"], slice["numa_node"], slice["mig_parent"]) == (None, None, "GPU-x")


def test_a_node_tells_what_becomes_of_the_cpus_and_the_memory_that_jobs_ask_for(ebb, master):
    master.nodes.append(make_node(cpu_limits="booked", mem_limits="watched"))
    assert "--cpus booked  --mem watched" in ebb("nodes").out
    (facts,) = ebb("nodes", "--json").json
    assert (facts["cpu_limits"], facts["mem_limits"]) == ("booked", "watched")


def test_of_a_node_that_is_away_nobody_knows_whether_jobs_get_control_groups(ebb, master):
    master.nodes.append(make_node())
    assert "control groups" not in ebb("nodes").out
    (facts,) = ebb("nodes", "--json").json
    assert (facts["cgroup"], facts["cpu_limits"], facts["mem_limits"]) == (None, None, None)


def test_a_certificate_is_mentioned_when_it_should_have_been_renewed(ebb, master):
    day_s, now = 86_400.0, time.time()
    master.nodes = [make_node(name="plain"), make_node(name="ws2", certificate_ends=now + 15 * day_s)]
    assert "certificate" not in ebb("nodes").out
    assert [node["certificate_ends"] for node in ebb("nodes", "--json").json] == [None, now + 15 * day_s]
    master.nodes = [make_node(certificate_ends=now + 13.5 * day_s)]
    assert "certificate ends in 13d" in ebb("nodes").out
    master.nodes = [make_node(certificate_ends=now - 1)]
    assert "certificate has expired: join again" in ebb("nodes").out


def test_a_gpu_without_a_reading_is_not_called_unhealthy(ebb, master):
    node = make_node()
    node.gpus[0].ClearField("reading")
    master.nodes.append(node)
    out = ebb("nodes").out
    assert "?/40GiB" in out
    assert "unhealthy" not in out


def test_no_nodes_says_so(ebb, master):
    assert ebb("nodes").out.startswith("No nodes")


def make_events() -> list[client_pb2.Event]:
    return [
        client_pb2.Event(sequence=1, time=1000.0, kind="JobSubmitted", job_id="17", text="submitted by ada",
                         json='{"spec": {"env": {"K": "secret"}, "name": "n"}}'),
        client_pb2.Event(sequence=2, time=1001.5, kind="AttemptPlaced", job_id="17", text="placed on ws1"),
        client_pb2.Event(sequence=3, time=1002.0, kind="NodeLost", node="ws1", text="lost\nforged"),
    ]  # fmt: skip


def test_a_story_tells_when_and_what(ebb, master):
    master.add(make_job(reason="waiting for 1 GPU"))
    master.events = make_events()
    lines = ebb("story", "17").out.splitlines()
    assert len(lines) == 4
    assert lines[3] == "Now it is PENDING: waiting for 1 GPU"
    assert "+1.5s" in lines[1]
    assert lines[1].endswith("placed on ws1")
    story = ebb("story", "17", "--json").json
    assert [event["kind"] for event in story] == ["JobSubmitted", "AttemptPlaced", "NodeLost"]
    assert story[0]["event"] == {"spec": {"name": "n"}}


def test_events_are_json_lines(ebb, master):
    master.events = make_events()
    lines = ebb("events", "--json").out.splitlines()
    assert len(lines) == 3
    assert '"node": "ws1"' in lines[2]
    assert len(ebb("events").out.splitlines()) == 3


def test_events_go_on_where_a_restarted_master_left_off(ebb, master):
    master.events = make_events()
    master.dying = 2
    assert len(ebb("events", "--json").out.splitlines()) == 3
    assert [request.after_sequence for request in master.sent("WatchEvents")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "--gpus: 9 is more than the 2 of the largest node", 2),
        (grpc.StatusCode.NOT_FOUND, "job 17 does not exist", 1),
        (grpc.StatusCode.FAILED_PRECONDITION, "job 17 is COMPLETED already", 1),
        (grpc.StatusCode.ALREADY_EXISTS, "it exists", 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit of 200000 unfinished jobs is reached", 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (5 vs. 4)", 2),
        (grpc.StatusCode.PERMISSION_DENIED, "job 17 is not yours", 3),
        (grpc.StatusCode.UNAUTHENTICATED, "no token", 3),
        (grpc.StatusCode.UNAVAILABLE, "the master is stopping", 3),
        (grpc.StatusCode.INTERNAL, "a fault\nin two lines", 1),
        (grpc.StatusCode.UNIMPLEMENTED, "no such method", 1),
    ],
)
def test_every_refusal_has_its_exit_code_and_one_line(ebb, master, status, words, code):
    master.refusals["ShowJob"] = (status, words)
    result = ebb("show", "17")
    assert result.code == code
    assert words.replace("\n", " ") in result.complaint


def test_show_tells_how_fast_a_job_is_and_was(ebb, master):
    rates = [
        client_pb2.Rate(gpus=share(1), nodes=1, alone=True, steps_per_s=6.42, samples=9, model="A100"),
        client_pb2.Rate(gpus=share(2), nodes=2, alone=True, steps_per_s=11.7, samples=3, model="A100"),
        client_pb2.Rate(gpus=share(1, 2), nodes=1, alone=False, steps_per_s=3.1, samples=4, model="A100"),
    ]
    master.add(make_job(state="RUNNING", steps_per_s=11.8, rates=rates))
    words = "11.8 steps/s now, 6.42 on 1 GPU, 11.7 on 2 GPUs of 2 nodes, 3.1 on 1/2 GPU beside others"
    assert words in ebb("show", "17").out
    shown = ebb("show", "--json", "17").json
    assert shown["steps_per_s"] == 11.8
    assert shown["rates"][2] == {
        "gpus": 0.5, "nodes": 1, "model": "A100", "alone": False, "steps_per_s": 3.1, "samples": 4
    }  # fmt: skip


def test_a_job_of_unknown_speed_shows_none(ebb, master):
    master.add(make_job(state="RUNNING"))
    assert "speed" not in ebb("show", "17").out
    shown = ebb("show", "--json", "17").json
    assert (shown["steps_per_s"], shown["rates"]) == (None, [])


def test_ls_tells_of_those_who_have_left_whether_they_saved_and_what_will_be_repeated(ebb, master):
    """Before, a job that had lost work looked like one that had not."""
    assert "SAVED" not in ebb("ls").out
    lost = suspended_job()
    lost.suspensions[0].checkpointed = job_pb2.CHECKPOINTED_NO
    lost.suspensions[0].lost, lost.suspensions[0].hint = "steps 110-120 will be repeated", "see its log"
    unknown = make_job("18", "SUSPENDED", reason="suspended by user")
    unknown.suspensions.append(client_pb2.Suspension(requested=1.0, exited=2.0))
    back = make_job("19", "RUNNING", reason="running")
    back.suspensions.append(client_pb2.Suspension(requested=1.0, exited=2.0, resumed=3.0))
    master.add(lost, unknown, back)
    titles, *rows = ebb("ls").out.splitlines()
    at = titles.index("SAVED")
    assert [" ".join(row[at:].split()) for row in rows] == [
        "no steps 110-120 will be repeated; preempted by job 18",
        "unknown suspended by user",
        "- running",
    ]
    shown = ebb("show", "17").out
    assert "steps 110-120 will be repeated; see its log" in shown
    [suspension] = ebb("show", "17", "--json").json["suspensions"]
    assert [suspension[name] for name in ("checkpointed", "lost", "hint", "kept_step")] == [
        "no", "steps 110-120 will be repeated", "see its log", None,
    ]  # fmt: skip

"""`ebb top`: what a frame holds, that it fits, and that the terminal is left as it was."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import termios
import time
from collections import deque
from io import StringIO

import grpc
import pytest
from ebbtide_cli.top import feed
from ebbtide_cli.top.feed import Feed, Jobs, Picture, Speeds
from ebbtide_cli.top.frame import frame
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2
from rich.console import Console

from tests.client.runs import start_ebb, without_styles
from tests.client.scripted_master import GIB, make_job, make_node, share

ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"


def gpu(index: int, jobs: dict[str, float], foreign: float = 0.0, **fields) -> client_pb2.NodeGpu:
    """A GPU of 24 GiB; memory in GiB by job."""
    processes = [agent_pb2.GpuProcess(pid=1, job_id=id, mem_bytes=int(gib * GIB)) for id, gib in jobs.items()]
    if foreign:
        held = int(foreign * GIB)
        processes.append(agent_pb2.GpuProcess(pid=2, user="bob", command="jupyter", mem_bytes=held))
    reading = agent_pb2.GpuReading(
        uuid=f"GPU-{index}", mem_used_bytes=int((sum(jobs.values()) + foreign) * GIB), utilisation=0.97, healthy=True,
        processes=processes, temperature_c=61, power_w=341.2,
    )  # fmt: skip
    reading.MergeFrom(agent_pb2.GpuReading(**fields))
    name = "NVIDIA GeForce RTX 4090"
    info = agent_pb2.GpuInfo(uuid=f"GPU-{index}", index=index, model=name, mem_bytes=24 * GIB, healthy=True)
    return client_pb2.NodeGpu(info=info, reading=reading, share_allocated=share(1, 2), job_ids=list(jobs))


def node(name="ws1", **fields) -> client_pb2.Node:
    gpus = [gpu(0, {"17": 6, "18": 6}), gpu(1, {}, foreign=12), gpu(2, {"19": 24}), gpu(3, {})]
    return client_pb2.Node(**({"name": name, "state": "up", "gpus": gpus, "cpus": 16, "mem_bytes": 64 * GIB} | fields))


def jobs(waiting: int = 2) -> list[client_pb2.Job]:
    progress = job_pb2.Progress(step=120, total=1000)
    running = make_job("17", "RUNNING", progress=progress, running_s=3700)
    why = "waiting for 4 GPUs in pool default: 2 are idle on ws1"
    return [running, *(make_job(str(20 + n), reason=why, waiting_s=60) for n in range(waiting))]


def picture(nodes=(), unfinished=(), **fields) -> Picture:
    return Picture(1.8e9, "127.0.0.1:4711", list(nodes), list(unfinished), **fields)


def drawn(shown: Picture, width=80, height=24) -> list[str]:
    """The frame as a console without colours records it."""
    console = Console(record=True, file=StringIO(), width=width, height=height, force_terminal=False)
    for line in frame(shown, width, height):
        console.print(line)
    return console.export_text().splitlines()


# --- frames ---


def test_a_gpu_shows_its_memory_by_job_its_share_and_its_sensors():
    lines = drawn(picture([node()]))
    line = next(line for line in lines if line.lstrip().startswith("0 "))
    assert line.split()[:3] == ["0", "RTX", "4090"]
    assert "17███" in line
    assert "18███" in line
    assert line.split()[-5:] == ["12.0/24.0", "1/2", "97%", "61°C", "341W"]


def test_parts_of_a_bar_are_as_long_as_what_they_stand_for():
    lines = drawn(picture([node()]), 120, 40)
    bars = [line[line.index("4090") + 4 :].split()[0] for line in lines if "4090" in line]
    half = len(bars[0]) // 2
    assert bars[0] == "17".ljust(half // 2, "█") + "18".ljust(half // 2, "█") + "·" * half
    assert bars[1] == "foreign".ljust(half, "▓") + "·" * half
    assert bars[2] == "19".ljust(2 * half, "█")
    assert bars[3] == "·" * (2 * half)


def test_foreign_processes_are_named_below_their_gpu_and_illness_too():
    sick = gpu(0, {}, foreign=2)
    sick.reading.healthy, sick.reading.unhealthy_reason = False, "Xid 79: the GPU has fallen off the bus"
    text = "\n".join(drawn(picture([node(gpus=[sick])])))
    assert "foreign: jupyter of bob 2GiB" in text
    assert "Xid 79: the GPU has fallen off the bus" in text


def test_what_a_driver_does_not_tell_is_a_question_mark():
    unknown = client_pb2.NodeGpu(info=agent_pb2.GpuInfo(uuid="a", model="T4", mem_bytes=16 * GIB, healthy=True))
    line = drawn(picture([node(gpus=[unknown])]))[-1]
    assert line.split() == ["0", "T4", "?", "?/16.0", "0", "?", "?", "?"]


def test_running_jobs_show_steps_and_speed_and_waiting_ones_why():
    text = "\n".join(drawn(picture([], jobs(), speeds={"17": 3.214}), 120, 40))
    assert "120/1000 12%  3.21/s  1h1m40s" in text
    assert "waiting for 4 GPUs in pool default: 2 are idle on ws1" in text


def test_who_is_held_stands_behind_who_waits_for_room():
    held = make_job("30", reason="held by user", held_by="user")
    lines = drawn(picture([], [held, *jobs()]))
    assert lines[-1].split()[0] == "30"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 15), (200, 50)])
def test_a_frame_fits_its_terminal_however_much_there_is_to_show(width, height):
    crowd = picture([node(f"ws{number}") for number in range(9)], jobs(waiting=99) + jobs(0) * 30)
    lines = drawn(crowd, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(title in text for title in ("GPU", "RUNNING", "WAITING"))
    assert "… and " in text


def test_thousands_that_wait_are_counted_and_not_drawn():
    one = make_job("20")
    lines = drawn(picture([], [one] * 50_000), 80, 24)
    assert lines[0].startswith("ebb top  0 nodes, 0 running, 50000 waiting")
    assert len(lines) == 24
    assert lines[-1] == "     … and 49980 more"


def test_of_a_thousand_nodes_those_that_fit_are_drawn():
    lines = drawn(picture([node()] * 1000), 80, 24)
    assert lines[0].startswith("ebb top  1000 nodes")
    assert len(lines) == 24
    assert lines[-1].startswith("     … and 59")  # lines: six of each node


@pytest.mark.parametrize("height", range(1, 15))
def test_even_a_terminal_that_is_much_too_low_shows_whole_lines(height):
    lines = drawn(picture([node()], jobs(waiting=9)), 60, height)
    assert lines[0].startswith("ebb top")
    assert len(lines) <= height


def test_eighty_columns_hold_what_matters():
    lines = drawn(picture([node()], jobs()))
    titles = [line.split() for line in lines if line.split()[:1] in (["GPU"], ["RUNNING"], ["WAITING"])]
    assert titles == [
        ["GPU", "MODEL", "MEMORY", "GiB", "SHARE", "BUSY", "TEMP", "POWER"],
        ["RUNNING", "NAME", "USER", "STATE", "GPUS", "STEP", "SPEED", "RAN", "NODE"],
        ["WAITING", "NAME", "USER", "GPUS", "WAITED", "WHY"],
    ]


def test_a_master_that_is_away_is_said_and_what_was_known_stays():
    lines = drawn(picture([node()], away_s=12.3))
    assert "master away since 12 s" in lines[0]
    assert any("RTX 4090" in line for line in lines)


def test_names_that_would_move_the_cursor_are_shown_without_that():
    evil = make_job("17", "RUNNING")
    evil.spec.name = "a\x1b[2Jb\u202ec"
    text = "\n".join(drawn(picture([node(name="ws\x1b]0;x\x07")], [evil])))
    assert "\x1b" not in text
    assert "\u202e" not in text


# --- speeds ---


def at_step(step: int, running_s: float = 100.0) -> list[client_pb2.Job]:
    return [make_job("17", "RUNNING", progress=job_pb2.Progress(step=step), running_s=running_s)]


def test_speed_is_that_of_the_last_half_minute_once_it_was_watched():
    speeds = Speeds()
    assert speeds.take(at_step(50), {}, 0.0) == {"17": 0.5}  # of its whole life: nothing else is known
    assert speeds.take(at_step(70), {}, 10.0) == {"17": 2.0}
    assert speeds.take(at_step(670), {}, 40.0) == {"17": 20.0}


def test_a_job_that_began_again_is_not_fast_backwards():
    speeds = Speeds()
    speeds.take(at_step(500), {}, 0.0)
    assert speeds.take(at_step(400), {"17": 100.0}, 5.0) == {"17": 2.0}
    assert speeds.take([make_job("17", "RUNNING")], {}, 6.0) == {}
    assert speeds.take([], {}, 7.0) == {}


# --- jobs ---


def ids(told: Jobs, at: float) -> list[str]:
    return [job.job_id for job in told.now(at)[0]]


def test_jobs_are_those_that_were_told_of_and_have_not_finished():
    told = Jobs([make_job("1"), make_job("2", "RUNNING")], 0.0)
    told.take(make_job("3"), 1.0)
    told.take(make_job("1", "COMPLETED"), 1.5)
    assert (ids(told, 1.5), told.now(2.0)[1]) == (["2", "3"], {"2": 2.0, "3": 1.0})


def test_what_ended_while_the_master_was_away_is_gone_once_the_new_connection_has_told_of_all():
    told = Jobs([make_job("1"), make_job("2")], 0.0)
    told.connected(10.0)
    told.take(make_job("2"), 10.1)
    assert ids(told, 10.2) == ["1", "2"]
    assert ids(told, 13.0) == ["2"]


def test_times_go_on_between_two_words_of_a_job():
    shown = picture(
        [], [make_job("17", "RUNNING", running_s=100), make_job("18", waiting_s=5)], ages_s={"17": 20, "18": 3}
    )
    lines = drawn(shown)
    assert "2m" in next(line for line in lines if "RUNNING  " in line and "17" in line).split()
    assert "8s" in lines[-1].split()


def test_the_time_that_its_user_holds_a_job_does_not_go_on_as_waiting():
    shown = picture([], [make_job("18", waiting_s=5, held_by="user")], ages_s={"18": 30})
    assert "5s" in drawn(shown)[-1].split()


# --- the verb ---


def test_once_prints_one_frame(ebb, master):
    master.nodes.append(make_node())
    master.add(*jobs())
    result = ebb("top", "--once")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("ebb top  1 node, 1 running, 2 waiting")
    assert "jupyter of bob 2GiB" in result.out
    assert "\x1b" not in result.out


def test_once_as_json_is_one_object(ebb, master, monkeypatch):
    monkeypatch.setattr(feed, "AWAY_S", 60.0)
    master.nodes.append(make_node())
    master.add(*jobs())
    facts = ebb("top", "--once", "--json").json
    assert (facts["master_away_s"], [node["name"] for node in facts["nodes"]]) == (None, ["ws1"])
    first = facts["jobs"][0]
    assert (first["id"], first["steps_per_s"]) == ("17", pytest.approx(120 / 3700, rel=1e-3))


def test_without_a_master_it_fails_at_once(ebb):
    result = ebb("top")
    assert (result.code, result.out) == (3, "")
    assert result.complaint.startswith("no master")


def test_too_short_a_pause_is_wrong_usage(ebb, master):
    assert "--every: 0.01 s is less than 0.1 s" in ebb("top", "--every", "0.01s").complaint


def test_as_json_it_streams_until_it_is_interrupted_and_bridges_a_master_that_is_away(master):
    master.nodes.append(make_node())
    with start_ebb("top", "--json", "--every", "0.1s") as process:
        first = next(facts for line in process.stdout if (facts := json.loads(line))["master_away_s"] is None)
        master.mute = 10**6
        away = next(facts for line in process.stdout if (facts := json.loads(line))["master_away_s"])
        master.mute = 0
        back = next(facts for line in process.stdout if not (facts := json.loads(line))["master_away_s"])
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 0
    assert away["nodes"] == first["nodes"]
    assert back["time"] > first["time"]


def test_a_pipe_gets_plain_frames_one_after_the_other(master):
    master.nodes.append(make_node())
    with start_ebb("top", "--every", "0.1s") as process:
        lines = iter(process.stdout.readline, "")
        heads = (line for line in lines if line.startswith("ebb top  1 node"))
        assert [next(heads), next(heads)]
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert "\x1b" not in rest


def on_terminal(keys: bytes, signum: int = 0) -> tuple[int, str, bool]:
    """Run it on a terminal of 80×24 until the second frame, then type or signal: exit code, output, same settings."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(inner)
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    environ["TERM"] = "xterm-256color"
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), inner)
    with start_ebb("top", "--every", "0.1s", env=environ, **streams) as process:
        shown = read_until(outer, lambda shown: shown.count(b"ebb top") >= 2)
        process.send_signal(signum)
        os.write(outer, keys)
        shown += read_until(outer, lambda _: process.poll() is not None)
        process.kill()
        code = process.wait()
    same = termios.tcgetattr(inner) == before
    os.close(inner)
    os.close(outer)
    return code, shown.decode(), same


def read_until(descriptor: int, true) -> bytes:
    """What is shown until this is true, as bytes, because a read may end within a character."""
    shown, give_up = b"", time.monotonic() + 60
    while not true(shown) and time.monotonic() < give_up:
        if select.select([descriptor], [], [], 0.05)[0]:
            shown += os.read(descriptor, 65536)
    while select.select([descriptor], [], [], 0)[0]:
        shown += os.read(descriptor, 65536)
    return shown


@pytest.mark.parametrize(("keys", "signum"), [(b"q", 0), (b"xyzQ", 0), (b"", signal.SIGINT), (b"", signal.SIGTERM)])
def test_it_quits_and_leaves_the_terminal_as_it_was(master, keys, signum):
    master.nodes.append(make_node())
    code, shown, same = on_terminal(keys, signum)
    assert (code, same) == (0, True)
    assert shown.startswith(ALTERNATE)
    assert shown.rstrip().endswith(BACK) or BACK in shown[-40:]
    assert "\x1b[?25h" in shown[-40:]  # the cursor is back
    assert "\x1b[2J" not in shown[len(ALTERNATE) + 20 :]  # nothing is cleared between frames
    assert "A100-40GB" in without_styles(shown)


def test_a_feed_that_a_master_refuses_ends_the_watching(master, monkeypatch):
    monkeypatch.setattr(feed, "RETRY_S", 0.01)
    watching = Feed(None, 0.1)
    master.refusals["ListNodes"] = (grpc.StatusCode.PERMISSION_DENIED, "not yours")
    watching.start()
    pictures = iter(watching.picture, None)
    with pytest.raises(feed.Failure, match="not yours"):
        deque(pictures)
    watching.stop()

"""What a person sees of jobs that do not use their GPUs."""

from io import StringIO

from ebbtide_cli.top.feed import Picture
from ebbtide_cli.top.frame import frame
from rich.console import Console

from tests.client.scripted_master import make_job


def idle_job(**fields):
    return make_job(state="RUNNING", reason="running, but idle on 1 GPU", idle_since=1000.0, **fields)


def test_idle_ok_reaches_the_master(ebb, master):
    ebb("submit", "--", "true")
    ebb("submit", "--idle-ok", "--", "true")
    assert [request.spec.idle_ok for request in master.sent("Submit")] == [False, True]


def test_show_and_ls_say_that_a_job_is_idle_and_since_when(ebb, master):
    master.add(idle_job(idle_until=1600.0))
    facts = ebb("show", "17", "--json").json
    assert (facts["idle_since"], facts["idle_until"], facts["idle_ok"]) == (1000.0, 1600.0, False)
    assert "running, but idle on 1 GPU" in ebb("ls").out


def test_top_shows_it_in_place_of_a_speed():
    console = Console(file=StringIO(), width=100, color_system=None)
    picture = Picture(1.8e9, "127.0.0.1:4711", [], [idle_job()])
    console.print(frame(picture, 100, 20))
    [line] = [line for line in console.file.getvalue().splitlines() if "train.py" in line]
    assert "idle" in line.split()

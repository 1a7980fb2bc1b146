"""What `ebb` draws: for a person at a terminal of any width, and plainly for everything else."""

import random

import pytest
from ebbtide_cli.terminal import drawing, rich_drawing
from ebbtide_protos.v1 import client_pb2, job_pb2
from rich.console import Console

from tests.client.runs import colours, run_on_terminal, without_styles
from tests.client.scripted_master import ScriptedMaster, make_job, make_node

GREEN, YELLOW, RED = "32", "33", "31"
MARKUP = "[bold red]x[/] :smile: [link=http://e]y[/link]"
LONG = "waiting for 4 GPUs in pool default; " * 10


@pytest.fixture
def busy(master: ScriptedMaster, monkeypatch: pytest.MonkeyPatch) -> ScriptedMaster:
    """A master with jobs, a node and events, all with words that are long or look like markup."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    running = make_job("17", "RUNNING", reason="running", progress=job_pb2.Progress(step=120, total=1000, loss=0.25))
    running.spec.name = MARKUP
    running.spec.command[:] = ["echo", MARKUP]
    suspended = make_job("18", "SUSPENDED", reason=LONG + "end", progress=job_pb2.Progress(step=7))
    suspended.suspensions.append(client_pb2.Suspension(requested=1.0, reason=LONG + "end"))
    master.add(running, suspended, make_job("19", "FAILED", reason=MARKUP))
    master.nodes.append(make_node(reason=MARKUP))
    master.events = [client_pb2.Event(sequence=1, time=1.0, job_id="17", text=f"{LONG}{MARKUP}")]
    return master


@pytest.mark.parametrize(
    ("wish", "arguments"),
    [
        ("FORCE_COLOR", ["ls"]),
        ("CLICOLOR_FORCE", ["show", "18"]),
        ("TTY_COMPATIBLE", ["wait", "19"]),
        *(
            pytest.param(wish, arguments, marks=pytest.mark.slow)
            for wish in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
            for arguments in (["nodes"], ["story", "17"])
        ),
    ],
)
def test_a_pipe_gets_no_escape_codes_whatever_the_environment_wishes(busy, ebb_process, monkeypatch, wish, arguments):
    monkeypatch.setenv(wish, "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    result = ebb_process(*arguments)
    assert result.out
    assert "\x1b" not in result.out + result.err
    assert "…" not in result.out
    assert not set(result.out) & set("━│┃─╭╰|")


def test_a_pipe_gets_one_complete_line_for_each_row(busy, ebb):
    titles, *rows = ebb("ls").out.splitlines()
    assert [row.split()[0] for row in rows] == ["17", "18", "19"]
    assert rows[1].endswith(LONG + "end")
    assert ebb("show", "18").out.count(LONG + "end") == 2
    assert ebb("story", "17").out.splitlines()[-2].endswith(LONG + MARKUP)
    assert not any(row != row.rstrip() for row in (titles, *rows))


CELLS = (
    "",
    "a",
    "RUNNING",
    "x y",
    "  lead",
    "trail   ",
    "訓練",
    "é",
    "e\u0301",
    "\u200b",
    MARKUP,
    "a\tb",
    "a\nb",
    LONG,
    "\xa0n\xa0",
)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_printed_plainly_is_laid_out_as_rich_does_on_a_screen_without_end(monkeypatch, capsys, seed):
    """So both look the same, though the one is drawn without rich."""

    def endless(stream):
        return Console(file=stream, width=1_000_000, color_system=None, highlight=False)

    monkeypatch.setattr(rich_drawing, "_console", endless)
    monkeypatch.setattr(rich_drawing, "ROOM_FOR_BARS", 10**7)
    chance = random.Random(seed)
    for _ in range(20):
        wide = chance.randint(1, 5)
        rows = [[chance.choice(CELLS) for _ in range(wide)] for _ in range(chance.randint(0, 5))]
        titles = [f"{chance.choice(('ID', 'ÜBER', 'NAME'))}{number}" for number in range(wide)]
        done = [[(cell, 0.5) for cell in row] for row in rows]
        for name, given, drawn in (
            ("print_table", (titles, rows), (titles, rows)),
            ("print_columns", (rows,), (rows,)),
            ("print_words", (titles,), (titles,)),
            *([("print_list", (titles, done), (titles, rows, (), ()))] if rows else []),
        ):
            getattr(rich_drawing, name)(*drawn)
            expected = capsys.readouterr().out
            getattr(drawing, name)(*given)
            assert capsys.readouterr().out == expected


def test_columns_are_aligned_also_below_wide_characters(ebb, master):
    wide, narrow = make_job("1", reason="here"), make_job("2", reason="here")
    wide.spec.name = "訓練"
    master.add(wide, narrow)
    titles, first, second = ebb("ls").out.splitlines()
    assert titles.index("REASON") == second.index("here") == first.index("here") + len("訓練")


def test_what_looks_like_markup_is_shown_as_it_is(busy, ebb):
    for arguments in (["ls"], ["show", "17"], ["nodes"], ["story", "17"]):
        assert MARKUP in ebb(*arguments).out
        assert MARKUP in " ".join(without_styles(run_on_terminal(*arguments, columns=600).out).split())
    assert "link=http" not in "".join(part for part in run_on_terminal("ls").out.split("\x1b")[1:] if part[0] == "]")


def test_states_have_their_colours_on_a_terminal(busy):
    shown = run_on_terminal("ls").out
    for state, colour in (("RUNNING", GREEN), ("SUSPENDED", YELLOW), ("FAILED", RED)):
        assert f"\x1b[{colour}m{state}\x1b[0m" in shown
    assert f"\x1b[{GREEN}mRUNNING" in run_on_terminal("show", "17").out
    assert f"\x1b[{GREEN}mup" in run_on_terminal("nodes").out


@pytest.mark.parametrize(
    "arguments", [["ls"], *(pytest.param(other, marks=pytest.mark.slow) for other in (["show", "17"], ["nodes"]))]
)
def test_no_color_is_honoured(busy, monkeypatch, arguments):
    assert colours(run_on_terminal(*arguments, columns=160).out)
    monkeypatch.setenv("NO_COLOR", "1")
    assert colours(run_on_terminal(*arguments, columns=160).out) == set()


@pytest.mark.parametrize(
    "columns", [40, 80, 200, *(pytest.param(width, marks=pytest.mark.slow) for width in (60, 100))]
)
def test_a_list_fits_the_terminal_and_keeps_ids_and_states(busy, columns):
    lines = without_styles(run_on_terminal("ls", columns=columns).out).splitlines()
    assert len(lines) == 4
    assert all(len(line) <= columns for line in lines)
    assert [line.split()[0] for line in lines] == ["ID", "17", "18", "19"]
    for line, state in zip(lines[1:], ("RUNNING", "SUSPENDED", "FAILED"), strict=True):
        assert state in line
    assert lines[2].endswith("…")


def test_a_wide_terminal_shows_more_columns_than_a_narrow_one(busy):
    narrow, wide = (without_styles(run_on_terminal("ls", columns=columns).out) for columns in (60, 200))
    assert wide.split("\n")[0].split() == (
        ["ID", "NAME", "USER", "STATE", "GPUS", "PROGRESS", "CLASS", "WAITED/RAN", "NODE", "REASON"]
    )
    assert {"CLASS", "USER"}.isdisjoint(narrow.split("\n")[0].split())


@pytest.mark.parametrize("arguments", [["show", "18"], ["nodes"], ["story", "17"]], ids=" ".join)
@pytest.mark.parametrize("columns", [60, 200])
def test_details_are_folded_and_nothing_of_them_is_lost(busy, ebb, arguments, columns):
    def letters(text: str) -> list[str]:
        return sorted(text.replace(" ", "").replace("\n", ""))

    shown = without_styles(run_on_terminal(*arguments, columns=columns).out)
    assert all(len(line) <= columns for line in shown.splitlines())
    assert letters(shown) == letters(ebb(*arguments).out)


def test_progress_is_a_bar_where_there_is_room(busy):
    wide = without_styles(run_on_terminal("ls", columns=200).out).splitlines()
    assert "━ 120/1000 12%" in wide[1]
    assert "━" not in wide[2]  # nobody knows of how many
    assert "━" not in run_on_terminal("ls", columns=80).out


def waiting_for(master: ScriptedMaster) -> None:
    """One job that runs and then completes."""
    master.add(make_job(state="RUNNING", reason=MARKUP, progress=job_pb2.Progress(step=1, total=2, loss=0.125)))
    master.changes["17"] = [make_job(state="COMPLETED")]


def test_wait_shows_state_step_and_loss_on_a_terminal(busy):
    waiting_for(busy)
    result = run_on_terminal("wait", "17", columns=120, streams=("stderr",))
    line = without_styles(result.out)
    assert f"job 17 RUNNING step 1/2 50% loss 0.125 ({MARKUP})" in line
    assert f"\x1b[{GREEN}mRUNNING" in result.out
    assert "━━━━" in line
    assert line.endswith("\x1b[1A\x1b[2K")  # and nothing of it stays
    assert line.index("\x1b[?25h") < line.index("job 17")  # a wait that is killed leaves the cursor visible
    assert (result.code, result.err) == (0, "job 17 COMPLETED\n")


def test_the_line_of_a_wait_never_takes_two(busy):
    waiting_for(busy)
    busy.jobs["17"].reason = LONG
    shown = run_on_terminal("wait", "17", columns=60, streams=("stderr",)).out
    assert "…" in shown
    assert shown.count("\n") == 1  # the one that ends it


@pytest.mark.parametrize("arguments", [["wait", "17", "--json"], ["cancel", "17", "--wait", "--json"]], ids=" ".join)
def test_a_wait_for_json_draws_nothing(busy, arguments):
    waiting_for(busy)
    busy.changes["17"].append(make_job(state="CANCELLED"))
    assert "\x1b" not in run_on_terminal(*arguments).out

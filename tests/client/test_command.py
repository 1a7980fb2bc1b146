"""`ebb` itself: help, usage errors, and masters that are not there."""

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import click
import ebbtide_protos.v1
import pytest
from ebbtide_cli import main as entry_point
from ebbtide_cli.commands.sections import SectionedCommand
from ebbtide_cli.commands.verb import ebb as program
from ebbtide_cli.daemons import stop_process
from ebbtide_cli.errors import Failure
from ebbtide_cli.overview import VERBS, overview
from ebbtide_machine.process import Identity

from tests.certificates import an_authority
from tests.client.runs import modules_of, read_terminal, start_ebb
from tests.client.scripted_master import make_job

ALL_VERBS = [name for section in VERBS.values() for name in section]
TALKING = {
    "ls": [],
    "show": ["17"],
    "story": ["17"],
    "logs": ["17"],
    "suspend": ["17"],
    "resume": ["17"],
    "resize": ["17", "--gpus", "1"],
    "set": ["17", "--priority", "5"],
    "cancel": ["17"],
    "hold": ["17"],
    "release": ["17"],
    "wait": ["17"],
    "nodes": [],
    "events": [],
    "submit": ["--", "true"],
}


VERSIONED = {"ebbtide_core", "ebbtide_protos", "ebbtide_protos.version"}


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("ebbtide")}


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@cache
def modules_of_nothing() -> set[str]:
    """The modules that this Python has loaded by itself."""
    script = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def own_record(**changes) -> dict[str, object]:
    """A master.json that names this process."""
    starttime = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": os.getpid(), "starttime": starttime, "boot_id": boot_id, "host": "127.0.0.1", "port": 1} | changes


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_every_verb_has_help_with_an_example(ebb, verb):
    result = ebb(verb, "--help")
    assert result.code == 0
    assert f"  ebb {verb}" in result.out.partition("Examples:")[2]


@pytest.mark.parametrize("verb", ["submit", "tensorboard", "agent", "simulate"])
def test_help_shows_the_options_of_daily_use_and_help_all_shows_every_option_by_subject(ebb, verb):
    command = verb_named(verb)
    daily, everything = ebb(verb, "--help").out, ebb(verb, "--help-all").out
    names = {option.opts[0] for option in command.params if isinstance(option, click.Option)}
    grouped = [name for section in command.sections().values() for name in section]
    rare = {name for name in grouped if name not in command.daily()}
    assert len(grouped) == len(set(grouped))
    assert 0 < len(rare) < len(grouped)
    assert all(shows(everything, name) for name in names)
    assert {name for name in names if shows(daily, name)} == names - rare
    assert f"{len(rare)} more options are for special cases: ebb {verb} --help-all" in daily
    assert "special cases" not in everything
    assert all(f"\n{title}:\n" in everything for title in command.sections())


@pytest.mark.parametrize("verb", ["agent", "simulate"])
def test_every_option_of_a_verb_with_sections_of_its_own_has_a_place_in_one(verb):
    command = verb_named(verb)
    names = {option.opts[0] for option in command.params if isinstance(option, click.Option)}
    grouped = {name for section in command.sections().values() for name in section}
    assert names - grouped <= {"--json", "--help-all"}
    assert {name for name in names if name in command.daily()} < grouped <= names


def test_help_on_a_group_with_sections_names_its_verbs_too(ebb):
    for option in ("--help", "--help-all"):
        assert "\nCommands:\n  join " in ebb("agent", option).out


def verb_named(name: str) -> SectionedCommand:
    command = program.get_command(click.Context(program), name)
    assert isinstance(command, SectionedCommand)
    return command


def shows(help: str, option: str) -> bool:
    return re.search(rf"^  {option}[ ,\n]", help, re.MULTILINE) is not None


def test_help_names_every_verb_and_imports_none(ebb_process):
    listed = ebb_process("--help").out
    assert all(f"\n  {verb} " in listed for verb in ALL_VERBS)


@pytest.mark.parametrize("asked", [[], ["--help"], ["-h"], ["--version"]], ids=" ".join)
def test_what_needs_no_verb_loads_nothing_that_verbs_need(home, asked):
    modules = modules_of(*asked)
    assert "ebbtide_cli.overview" in modules
    heavy = {"click", "typing", "threading", "signal", "importlib.metadata", "google.protobuf", "grpc", "rich"}
    assert not modules & heavy
    assert ours(modules) <= {"ebbtide_cli", "ebbtide_cli.main", "ebbtide_cli.overview", *VERSIONED}
    assert len(modules - modules_of_nothing()) <= 45


@pytest.mark.parametrize("width", [50, 55, 63, 80, 108])
def test_the_help_is_laid_out_as_click_lays_out_that_of_a_verb(width):
    shown = overview(width)
    formatter = click.HelpFormatter(width=width)
    for title, section in VERBS.items():
        with formatter.section(title):
            formatter.write_dl(list(section.items()))
    assert formatter.getvalue() in shown + "\n"
    assert all(len(line) <= width for line in shown.splitlines())


def test_the_help_is_the_same_whether_click_was_needed_or_not(ebb_process, monkeypatch):
    for columns in ("40", "61", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        assert ebb_process("--help", "ls").out == ebb_process("--help").out


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "--json"],
        ["wait", "17"],
        ["submit", "--", "true"],
        *(
            pytest.param(other, marks=pytest.mark.slow)
            for other in (
                ["show", "17", "--json"],
                ["nodes", "--json"],
                ["story", "17", "--json"],
                ["wait", "17", "--json"],
                ["cancel", "--wait", "17"],
                ["events"],
            )
        ),
    ],
    ids=" ".join,
)
def test_what_draws_nothing_does_not_load_rich(master, arguments):
    master.add(make_job(state="CANCELLED"))
    modules = modules_of(*arguments)
    assert "ebbtide_cli.wire.call" in modules
    assert not any(name.partition(".")[0] in ("rich", "grpc", "asyncio") for name in modules)


DEFERRED = {"ast", "calendar", "dis", "ipaddress", "google.protobuf.text_format"}
"""Modules that only those load which are deferred."""
SHORT = {"ls": [], "show": ["17"], "explain": ["17"], "cancel": ["17"], "events": []}
"""Verbs that ask the master once or twice, and print what it says."""
HEAVY = {"grpc", "asyncio", "socket", "subprocess", "rich", "psutil", "importlib.metadata", "shutil", "csv", "random"}


@pytest.mark.parametrize("verb", SHORT)
def test_a_short_verb_loads_no_more_than_it_needs(master, verb):
    """Which and how many modules, and not how long they take: that holds the speed on every machine."""
    master.add(make_job())
    modules = modules_of(verb, *SHORT[verb])
    assert not modules & (HEAVY | DEFERRED | {"fractions"})
    assert not packages(modules) & {"ebbtide_agent", "ebbtide_master", "ebbtide_core"}
    assert len(ours(modules)) <= 51
    assert len(modules - modules_of_nothing()) <= 165


def test_no_message_has_one_of_googles_own_since_verbs_do_not_load_what_these_need():
    protos = sorted(Path(ebbtide_protos.v1.__path__[0]).glob("*.proto"))
    assert len(protos) > 5
    assert [proto.name for proto in protos if "google/protobuf/" in proto.read_text()] == []


def test_a_submit_loads_no_more_than_it_needs(master):
    modules = modules_of("submit", "--", "true")
    assert not modules & (HEAVY | DEFERRED | {"fractions", "unicodedata", "zlib"})
    assert not packages(modules) & {"ebbtide_agent", "ebbtide_master"}
    assert {name.split(".")[1] for name in modules if name.startswith("ebbtide_core.")} == {"model"}
    assert not modules & {"ebbtide_core.model.types", "ebbtide_core.model.asha"}, "facts and decisions, not requests"
    assert len(ours(modules)) <= 97
    assert len(modules - modules_of_nothing()) <= 209


def test_what_is_drawn_on_a_terminal_is_drawn_by_rich(master):
    master.add(make_job())
    script = "import sys; from ebbtide_cli.main import main; main(['ls']); print('rich.table' in sys.modules)"
    outer, inner = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", script], stdout=inner, stderr=inner) as process:
        os.close(inner)
        shown = b"".join(iter(lambda: read_terminal(outer), b""))
    os.close(outer)
    assert process.returncode == 0
    assert shown.endswith(b"True\r\n")


def test_up_looks_for_gpus_without_loading_the_agent(home):
    modules = modules_of("up", "--gpus", "2xNONSENSE")
    assert "ebbtide_agent.gpu.nvml" in modules
    assert "ebbtide_agent.main" not in modules


def test_ebb_alone_prints_its_help(ebb):
    assert ebb().code == 0
    assert ebb().out == ebb("--help").out


def test_version(ebb):
    assert re.fullmatch(r"ebbtide \d+\.\d+\.\d+ \((compiled|pure Python) core\)\n", ebb("--version").out)


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["ls", "--nonsense"], ["ls", "extra"], ["--nonsense"], ["x" * 100_000], ["show", "17", "--master"]],
)
def test_wrong_usage_is_one_line_and_exit_2(ebb, arguments):
    result = ebb(*arguments)
    assert result.code == 2
    assert len(result.complaint) <= 600


@pytest.mark.parametrize("verb", TALKING)
def test_without_a_master_every_verb_says_so_at_once(ebb, home, verb):
    began = time.monotonic()
    result = ebb(verb, *TALKING[verb])
    assert time.monotonic() - began < 10
    assert result.code == 3
    assert result.complaint == f"no master in EBB_HOME {home}: start one with 'ebb up'"


@pytest.mark.parametrize("change", [{"starttime": 1}, {"boot_id": "another"}, {"pid": 2**22 + 1}])
def test_a_record_of_a_dead_master_is_not_believed(ebb, home, change):
    (home / "master.json").write_text(json.dumps(own_record(**change)))
    result = ebb("ls")
    assert result.code == 3
    assert result.complaint == f"no master in EBB_HOME {home}: start one with 'ebb up'"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"host": "127.0.0.1"}', '{"host": 1, "port": "x"}'])
def test_a_damaged_record_is_one_line(ebb, home, content):
    (home / "master.json").write_text(content)
    assert ebb("ls").code == 3
    assert "start" in ebb("ls").complaint


def test_a_master_that_does_not_listen_yet_is_not_there(ebb, home):
    (home / "master.json").write_text(json.dumps(own_record()))
    assert ebb("ls").complaint == f"no master at unix:{home} (EBB_HOME {home}): start one with 'ebb up'"


def test_the_option_wins_over_the_variable_and_the_variable_over_the_record(ebb, master, home, monkeypatch):
    (home / "master.json").write_text(json.dumps(own_record()))
    assert ebb("ls").code == 0  # EBB_MASTER names the scripted one
    assert ebb("ls", "--master", "127.0.0.1:1").complaint.startswith("no master at 127.0.0.1:1 (--master)")
    monkeypatch.setenv("EBB_MASTER", "[::1]:1")
    assert ebb("ls").complaint.startswith("no master at [::1]:1 (EBB_MASTER")


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "h:" + "9" * 99])
def test_an_address_that_is_none_is_wrong_usage(ebb, address):
    result = ebb("ls", "--master", address)
    assert result.code == 2
    assert result.complaint.startswith("--master: ")


def test_a_host_that_does_not_exist_is_exit_3(ebb):
    result = ebb("ls", "--master", "a..b:1")
    assert result.code == 3
    assert result.complaint.startswith("no master at a..b:1 (--master")


def test_nothing_is_said_to_a_port_of_which_nobody_knows_whose_it_is(ebb, home):
    (home / "token").write_text("ebb_home")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = ebb("ls", "--master", address)
        assert result.code == 3
        assert result.complaint == f"nothing proves who the master at {address} is: log in there first ('ebb login')"
        said, _ = listener.accept()
        with said:
            assert said.recv(1) == b""


def test_something_else_than_a_master_is_exit_3(ebb, home, monkeypatch):
    (home / "ca.pem").write_text(an_authority().certificate.pem)
    monkeypatch.setenv("EBB_CA", str(home / "ca.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with start_ebb("ls", "--master", address) as process:
            probe, _ = listener.accept()
            probe.close()
            channel, _ = listener.accept()
            channel.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            channel.close()
            listener.close()
            _, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert err.startswith("ebb: lost the master at ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sumbit", "--", "true"], "there is no verb 'sumbit': did you mean 'submit'?"),
        (["node", "drian", "n1"], "node: there is no verb 'drian': did you mean 'drain'?"),
        (["kill", "11"], "there is no verb 'kill': did you mean 'cancel'?"),
        (["squeue"], "there is no verb 'squeue': did you mean 'ls'?"),
        (["frobnicate"], "there is no verb 'frobnicate': 'ebb --help' lists them"),
        (["ls", "--jsn"], "ls: there is no option '--jsn': did you mean '--json'?"),
        (["submit", "--gpu", "1", "--", "true"], "submit: there is no option '--gpu': did you mean '--gpus'?"),
        (["submit", "--gpu_type", "a100"], "submit: there is no option '--gpu_type': did you mean '--gpu-type'?"),
        (["node", "drain", "n1", "--fore"], "drain: there is no option '--fore': did you mean '--force'?"),
        (["--frobnicate"], "there is no option '--frobnicate'"),
        (
            ["submit", "--launch", "dpd", "--", "true"],
            "submit: Invalid value for '--launch': 'dpd' is none of single, ddp: did you mean 'ddp'?",
        ),
        (
            ["completion", "basch"],
            "completion: Invalid value for '{bash|zsh|fish}': 'basch' is none of bash, zsh, fish: did you mean 'bash'?",
        ),
    ],
)
def test_what_was_meant_by_a_misspelt_verb_or_option_is_said(ebb, words, told):
    result = ebb(*words)
    assert result.code == 2
    assert result.complaint == told


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["simulate", "fitgp"], "fitgpp"),
        (["simulate", "--policy", "fitgp"], "fitgpp"),
        (["simulate", "--policy", "priority", "--policy-option", "min_runs=60"], "min_run_s"),
        (["simulate", "--sweep", "policy=fifo,fair-shar"], "fair-share"),
        (["simulate", "--workload", "bag"], "bags"),
        (["simulate", "--speedup", "dl-sublineal"], "dl-sublinear"),
        (["reserve", "--dist", "lognorm:1,2"], "lognormal"),
        (["master", "--policy", "fair_share"], "fair-share"),
        (["ls", "--state", "runing"], "running"),
        (["submit", "--signal", "USR3", "--", "true"], "SIGUSR2"),
        (["submit", "--notify", "fialed=team", "--", "true"], "failed"),
        (["submit", "--on-log", "x=notfy", "--", "true"], "notify"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_was_meant_by_a_misspelt_value_is_said(ebb_process, words, meant):
    result = ebb_process(*words)
    assert result.code == 2
    assert result.complaint.endswith(f": did you mean {meant!r}?")


@pytest.mark.parametrize("words", [["sumbit"], ["ls", "--jsn"], ["ls", "--state", "runing"]], ids=" ".join)
def test_a_suggestion_loads_nothing_that_its_verb_does_not(home, words):
    modules = modules_of(*words)
    assert "difflib" in modules
    assert not modules & (HEAVY | DEFERRED)
    assert {name for name in modules if name.startswith("ebbtide_core")} == {
        "ebbtide_core",
        "ebbtide_core.model",
        "ebbtide_core.model.spelling",
    }


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_closed_standard_streams_are_no_error_of_ours(home, master, closed):
    """What nobody wants to read goes nowhere, and no connection takes the place of a closed stream."""
    redirections = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    entry = f"{shlex.quote(sys.executable)} -m ebbtide_cli.main"
    done = subprocess.run(["sh", "-c", f"{entry} ls {redirections}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is (1 not in closed)


def test_an_error_of_ours_is_one_line_too(ebb, monkeypatch):
    def broken(_):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("ebbtide_cli.commands.verb.run", broken)
    result = ebb("ls")
    assert result.code == 1
    assert result.complaint.startswith("internal error, please report it: ZeroDivisionError: two lines")
    monkeypatch.setenv("EBB_DEBUG", "1")
    assert "Traceback" in ebb("ls").err


def test_an_interrupt_leaves_no_traceback(ebb, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ebbtide_cli.commands.verb.run", interrupted)
    result = ebb("ls")
    assert (result.code, result.err) == (130, "")


def test_the_entry_point_is_the_documented_one():
    assert entry_point.main.__module__ == "ebbtide_cli.main"


def test_a_signal_never_reaches_a_process_that_only_has_the_same_pid():
    with subprocess.Popen(["sleep", "60"]) as child:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        itself = Identity(boot_id, child.pid, int(stat[19]))
        namesake = Identity(boot_id, child.pid, int(stat[19]) - 1)
        assert itself.is_alive()
        assert not namesake.is_alive()
        assert not namesake.signal(signal.SIGKILL)
        assert namesake.ended_within(0)
        assert not itself.ended_within(0)
        assert itself.signal(signal.SIGKILL)
        assert itself.ended_within(10)
        assert not itself.is_alive()  # though nobody has collected it yet


def test_a_daemon_that_this_account_may_not_signal_is_said_to_be_another_account_s(monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    with pytest.raises(Failure, match=rf"the master \(pid {os.getpid()}\) is another account's"):
        stop_process("the master", Identity.own())

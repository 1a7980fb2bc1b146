"""Text of others on a terminal: it is shown, and the terminal does not obey it."""

import re
from pathlib import Path

import pytest
from ebbtide_cli.logs.escaped import Escaped
from ebbtide_protos.v1 import client_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.client.conftest import home, master  # noqa: F401  fixtures
from tests.client.runs import run_on_terminal, start_ebb, without_styles
from tests.client.scripted_master import ScriptedMaster, make_job

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202eab\u2066\x08\x7fend"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""All that a terminal does something about, but for the end of a line."""


def obeyed(shown: str) -> list[str]:
    return OBEYED.findall(without_styles(shown))


def test_what_a_job_prints_is_shown_on_a_terminal_and_not_obeyed(master: ScriptedMaster) -> None:  # noqa: F811
    master.add(make_job(state="COMPLETED"))
    printed = f"{EVIL} \x1b[31mred\x1b[0m {'é'} 50%\r100%\n".encode() + b"\xff\x1b"
    master.logs = [(1, printed[:9]), (1, printed[9:])]
    shown = run_on_terminal("logs", "17").out
    assert obeyed(shown.replace("\r", "")) == []
    assert "\x1b[31mred\x1b[0m é 50%\r100%\n\\xff\\x1b" in shown
    assert r"\x1b]0;owned\x07\x1b[2J\x9b2J\u202eab\u2066" in shown
    with start_ebb("logs", "17", text=False) as process:
        assert process.communicate()[0] == printed


@pytest.mark.parametrize(
    "verb",
    [("ls",), ("show", "17"), ("explain", "17"), ("story", "17"), ("events",), ("nodes",), ("top", "--once"),
     ("usage",), ("cancel", "17"), ("wait", "17")],
    ids=lambda verb: verb[0],
)  # fmt: skip
def test_what_others_wrote_is_shown_on_a_terminal_and_not_obeyed(
    master: ScriptedMaster,  # noqa: F811
    home: Path,  # noqa: F811
    verb: tuple[str, ...],
) -> None:
    job = make_job(state="FAILED" if verb[0] in ("cancel", "wait") else "RUNNING", user=EVIL, reason=EVIL)
    job.spec.name, job.spec.workdir = EVIL, f"/{EVIL}"
    job.spec.command.append(EVIL)
    job.attempts.add(attempt=1, outcome=EVIL)
    job.allocation.add(node=EVIL)
    master.add(job)
    node = client_pb2.Node(name=EVIL, state="up", reason=EVIL, gpu_backend=EVIL)
    gpu = node.gpus.add()
    gpu.info.model = EVIL
    gpu.reading.unhealthy_reason = EVIL
    master.nodes = [node]
    master.foreign_gpu_s = {EVIL: 5.0}
    master.events = [client_pb2.Event(sequence=1, time=1.0, node=EVIL, text=EVIL)]
    said = {"reason": EVIL, "needs": EVIL, "basis": EVIL, "remaining_from": EVIL, "remaining_s": 1.0, "ahead": 1}
    master.explanation = client_pb2.Explanation(job_id="17", state=EVIL, **said)
    master.explanation.nodes.add(node=EVIL, obstacle=EVIL)
    master.usage[0].accounts.add(key=[EVIL])
    master.usage[0].foreign_gpu_s[EVIL] = 5.0
    shown = run_on_terminal(*verb)
    assert "owned" in shown.out
    assert obeyed(shown.out + shown.err) == []


@given(
    st.lists(
        st.binary(max_size=12) | st.sampled_from([b"\x1b", b"\x1b[3", b"1m", b"\xe2", b"\x80\xae", b"\x9b", b"\xc2"])
    )
)
def test_however_output_is_cut_into_pieces_nothing_of_it_is_obeyed(pieces: list[bytes]) -> None:
    escaped = Escaped()
    shown = "".join([*map(escaped.feed, pieces), escaped.end()])
    assert set(obeyed(shown)) <= {"\t", "\r"}
    whole = Escaped()
    assert shown == whole.feed(b"".join(pieces)) + whole.end()

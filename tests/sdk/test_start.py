"""What a job tells of its start: how it came to its first step, and what the next one may import early."""

import base64
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy
import pytest
from ebbtide import start

from tests.sdk.conftest import MakeJob
from tests.sdk.listening import Listener


def names(message: dict[str, object]) -> list[str]:
    return zlib.decompress(base64.b85decode(str(message["modules"]))).decode().split()


def test_on_its_way_to_the_first_step_it_says_how_far_it_is(make_job: MakeJob, listener: Listener) -> None:
    first = make_job(attempt=1)
    first.checkpoint(lambda folder: (folder / "x").write_text("x"), step=1)
    listener.all_arrived()
    job = make_job(attempt=2, EBB_RESUME_DIR=str(first.checkpoint_dir / "step-000000000001"))
    assert job.load_checkpoint() is not None
    job.report(step=2)
    job.report(step=3)
    told = [message for message in listener.all_arrived() if message["kind"] == "time"]
    assert [message["what"] for message in told] == ["job", "loaded", "stepped"]
    assert told[-1]["step"] == 2
    moments = [message["at"] for message in told]
    assert moments == sorted(moments)


def test_at_the_first_step_it_tells_once_what_it_imported_from_site_packages(
    make_job: MakeJob, listener: Listener
) -> None:
    job = make_job()
    job.report(step=1)
    job.report(step=2)
    [message] = [message for message in listener.all_arrived() if message["kind"] == "start"]
    assert message["pid"] == os.getpid()
    assert {numpy.__name__, "numpy.linalg", "ebbtide"} <= set(names(message))
    assert not {__name__, "tests", "os", "json", "ebbtide_core"} & set(names(message))


def test_another_rank_tells_nothing(make_job: MakeJob, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    make_job(RANK="1").report(step=1)
    assert [message["kind"] for message in listener.all_arrived()] == []


def test_what_it_changed_in_its_environment_is_told_but_not_what_is_ours() -> None:
    before = {"A": "1", "B": "2", "EBB_ATTEMPT": "1", "RANK": "0"}
    assert start.changed(before, {"A": "1", "C": "3", "EBB_ATTEMPT": "2", "RANK": "1"}) == {"B": "", "C": "3"}


@pytest.mark.parametrize("options", [[], ["-E"], ["-I"], ["-S"]])
def test_a_command_line_that_heeds_no_sitecustomize_tells_nothing(options: list[str]) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from ebbtide import start; print(bool(start.facts()))"
    sdk = str(Path(start.__file__).parents[1])
    done = subprocess.run([sys.executable, *options, "-c", code, sdk], capture_output=True, text=True, check=True)
    assert done.stdout == f"{not options}\n"

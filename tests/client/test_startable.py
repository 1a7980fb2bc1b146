"""`ebb submit` and `ebb run`: what could only fail when it starts is refused or warned of before."""

import socket
from pathlib import Path

import pytest
from ebbtide_protos.v1 import client_pb2


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a few files."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "notes").write_text("nothing that runs\n")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    (folder / "train.sh").write_text("python train.py\n")
    (folder / "data").mkdir()
    return folder


def local(master) -> None:
    """All nodes are this machine."""
    master.nodes = [client_pb2.Node(name="n1", hostname=socket.gethostname())]


WRONG = {
    "train.py": "submit: train.py: is a file, and no program on PATH: did you mean '-- python train.py'?",
    "-- train.py": "submit: train.py: is a file, and no program on PATH: did you mean '-- python train.py'?",
    "-- ./train.py": "submit: ./train.py: may not be executed, it lacks the execute bit: "
    "did you mean '-- python ./train.py'?",
    "-- ./notes": "submit: ./notes: may not be executed, it lacks the execute bit: did you mean 'chmod +x ./notes'?",
    "-- tool": "submit: tool: is a file, and no program on PATH: did you mean './tool'?",
    "-- ./data": "submit: ./data: is a directory, and no program",
    "--param lr= -- python train.py --lr {lr}": "submit: Invalid value for '--param': "
    "lr has no value: write lr=VALUE,VALUE",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_here_and_cannot_run_is_refused_with_what_was_meant(ebb, master, line):
    result = ebb("submit", *line.split())
    assert (result.code, result.complaint) == (2, WRONG[line])
    assert not master.sent("Submit")


MISSING = {
    "-- python trian.py": "trian.py: there is no such file in {here}: did you mean 'train.py'?",
    "-- python -W ignore sub/x.py": "sub/x.py: there is no such file in {here}",
    "-- python -O sub/x.py train.py": "sub/x.py: there is no such file in {here}",
    "-- bash -euo pipefail trian.sh": "trian.sh: there is no such file in {here}: did you mean 'train.sh'?",
    "-- bash -login -noprofile trian.sh": "trian.sh: there is no such file in {here}: did you mean 'train.sh'?",
    "-- torchrun --nproc_per_node=2 tarin.py": "tarin.py: there is no such file in {here}: did you mean 'train.py'?",
    "queue.sh": "queue.sh: there is no such file in {here}",
    "-- ./tol": "./tol: there is no such file in {here}: did you mean './tool'?",
    "-- nosuchprogram": "nosuchprogram: there is no such program on PATH",
    "--workdir /nowhere/at/all -- true": "--workdir: there is no directory /nowhere/at/all",
    "--venv /nowhere/at/all -- python train.py": "--venv: there is no directory /nowhere/at/all",
    "--conda /nowhere/at/all -- python train.py": "--conda: there is no directory /nowhere/at/all",
    "--venv data -- python train.py": "--venv: {here}/data has no bin/python, so it is no Python environment",
    "--venv data train.sh": "--venv: {here}/data has no bin/python, so it is no Python environment",
}


@pytest.mark.parametrize("line", MISSING)
def test_what_is_missing_is_a_warning_where_a_node_may_have_it(ebb, master, here, line):
    result = ebb("submit", *line.split())
    assert result.code == 0
    told = MISSING[line].format(here=here)
    assert f"warning: {told}: the node where it runs has to have it\n" in result.err
    assert master.sent("Submit")


@pytest.mark.parametrize("line", [line for line in MISSING if "torchrun" not in line])
def test_what_is_missing_is_refused_if_every_node_is_this_machine(ebb, master, here, line):
    local(master)
    result = ebb("submit", *line.split())
    assert (result.code, result.complaint) == (2, f"submit: {MISSING[line].format(here=here)}")
    dry = ebb("submit", "--dry-run", *line.split())
    assert (dry.code, dry.complaint) == (2, result.complaint)
    assert not master.sent("Submit")
    assert ebb("run", *line.split()).code == 2


def test_what_is_missing_may_be_made_by_what_comes_before(ebb, master):
    local(master)
    for option in ("--hold", "--begin=23:59", "--after=ok:12"):
        assert ebb("submit", option, "--", "python", "made_later.py").code == 0


def test_an_environment_with_a_python_is_taken_and_so_is_one_that_may_be_made_before(ebb, master, here):
    local(master)
    (here / "env" / "bin").mkdir(parents=True)
    (here / "env" / "bin" / "python").symlink_to("/bin/true")
    result = ebb("submit", "--venv", "env", "--", "python", "train.py")
    assert (result.code, result.err) == (0, "")
    assert ebb("submit", "--hold", "--venv", "made_later", "--", "python", "train.py").code == 0


@pytest.mark.parametrize(
    "line",
    [
        "-- python train.py trian.py",
        "-- python -u -m package.train x.py",
        "-- python -c pass",
        "-- bash -lc nothing.sh",
        "-- bash -o pipefail notes",
        "-- bash -euo pipefail notes",
        "-- bash -euo pipefail -c ls",
        "-- bash +O extglob -eO nullglob notes",
        "-- bash -oue pipefail notes",
        "-- bash -login notes more",
        "-- bash -noprofile notes a b",
        "-- bash -rcfile nothing -posix notes a",
        "-- bash -oO pipefail extglob notes",
        "-- python {script}",
        "-- env python x.py",
        "-- ./tool",
        "--param bs=1,2 -- python train.py --bs {bs}",
    ],
)
def test_nothing_is_said_of_what_can_run_or_may(ebb, master, line):
    local(master)
    result = ebb("submit", *line.split())
    assert (result.code, [text for text in result.err.splitlines() if "there is no" in text]) == (0, [])


def test_other_machines_or_no_answer_make_it_a_warning(ebb, master):
    local(master)
    master.nodes.append(client_pb2.Node(name="n2", hostname="another-machine"))
    assert ebb("submit", "--", "python", "nowhere.py").code == 0

"""Scripts that are submitted as files: their `#EBB` lines, what wins over them, and what is sent of them."""

import zlib
from pathlib import Path

import pytest
from ebbtide_protos.v1 import client_pb2, job_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.scripted_master import make_job, share
from tests.drawing import share_of


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a script into the current directory."""
    monkeypatch.chdir(tmp_path)

    def script(*lines: str, name: str = "train.sh") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return script


def sent_spec(master) -> job_pb2.JobSpec:
    return master.sent("Submit")[-1].spec


def test_a_script_is_sent_as_it_is_now_and_called_as_it_was_called(ebb, master, write):
    path = write("#!/bin/bash", "echo $1")
    assert ebb("submit", "train.sh", "--gpus", "9").code == 0
    spec = sent_spec(master)
    assert (list(spec.command), spec.name) == (["train.sh", "--gpus", "9"], "train.sh")
    assert spec.script == path.read_text()
    assert (spec.gpus_max, spec.slurm) == (share(1), False)


def test_behind_two_dashes_a_script_is_a_command_like_any_other(ebb, master, write):
    write("#!/bin/bash", "#EBB --gpus 4").chmod(0o755)
    assert ebb("submit", "--name", "n", "--", "./train.sh").code == 0
    assert (sent_spec(master).script, sent_spec(master).gpus_max) == ("", share(1))


@pytest.mark.parametrize("content", [b"\x7fELF#!", b"import torch\n", b""])
def test_a_file_that_is_no_script_is_a_command_like_any_other(ebb, master, write, content):
    path = write(name="prog")
    path.write_bytes(content)
    path.chmod(0o755)
    assert ebb("submit", "./prog").code == 0
    assert sent_spec(master).script == ""


def test_options_stand_in_the_head_of_the_script_and_nowhere_else(ebb, master, write):
    write(
        "#!/usr/bin/env bash",
        "# a comment, and an empty line",
        "",
        "#EBB --gpus 2 --name 'two words'  # because",
        "##EBB --gpus 9",
        "#EBB",
        "#EBB\t--env A=1 --env B=2",
        "#EBBTIDE --gpus 9",
        "import torch",
        "#EBB --gpus 8",
    )
    assert ebb("submit", "train.sh").code == 0
    spec = sent_spec(master)
    assert (spec.gpus_max, spec.name) == (share(2), "two words")
    assert (spec.env["A"], spec.env["B"]) == ("1", "2")


@pytest.mark.parametrize(
    ("line", "words"),
    [("#!/usr/bin/env python", ["python"]), ("#!/usr/bin/python3 -u", ["/usr/bin/python3", "-u"])],
)
def test_a_script_that_is_no_shell_script_runs_from_where_it_is(ebb, master, write, line, words):
    path = write(line, "#EBB --gpus 2", "import model", name="train.py")
    assert ebb("submit", "train.py", "--lr", "1").code == 0
    spec = sent_spec(master)
    assert list(spec.command) == [*words, str(path), "--lr", "1"]
    assert (spec.script, spec.gpus_max, spec.name) == ("", share(2), "train.py")
    assert list(spec.scripts) == [str(path)]


@pytest.mark.parametrize(
    ("typed", "options", "command"),
    [
        ("train.py", (), "./train.py"),
        ("sub/../sub/train.py", (), "./sub/train.py"),
        ("{here}/sub/train.py", (), "./sub/train.py"),
        ("{here}/sub/train.py", ("--workdir", "sub"), "./train.py"),
        ("{here}/train.py", ("--workdir", "link"), "./train.py"),
        ("train.py", ("--workdir", "sub"), "{here}/train.py"),
        ("left/train.py", (), "{here}/left/train.py"),
        ("to_left.py", (), "{here}/to_left.py"),
        ("to_sub.py", (), "./to_sub.py"),
        ("sub/out.py", ("--workdir", "sub"), "{here}/sub/out.py"),
    ],
)
def test_with_a_snapshot_such_a_script_runs_from_there_if_it_lies_in_it(
    ebb, master, write, tmp_path, typed, options, command
):
    """The job ran the script of the directory that it was submitted from, which no other node has."""
    for folder in ("sub", "left"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".ebbignore").write_text("left\n")
    links = {"link": tmp_path, "to_left.py": "left/train.py", "to_sub.py": "sub/train.py", "sub/out.py": "../train.py"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    for name in ("train.py", "sub/train.py", "left/train.py"):
        write("#!/usr/bin/env python3", "import model", name=name)
    assert ebb("submit", "--snapshot", *options, typed.format(here=tmp_path), "--lr", "1").code == 0
    spec = sent_spec(master)
    assert list(spec.command) == ["python3", command.format(here=tmp_path), "--lr", "1"]
    assert (spec.HasField("snapshot"), spec.name, list(spec.scripts)) == (True, Path(typed).name, [spec.command[1]])


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/env bash", "#!/bin/bash -l", "#!/usr/bin/env -S zsh -f", "# no such line"]
)
def test_a_copy_of_a_shell_script_runs(ebb, master, write, line):
    write(line, "echo")
    assert ebb("submit", "train.sh").code == 0
    assert sent_spec(master).script == f"{line}\necho\n"


def test_a_script_for_slurm_is_not_started_once_for_each_gpu(ebb, master, write):
    write("#!/bin/sh", "#SBATCH --gpus=2")
    assert "starts its tasks itself" in ebb("submit", "--launch", "ddp", "train.sh").complaint


def test_the_command_line_wins_over_the_script(ebb, master, write):
    write("#!/bin/bash", "#EBB --gpus 2 --priority 7 --env A=1 --env B=1 --retries 3")
    assert ebb("submit", "--gpus", "4", "--env", "B=2", "train.sh").code == 0
    spec = sent_spec(master)
    assert (spec.gpus_max, spec.priority, spec.retries) == (share(4), 7, 3)
    assert (spec.env["A"], spec.env["B"]) == ("1", "2")


REPEATABLE = "--on a --on=b --exclude c --gpu-type a100 --tolerate t --require-path /p --after 12"


def needs(spec: job_pb2.JobSpec) -> list[list[str]]:
    """What the repeatable options ask for."""
    found = spec.needs
    asked = (found.on, found.exclude, found.gpu_types, found.tolerate, found.require_paths)
    return [*(sorted(values) for values in asked), [one.job_id for one in spec.after]]


def test_a_typed_option_that_may_be_repeated_replaces_all_that_the_script_has_of_it(ebb, master, write):
    write("#!/bin/bash", f"#EBB {REPEATABLE}", "#EBB --on d --env A=1 --env B=1")
    assert ebb("submit", "train.sh").code == 0
    assert needs(sent_spec(master)) == [["a", "b", "d"], ["c"], ["a100"], ["t"], ["/p"], ["12"]]
    assert ebb("submit", "--on", "x", "--on", "y", "--after", "13", "--env", "B=2", "train.sh").code == 0
    assert needs(sent_spec(master)) == [["x", "y"], ["c"], ["a100"], ["t"], ["/p"], ["13"]]
    assert (sent_spec(master).env["A"], sent_spec(master).env["B"]) == ("1", "2")


def test_our_own_lines_replace_what_may_be_repeated_in_those_for_slurm(ebb, master, write):
    write("#!/bin/bash", "#SBATCH -w ws1,ws2 --gres=gpu:a100:1", "#EBB --on ws3", "#EBB --on ws4")
    assert ebb("submit", "train.sh").code == 0
    assert needs(sent_spec(master))[:3] == [["ws3", "ws4"], [], ["a100"]]
    assert ebb("submit", "--on", "ws5", "--gpu-type", "h100", "train.sh").code == 0
    assert needs(sent_spec(master))[:3] == [["ws5"], [], ["h100"]]


def test_typed_params_replace_those_of_the_script(ebb, master, write):
    write("#!/bin/bash", "#EBB --param lr=1,2 --param bs=3,4", "echo $EBB_PARAM_LR $EBB_PARAM_BS")
    assert ebb("submit", "--param", "lr=5", "train.sh").code == 0
    assert [dict(task.params) for task in master.sent("Submit")[-1].tasks] == [{"lr": "5"}]


def test_the_command_line_takes_back_even_what_it_could_not_stand_beside(ebb, master, write):
    write("#!/bin/bash", "#EBB --cpu-only")
    assert ebb("submit", "--gpus", "2", "train.sh").code == 0
    assert sent_spec(master).gpus_max == share(2)
    write("#!/bin/bash", "#EBB --gpus 2", "#EBB --gpus=3 --retries 1")
    assert ebb("submit", "--cpu-only", "train.sh").code == 0
    assert (sent_spec(master).gpus_max, sent_spec(master).retries) == (share(0), 1)


@pytest.mark.parametrize(
    "line",
    [
        "#SBATCH --gres=gpu:a100:1",
        "#EBB --gpu-type a100 --gpu-type=h100",
        "#EBB --gpu-mem 8GiB",
        "#EBB --gpu-total-mem=40GiB --compute-capability 8.0",
        "#EBB --gpus 2 --mixed-gpus",
    ],
)
def test_a_job_without_gpus_needs_none_of_the_kind_that_the_script_asks_for(ebb, master, write, line):
    write("#!/bin/bash", line, "#EBB --retries 1")
    assert ebb("submit", "--cpu-only", "train.sh").code == 0
    spec = sent_spec(master)
    assert (spec.gpus_max, spec.gpu_mem_bytes, spec.HasField("needs"), spec.retries) == (share(0), 0, False, 1)


def test_a_comment_begins_at_the_beginning_of_a_word_as_in_a_shell(ebb, master, write):
    """The rest of the line was dropped without a word."""
    write("#!/bin/bash", "#EBB --name a#1 --env 'A=# x' --env B=\\ #2 --gpus 4 #--gpus 5 'x")
    assert ebb("submit", "train.sh").code == 0
    spec = sent_spec(master)
    assert (spec.name, spec.env["A"], spec.env["B"], spec.gpus_max) == ("a#1", "# x", " #2", share(4))


BAD_LINES = [
    ("#EBB --gpus 0", "train.sh:2: Invalid value for '--gpus': '0' is no GPU at all"),
    ("#EBB --nonsense", "train.sh:2: there is no option '--nonsense'"),
    ("#EBB --gpu 2", "train.sh:2: there is no option '--gpu': did you mean '--gpus'?"),
    ("#EBB --name", "train.sh:2: Option '--name' requires an argument"),
    ("#EBB --gpus 2 4", "train.sh:2: '4' is no option"),
    ("#EBB --name 'a", "train.sh:2: no closing quotation"),
]


@pytest.mark.parametrize(("line", "named"), BAD_LINES)
def test_a_mistake_in_a_line_names_file_and_line(ebb, master, write, line, named):
    write("#!/bin/bash", line)
    result = ebb("submit", "train.sh")
    assert (result.code, master.sent("Submit")) == (2, [])
    assert result.complaint.startswith(named)


@pytest.mark.parametrize("name", ["train.sh", "train"])
def test_a_byte_order_mark_hides_no_options_and_is_not_sent(ebb, master, write, name):
    write(name=name).write_bytes(b"\xef\xbb\xbf#!/bin/bash\n#EBB --priority 7\n#SBATCH --gpus=2\necho\n")
    assert ebb("submit", name).code == 0
    spec = sent_spec(master)
    assert (spec.priority, spec.gpus_max) == (7, share(2))
    assert spec.script == "#!/bin/bash\n#EBB --priority 7\n#SBATCH --gpus=2\necho\n"


def test_a_script_that_cannot_be_sent_says_why(ebb, master, write):
    write(name="big.sh").write_text("#!/bin/bash\n" + "#" * 2**17)
    write(name="latin.sh").write_bytes(b"#!/bin/bash\necho \xe4\n")
    write(name="dos.sh").write_bytes(b"#!/bin/bash\r\necho\r\n")
    assert "big.sh: over the limit of 131072 bytes" in ebb("submit", "big.sh").complaint
    assert "latin.sh: is not UTF-8 text" in ebb("submit", "latin.sh").complaint
    assert "dos.sh: has DOS line ends" in ebb("submit", "dos.sh").complaint
    assert master.sent("Submit") == []


def test_scripts_of_a_command_are_remembered_so_that_an_edit_is_noticed(ebb, master, write, tmp_path):
    write("import torch", name="train.py")
    (tmp_path / "dir.py").mkdir()
    ebb("submit", "--", "python", "train.py", "gone.py", "dir.py", "--data", "x.bin")
    digest = zlib.crc32(b"import torch\n")
    assert dict(sent_spec(master).scripts) == {"train.py": f"{digest:08x}-13"}
    write("#!/bin/sh")
    ebb("submit", "train.sh", "train.py")
    assert dict(sent_spec(master).scripts) == {}


def test_an_edit_before_the_start_is_said_by_submit_and_show(ebb, master):
    attempt = client_pb2.AttemptSummary(attempt=1, placed_time=1.0, edited=["train.py"])
    master.add(make_job(state="COMPLETED", exit_code=0, attempts=[attempt]))
    result = ebb("submit", "--wait", "--", "true")
    assert (result.code, result.complaint) == (
        0,
        "warning: train.py was edited after the submit, before a start",
    )
    assert ebb("show", "17", "--json").json["attempts"][0]["edited"] == ["train.py"]
    assert "train.py" in ebb("show", "17").out.partition("edited since")[2]


def test_a_script_is_run_while_one_waits_with_its_options_and_templates(ebb, master, write, home):
    (home / "templates").mkdir()
    (home / "templates/big.toml").write_text("[options]\ngpus = 2\n")
    path = write("#!/bin/sh", "#EBB --template big --priority 7")
    master.add(make_job(state="COMPLETED", exit_code=0))
    assert ebb("run", "train.sh").code == 0
    spec = sent_spec(master)
    assert (spec.script, spec.gpus_max, spec.priority) == (path.read_text(), share(2), 7)


def test_an_array_is_nothing_to_sit_before(ebb, master):
    for options in (["--array", "0-3"], ["--param", "a=1"], ["--max-slots", "2"]):
        assert ebb("run", *options, "--", "true").complaint == f"{options[0]}: an array is for 'ebb submit'"
    assert master.sent("Submit") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share_of(40), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["#EBB", "#SBATCH", "#"]), st.text(max_size=30)), max_size=4))
def test_no_head_of_a_script_makes_a_traceback(ebb, master, write, lines):
    path = write("#!/bin/sh")
    text = "\n".join(["#!/bin/sh", *(f"{mark} {words}" for mark, words in lines)])
    path.write_text(text, encoding="utf-8", errors="replace")
    result = ebb("submit", "--dry-run", "train.sh")
    assert result.code in (0, 2)
    assert "internal error" not in result.err

"""What is borrowed, as its file says it, and what Slurm's answers mean."""

import fcntl
import json
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.supplying.files import SupplyFolder, facts_of
from ebbtide_cli.supplying.hook import Hook
from ebbtide_cli.supplying.lender import LenderAwayError, LenderRefusedError
from ebbtide_cli.supplying.settings import FIELDS, FILE, HookCommands, SlurmOptions, names, read
from ebbtide_cli.supplying.slurm import Slurm
from ebbtide_core.model.constraints import Needs, suits
from ebbtide_core.supply.supply import LenderFacts, LenderState, LoanPhase, NodeSupply, SupplySettings
from ebbtide_master.convert import registration_from_hello
from ebbtide_protos.v1 import agent_pb2

LEAST = 'max_nodes = 4\ngpus_per_node = 2\ntime = "8h"\n'


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def write(home: Home, body: str, name: str = "hpc") -> None:
    (home.root / "supply.toml").write_text(f"[supply.{name}]\n{body}")


def test_a_supply_needs_little(home: Home) -> None:
    write(home, LEAST)
    found = read(home.root / FILE, "hpc")
    assert (found.settings, found.gpus, found.time_s) == (SupplySettings(4), 2, 28800.0)
    assert (found.pool, found.after_s, found.idle_s, found.lender) == ("default", 30.0, 300.0, SlurmOptions(()))
    assert names(home.root / FILE) == ["hpc"]


def test_every_field_is_known(home: Home) -> None:
    whole = LEAST + "\n".join(
        [
            'kind = "slurm"', 'pool = "hpc"', "min_nodes = 1", "backlog = 3", 'gpu_type = "A100"', 'gpu_mem = "40GiB"',
            "cpus = 16", 'mem = "64GiB"', 'after = "1m"', 'idle = "10m"', 'notice = "90s"', 'home = "/tmp/x"',
            'checkpoint_root = "/s"', 'sbatch = ["--partition=gpu"]', 'agent = ["--mps", "off"]',
            "assumed = { price = 2 }",
        ]
    )  # fmt: skip
    write(home, whole)
    found = read(home.root / FILE, "hpc")
    assert (found.cpus, found.mem_bytes, found.gpu_mem_bytes) == (16.0, 64 << 30, 40 << 30)
    assert (found.checkpoint_root, found.home, found.notice_s) == (Path("/s"), Path("/tmp/x"), 90.0)
    of_hooks = {"grow", "shrink", "list"}
    of_pods = {"image", "namespace", "context", "gpu_resource", "labels", "annotations", "pod", "container"}
    assert {line.split(" = ")[0] for line in whole.splitlines()} == {*FIELDS} - of_hooks - of_pods
    write(home, LEAST + 'kind = "hook"\ngrow = ["g", "1"]\nshrink = ["s"]\nlist = ["l"]\n')
    assert read(home.root / FILE, "hpc").lender == HookCommands(("g", "1"), ("s",), ("l",))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('gpus_per_node = 2\ntime = "8h"', "max_nodes: is missing"),
        (LEAST + "min_nodes = 9", "min_nodes: is not between 0 and max_nodes, 4"),
        (LEAST + "backlog = 0", "backlog: is not at least 1"),
        (LEAST + "backlog = true", "backlog: True is not of type int"),
        (LEAST + 'kind = "pbs"', "kind: 'pbs' is none of slurm, hook and kubernetes"),
        (LEAST + 'kind = "hook"', "grow: is missing"),
        (LEAST + 'kind = "hook"\ngrow = []', "grow: is empty"),
        (LEAST + 'grow = ["x"]', "grow: there is no such field"),
        (LEAST + 'idle = "soon"', "idle: 'soon' is not a duration"),
        (LEAST + "sbatch = [1]", "sbatch: is not a list of texts"),
        (LEAST + "idel = 1", "idel: there is no such field: did you mean 'idle'?"),
        ('max_nodes = 1\ngpus_per_node = 99\ntime = "1h"', "gpus_per_node: is not between 0 and 64"),
    ],
)
def test_a_mistake_names_the_file_and_the_field(home: Home, body: str, says: str) -> None:
    write(home, body)
    with pytest.raises(Failure) as failure:
        read(home.root / FILE, "hpc")
    assert f"{home.root}/supply.toml: [supply.hpc] {says}" in str(failure.value)
    assert failure.value.code == USAGE


def test_a_supply_that_is_not_there_and_a_name_that_cannot_be(home: Home) -> None:
    with pytest.raises(Failure, match=r"there is no .*supply\.toml"):
        read(home.root / FILE, "hpc")
    write(home, LEAST)
    with pytest.raises(Failure, match=r"has no \[supply.x\]; there are: hpc"):
        read(home.root / FILE, "x")
    write(home, LEAST, '"../x"')
    with pytest.raises(Failure, match="a name has up to 32 letters"):
        names(home.root / FILE)
    (home.root / "supply.toml").write_text("supply = 1")
    with pytest.raises(Failure, match="something else than tables"):
        names(home.root / FILE)


def test_a_borrowed_node_is_as_the_file_says_until_one_is_known(home: Home, tmp_path) -> None:
    write(home, LEAST + f'gpu_type = "A100"\ncheckpoint_root = "{tmp_path}"\n')
    (tmp_path / ".ebbtide-root").write_text("shared-1\n")
    found = read(home.root / FILE, "hpc")
    like = found.like(None, 1000.0)
    assert ([gpu.model for gpu in like.gpus], like.checkpoint_root_id) == (["A100", "A100"], "shared-1")
    assert (like.loan.until, like.labels["supply"]) == (1000.0 + 28800.0, "hpc")
    known = agent_pb2.Hello(gpus=[agent_pb2.GpuInfo(uuid="G", model="H100")], cpus=7, checkpoint_root_id="r")
    like = found.like(known, 1000.0)
    assert ([gpu.model for gpu in like.gpus], like.cpus, like.checkpoint_root_id) == (["H100"], 7, "r")


def test_a_borrowed_node_has_the_labels_and_taints_of_its_agent_and_any_compute_capability(home: Home) -> None:
    words = '["--label", "disk=nvme", "--mps", "off", "--taint=gold", "--label=zone=a", "--taint", "slow"]'
    write(home, LEAST + f"agent = {words}\n")
    like = registration_from_hello(read(home.root / FILE, "hpc").like(None, 1000.0))
    assert (like.labels, like.taints) == ({"disk": "nvme", "zone": "a", "supply": "hpc"}, ("gold", "slow"))
    assert all(suits(Needs(compute_capability="9.0"), gpu) for gpu in like.gpus)


def test_a_borrowed_pod_is_expected_to_offer_what_its_pilot_leaves_to_jobs(home: Home) -> None:
    pods = LEAST + 'kind = "kubernetes"\nimage = "x"\ncpus = 8\ncheckpoint_root = "/c"\n'
    pods += 'container = { volumeMounts = [{ name = "c", mountPath = "/c" }] }\n'
    for mem, offered in (("64GiB", (64 << 30) - (512 << 20)), ("100MiB", 50 << 20)):
        write(home, f'{pods}mem = "{mem}"\n')
        assert read(home.root / FILE, "hpc").like(None, 1000.0).mem_bytes == offered


@pytest.mark.parametrize(
    ("more", "changes"),
    [
        ("", False),
        ('idle = "1h"\nafter = "1m"\n', False),
        ('sbatch = ["--partition=big"]\n', True),
        ("cpus = 3\n", True),
    ],
)
def test_the_mark_of_a_supply_changes_with_what_a_node_is_like_only(home: Home, more: str, changes: bool) -> None:
    write(home, LEAST)
    before = read(home.root / FILE, "hpc").mark
    write(home, LEAST + more)
    assert (read(home.root / FILE, "hpc").mark != before) == changes


def test_loans_that_an_older_supplier_saved_are_found_again(home: Home) -> None:
    folder = SupplyFolder.of(home, "hpc")
    folder.make()
    loan = {"id": "hpc-1", "asked_at": 1.0, "since": 2.0, "phase": "up", "of_times_to_come": 1}
    (folder.path / "loans.json").write_text(json.dumps({"loans": [loan], "number": 1}))
    supply = folder.load("hpc", SupplySettings(4))
    supply.describe("a mark")
    assert (supply.newest(["hpc-1"]), supply.known) == (supply.loans["hpc-1"], {})
    supply.describe("another")
    assert supply.newest(["hpc-1"]) is None


def test_loans_are_found_again_as_they_were_saved(home: Home) -> None:
    folder = SupplyFolder.of(home, "hpc")
    folder.make()
    supply = folder.load("hpc", SupplySettings(4))
    assert not supply.loans
    list(supply.decide(1, 1000.0))
    supply.loans["hpc-1"].enter(LoanPhase.UP, 1001.0)
    supply.loans["hpc-1"].listed = True
    supply.paused, supply.trouble = True, "no"
    supply.describe("a mark")
    supply.known = {"cpus": 8.0}
    folder.save(facts_of(supply))
    assert folder.load("hpc", SupplySettings(4)) == NodeSupply(
        "hpc",
        SupplySettings(4),
        supply.loans,
        paused=True,
        number=1,
        trouble="no",
        asked_at=1000.0,
        described="a mark",
        known={"cpus": 8.0},
    )
    (folder.path / "loans.json").write_text("{")
    with pytest.raises(Failure, match=r"loans\.json is not JSON"):
        folder.load("hpc", SupplySettings(4))


def test_wishes_are_there_in_order_until_they_are_removed(home: Home) -> None:
    folder = SupplyFolder.of(home, "hpc")
    folder.wish(do="add", nodes=2)
    folder.wish(do="pause")
    (folder.path / "wishes" / "broken.json").write_text("{")
    assert [wish and wish["do"] for wish in folder.wishes().values()] == ["add", "pause", None]
    folder.remove_wishes(folder.wishes())
    assert folder.wishes() == {}


def test_only_one_supplier_serves_a_supply(home: Home) -> None:
    folder = SupplyFolder.of(home, "hpc")
    assert not folder.is_served()
    folder.make()
    with folder.locked():
        assert folder.is_served()
        with pytest.raises(Failure, match="another supplier of hpc runs"), folder.locked():
            pass
    assert not folder.is_served()


def test_a_supplier_starts_though_somebody_looks_just_then_whether_one_runs(home: Home, monkeypatch) -> None:
    monkeypatch.setattr("ebbtide_machine.lock.LOOKED_AT_S", 60.0)
    folder = SupplyFolder.of(home, "hpc")
    folder.make()
    looks = (folder.path / "lock").open("a")
    fcntl.flock(looks, fcntl.LOCK_SH)
    threading.Timer(0.1, looks.close).start()
    with folder.locked():
        assert folder.is_served()


# --- Slurm ---


@pytest.fixture
def slurm(home: Home, tmp_path, monkeypatch) -> Slurm:
    write(home, LEAST + 'sbatch = ["--partition=gpu nodes"]\n')
    bin = tmp_path / "bin"
    bin.mkdir()
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    folder = SupplyFolder.of(home, "hpc")
    folder.make()
    borrowing = read(home.root / FILE, "hpc")
    return Slurm(borrowing, borrowing.lender, folder.path)


def program(tmp_path: Path, name: str, body: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_the_script_of_a_loan_is_a_script_and_has_no_secret(slurm: Slurm, tmp_path) -> None:
    secret = tmp_path / "hpc-1.invitation"
    secret.write_text("ebbi_secret")
    script = slurm.script("hpc-1", secret, kept=False)
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).returncode == 0
    assert "ebbi_secret" not in script
    assert "#SBATCH '--partition=gpu nodes'" in script
    assert "#SBATCH --gres=gpu:2\n" in script
    assert "#SBATCH --time=480\n" in script
    last = script.splitlines()[-1]
    assert last.startswith("exec srun --overlap --nodes=1 --ntasks=1 ")
    assert " agent pilot --name hpc-1 --pool default " in last
    assert "--idle 300s" in last
    assert "--idle" not in slurm.script("hpc-1", secret, kept=True)


def test_what_slurm_says_of_loans(slurm: Slurm, tmp_path) -> None:
    program(tmp_path, "scontrol", "echo 'ProctrackType           = proctrack/cgroup'")
    lines = [
        "ebb-hpc-1|11|PENDING|N/A|Priority",
        "ebb-hpc-2|12|PENDING|N/A|PartitionTimeLimit",
        "ebb-hpc-3|13|RUNNING|2030-01-01T00:00:00|None",
        "ebb-hpc-4|14|COMPLETING|2030-01-01T00:00:00|None",
        "ebb-hpc-5|15|PREEMPTED|2030-01-01T00:00:00|None",
        "ebb-hpc-6|16|NODE_FAIL|2030-01-01T00:00:00|NodeDown",
        "ebb-hpc-x|17|RUNNING|N/A|None",
        "ebb-other-1|18|RUNNING|N/A|None",
        "mine|19|RUNNING|N/A|None",
    ]
    program(tmp_path, "squeue", "cat <<'E'\n" + "\n".join(lines) + "\nE")
    end = time.mktime((2030, 1, 1, 0, 0, 0, 0, 0, -1))
    assert slurm.look() == {
        "hpc-1": LenderFacts(LenderState.WAITS, "11", "Priority"),
        "hpc-2": LenderFacts(LenderState.NEVER_STARTS, "12", "PartitionTimeLimit"),
        "hpc-3": LenderFacts(LenderState.RUNS, "13", until=end),
        "hpc-4": LenderFacts(LenderState.RUNS, "14", until=end),
        "hpc-5": LenderFacts(LenderState.OVER, "15", "PREEMPTED", end, True),
        "hpc-6": LenderFacts(LenderState.OVER, "16", "NODE_FAIL (NodeDown)", end, False),
    }


@pytest.mark.parametrize("form", ["relative", "%s", "%d.%m. %H:%M"])
def test_the_end_of_a_loan_is_read_whatever_format_the_user_likes(slurm: Slurm, tmp_path, monkeypatch, form) -> None:
    program(
        tmp_path,
        "squeue",
        'case "${SLURM_TIME_FORMAT:-standard}" in\n'
        "    standard) end=2030-01-01T00:00:00 ;;\n"
        "    relative) end='1 Jan 00:00' ;;\n"
        '    *) end=$(date -d 2030-01-01T00:00:00 "+$SLURM_TIME_FORMAT") ;;\n'
        "esac\n"
        'echo "ebb-hpc-1|11|RUNNING|$end|None"',
    )
    monkeypatch.setenv("SLURM_TIME_FORMAT", form)
    end = time.mktime((2030, 1, 1, 0, 0, 0, 0, 0, -1))
    assert slurm.look() == {"hpc-1": LenderFacts(LenderState.RUNS, "11", until=end)}


def test_the_end_of_a_loan_in_the_hour_that_comes_twice_is_the_one_that_is_meant(
    slurm: Slurm, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    for end in (1792888200, 1792891800):  # 2:30, before and after the clocks are set back
        program(
            tmp_path,
            "squeue",
            'form=$SLURM_TIME_FORMAT; [ "$form" != standard ] || form=%FT%T\n'
            f'echo "ebb-hpc-1|11|RUNNING|$(date -d @{end} "+$form")|None"',
        )
        assert slurm.look() == {"hpc-1": LenderFacts(LenderState.RUNS, "11", until=float(end))}


@pytest.mark.parametrize("tracking", ["proctrack/linuxproc", "proctrack/pgid", ""])
def test_only_tracking_by_cgroup_proves_a_death(slurm: Slurm, tmp_path, tracking: str) -> None:
    program(tmp_path, "scontrol", f"echo 'ProctrackType           = {tracking}'")
    assert not slurm.proves_death()


def test_a_slurm_that_does_not_answer_is_away(slurm: Slurm, tmp_path, monkeypatch) -> None:
    with pytest.raises(LenderAwayError, match="squeue"):
        slurm.look()
    program(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(LenderAwayError, match="Unable to contact"):
        slurm.look()
    monkeypatch.setattr("ebbtide_cli.supplying.slurm.ANSWER_S", 0.1)
    program(tmp_path, "squeue", "exec sleep 60")
    with pytest.raises(LenderAwayError, match="timed out"):
        slurm.look()


def test_a_loan_is_asked_for_or_refused(slurm: Slurm, tmp_path) -> None:
    program(tmp_path, "sbatch", "echo '4711;cluster'")
    assert slurm.ask("hpc-1", tmp_path / "invitation", kept=False) == "4711"
    program(tmp_path, "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(LenderRefusedError, match=r"^Batch job submission failed: Invalid account$"):
        slurm.ask("hpc-1", tmp_path / "invitation", kept=False)


@pytest.mark.parametrize(
    "said",
    [
        "Socket timed out on send/recv operation",
        "Unable to contact slurm controller (connect failure)",
        "Zero Bytes were transmitted or received",
        "Communication connection failure",
        "Message receive failure",
        "Connection refused",
        "Connection timed out",
    ],
)
def test_a_request_on_whose_way_something_failed_is_not_refused(slurm: Slurm, tmp_path, said: str) -> None:
    program(tmp_path, "sbatch", f"echo 'sbatch: error: Batch job submission failed: {said}' >&2; exit 1")
    with pytest.raises(LenderAwayError, match=re.escape(said)):
        slurm.ask("hpc-1", tmp_path / "invitation", kept=False)


# --- commands of an administrator ---


@pytest.fixture
def hook(home: Home, tmp_path) -> Hook:
    (tmp_path / "bin").mkdir()
    commands = "\n".join(f'{name} = ["{tmp_path}/bin/{name}", "--zone", "a"]' for name in ("grow", "shrink", "list"))
    write(home, LEAST + f'kind = "hook"\n{commands}\n')
    folder = SupplyFolder.of(home, "hpc")
    folder.make()
    borrowing = read(home.root / FILE, "hpc")
    return Hook(borrowing, borrowing.lender, folder.path)


def test_a_command_starts_a_node_or_says_why_not(hook: Hook, tmp_path) -> None:
    program(tmp_path, "grow", f'[ "$*" = "--zone a" ] && cat > {tmp_path}/seen && echo starting && echo i-0abc')
    assert hook.ask("hpc-1", tmp_path / "invitation", kept=False) == "i-0abc"
    seen = json.loads((tmp_path / "seen").read_text())
    assert (seen["id"], seen["time_s"], seen["invitation"]) == ("hpc-1", 28800.0, f"{tmp_path}/invitation")
    assert seen["pilot"][-2:] == ["--idle", "300s"]
    assert seen["environment"] == {"EBB_HOME": f"{tmp_path}/supplies/hpc/home"}
    program(tmp_path, "grow", "cat > /dev/null; echo 'quota is used up' >&2; exit 3")
    with pytest.raises(LenderRefusedError, match=r"^quota is used up$"):
        hook.ask("hpc-1", tmp_path / "invitation", kept=False)
    program(tmp_path, "grow", "exit 3")  # it does not even read
    with pytest.raises(LenderRefusedError, match=r"grow ended with exit code 3$"):
        hook.ask("hpc-1", tmp_path / "invitation", kept=False)


def test_a_command_lists_loans(hook: Hook, tmp_path) -> None:
    loans = [
        {"id": "hpc-1", "state": "waiting", "reason": "no capacity"},
        {"id": "hpc-2", "state": "running", "job": "i-0abc", "until": 5},
        {"id": "hpc-3", "state": "over", "dead": True},
    ]
    program(tmp_path, "list", f"cat > /dev/null; echo '{json.dumps(loans)}'")
    assert hook.look() == {
        "hpc-1": LenderFacts(LenderState.WAITS, "hpc-1", "no capacity"),
        "hpc-2": LenderFacts(LenderState.RUNS, "i-0abc", until=5.0),
        "hpc-3": LenderFacts(LenderState.OVER, "hpc-3", proves_death=True),
    }


@pytest.mark.parametrize("said", ["", "{}x", '[{"state": "over"}]', '[{"id": "a", "state": "gone"}]', "[1]", "3"])
def test_a_list_that_makes_no_sense_tells_nothing(hook: Hook, tmp_path, said: str) -> None:
    program(tmp_path, "list", f"cat > /dev/null; echo '{said}'")
    with pytest.raises(LenderAwayError, match="does not list loans"):
        hook.look()


def test_a_command_ends_a_node_and_one_that_is_missing_is_away(hook: Hook, tmp_path) -> None:
    program(tmp_path, "shrink", f"cat > {tmp_path}/seen")
    hook.call_off("hpc-1", "i-0abc")
    assert json.loads((tmp_path / "seen").read_text()) == {"id": "hpc-1", "job": "i-0abc"}
    (tmp_path / "bin" / "shrink").unlink()
    with pytest.raises(LenderAwayError, match="shrink"):
        hook.call_off("hpc-1", "i-0abc")

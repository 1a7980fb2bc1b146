"""Bad input gets one line that names the field, exit 2, and changes nothing."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster

TEN_MB = 10_000_000


@pytest.fixture(scope="module")
def cluster(shared_home: Cluster) -> Cluster:
    """One for all tests here, which leave nothing running on it."""
    shared_home.up("4xA100-40GB")
    return shared_home


@pytest.fixture
def unchanged(cluster: Cluster) -> Iterator[Cluster]:
    """The same; the test must add no job to it."""
    before = cluster.facts("ls", "--all")
    yield cluster
    assert cluster.facts("ls", "--all") == before


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--no-such-option", "--", "true"], "--no-such-option"),
        (["--gpus", "0", "--", "true"], "--gpus"),
        (["--gpus", "-1", "--", "true"], "--gpus"),
        (["--gpus", "NaN", "--", "true"], "--gpus"),
        (["--gpus", "1e400", "--", "true"], "--gpus"),
        (["--gpus", "5", "--", "true"], "--gpus"),
        (["--gpus", "2-1", "--", "true"], "--gpus"),
        (["--gpu-mem", "41GiB", "--", "true"], "--gpu-mem"),
        (["--gpu-mem", "10", "--", "true"], "--gpu-mem"),
        (["--cpus", "nan", "--", "true"], "--cpus"),
        (["--grace", "3", "--", "true"], "--grace"),
        (["--priority", "0", "--", "true"], "--priority"),
        (["--priority", "100", "--", "true"], "--priority"),
        (["--"], "command"),
        (["--", ""], "command"),
        (["--env", "1X=2", "--", "true"], "--env"),
        (["--name", "x" * 1000, "--", "true"], "--name"),
        (["--launch", "ddp", "--gpus", "1/2", "--", "true"], "--launch"),
    ],
)
def test_it_is_refused_in_one_line(unchanged: Cluster, arguments: list[str], names: str) -> None:
    result = unchanged.ebb("submit", *arguments, code=2)
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert names in result.err


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (f"['submit', '--', 'echo', 'x' * {TEN_MB}]", "argument"),
        (r"['submit', '--name', 'a\0b', '--', 'true']", "--name"),
        (r"['submit', '--', 'a\0b']", "argument"),
        (r"['submit', '--name', '\udc80', '--', 'true']", "--name"),
    ],
)
def test_what_no_shell_can_pass_is_refused_too(unchanged: Cluster, argv: str, names: str) -> None:
    program = f"import sys; from ebbtide_cli.main import main; sys.exit(main({argv}))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=unchanged.environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr[:500]
    assert done.stderr.count("\n") == 1, done.stderr[:500]
    assert names in done.stderr[:200]


def test_without_a_master_it_says_how_to_start_one(idle_cluster: Cluster) -> None:
    result = idle_cluster.ebb("ls", code=3)
    assert "ebb up" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["show", "story", "suspend", "resume", "cancel", "hold", "release", "logs", "wait"])
def test_an_unknown_id_fails(unchanged: Cluster, verb: str) -> None:
    result = unchanged.ebb(verb, "99", code=1)
    assert "99" in result.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--workdir", "/no/such/folder", "--", "true"], "/no/such/folder"),
        (["--", "no-such-program"], "no-such-program"),
    ],
)
def test_what_only_the_node_can_know_fails_with_its_reason(cluster: Cluster, arguments: list[str], reason: str) -> None:
    assert reason in cluster.ebb("submit", *arguments, code=2).err, "every node is this machine"
    job = cluster.submit("--hold", *arguments)
    cluster.ebb("release", job)
    assert reason in cluster.wait_for_state(job, "FAILED")["reason"]


def test_a_finished_job_cannot_be_suspended(cluster: Cluster) -> None:
    job = cluster.submit("--wait", "--", "true").splitlines()[0]
    result = cluster.ebb("suspend", job, code=1)
    assert "COMPLETED" in result.err
    cluster.ebb("cancel", job, code=1)

"""An array with a limit, a task of it that fails, those who wait for it, who follows it, and what failed once more."""

from typing import Any

from tests.e2e.cluster import Cluster

TASK = 'echo "task $EBB_ARRAY_INDEX"; test "$EBB_ARRAY_INDEX" != 3 || test -e "$0"'
"""Task 3 fails as long as a file is missing."""


def most_at_a_time(jobs: list[dict[str, Any]]) -> int:
    """How many of the jobs had room at the same time at most."""
    spans = [(a["placed_time"], a["end_time"]) for job in jobs for a in job["attempts"]]
    return max(sum(start <= at < end for start, end in spans) for at, _ in spans)


def test_the_failed_task_of_an_array_is_run_again_and_who_waited_for_all_of_them_is_cancelled(cluster: Cluster) -> None:
    fixed = cluster.home / "fixed"
    array = cluster.submit("--array", "0-5%2", "--te", "--", "bash", "-c", TASK, str(fixed))
    dependent = cluster.submit("--after", "ok:@", "--", "true")
    later = cluster.submit("--after", f"any:{array}", "--", "true")
    assert (array, dependent) == ("1", "2")

    waited = cluster.ebb("wait", array, dependent, later, code=None)
    assert waited.code != 0
    assert "job 1 FAILED (1 failed, 5 completed)" in waited.out
    assert "it was to wait for job 1 to complete, but 1 of its tasks did not" in waited.out
    shown = cluster.show(array)
    assert shown["tasks"] == {
        "indices": "0-5", "states": {"FAILED": 1, "COMPLETED": 5}, "max_concurrent": 2, "max_slots": None,
    }  # fmt: skip
    assert most_at_a_time(shown["jobs"]) == 2
    assert cluster.log("1.4") == "task 4\n"
    assert cluster.show(later)["start_time"] >= max(job["end_time"] for job in shown["jobs"])

    fixed.touch()
    assert cluster.ebb("requeue", "--failed", array).out == "job 1 submitted again: job 4\n"
    cluster.ebb("wait", "4")
    assert cluster.log("4.3") == "task 3\n"
    assert "4   bash [3%2]" in cluster.ebb("ls", "--all").out


FOLLOWED = 'echo "task $EBB_ARRAY_INDEX begins"; until test -e "$0"; do sleep 0.05; done; echo "it ends"'


def test_who_follows_an_array_sees_what_its_tasks_print_also_of_those_that_begin_later(cluster: Cluster) -> None:
    go_on = cluster.home / "go on"
    array = cluster.submit("--array", "0-5%2", "--te", "--cpu-only", "--", "bash", "-c", FOLLOWED, str(go_on))
    with cluster.start("logs", "-f", array) as following:
        assert following.stdout is not None
        begun = [following.stdout.readline() for _ in range(2)]
        assert sorted(begun) == ["1.0: task 0 begins\n", "1.1: task 1 begins\n"]
        go_on.touch()
        out, err = following.communicate(timeout=60)
    expected = [f"1.{index}: task {index} begins" for index in range(2, 6)]
    expected += [f"1.{index}: it ends" for index in range(6)]
    assert sorted(out.splitlines()) == sorted(expected)
    assert (following.returncode, err) == (0, "")
    assert {task["state"] for task in cluster.show(array)["jobs"]} == {"COMPLETED"}
    some = cluster.ebb("logs", "-f", f"{array}.4-5").out
    assert sorted(some.splitlines()) == sorted(line for line in expected if line.startswith(("1.4", "1.5")))

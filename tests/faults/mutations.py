"""Does a test notice if a fence is missing? Each is taken out of a copy of the tree, where its test must fail then.

    make chaos-mutations        # or: python -m tests.faults.mutations

The tests must pass in the copy as it is, and each must fail once its fence is gone; else this ends with 1.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "master", "agent", "client", "sdk", "machine", "protos", "simulator")
PASSED, FAILED = 0, 1
"""What pytest ends with."""
LONGEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """``fence`` in words; its ``text`` stands once in ``file``, and ``instead`` is what is there without it."""

    fence: str
    file: str
    text: str
    instead: str
    test: str


MUTATIONS = (
    Mutation(
        "the attempt fence: a report counts for the newest attempt only",
        "core/ebbtide_core/state.py",
        "return newest if newest.number == attempt else None",
        "return newest",
        "tests/core/lifecycle/test_ending.py::TestFencing::test_a_late_report_of_an_older_attempt_changes_nothing",
    ),
    Mutation(
        "the durable reply: nothing leaves before it is on disk",
        "master/ebbtide_master/loop.py",
        "await asyncio.wrap_future(self._store.append(stamped))",
        "self._store.append(stamped)",
        "tests/master/test_loop.py::test_neither_reply_nor_order_leaves_before_the_commit",
    ),
    Mutation(
        "the operation id: who asks again gets what was granted",
        "master/ebbtide_master/api/submissions.py",
        "job = cluster.state.operations.get(operation_id) if operation_id else None",
        "job = None",
        "tests/faults/test_chaos.py::test_no_acknowledged_submit_is_lost_or_there_twice_when_the_master_is_killed",
    ),
    Mutation(
        "the proof that a GPU is free",
        "agent/ebbtide_agent/gpu_use/freeing.py",
        "        while held:\n",
        "        while False:\n",
        "tests/agent/gpu_use/test_freeing.py::test_memory_released_late_is_waited_for",
    ),
    Mutation(
        "the epoch check: an older master gives no orders",
        "agent/ebbtide_agent/link/membership.py",
        "if welcome.epoch < self.epoch:",
        "if False:",
        "tests/agent/link/test_link.py::test_a_master_with_a_lower_epoch_gives_no_orders",
    ),
    Mutation(
        "the cluster check: another cluster's master gives no orders while attempts are here",
        "agent/ebbtide_agent/link/membership.py",
        "if self.cluster_id and has_attempts:",
        "if False:",
        "tests/agent/link/test_membership.py::test_a_welcome_is_refused_from",
    ),
    Mutation(
        "the order fence: what an earlier master ordered is dropped",
        "agent/ebbtide_agent/link/orders.py",
        "if order.master != self.master:",
        "if False:",
        "tests/agent/link/test_link.py::test_what_an_older_master_ordered_is_not_carried_out_under_a_newer_one",
    ),
    Mutation(
        "the job's lock: an overtaken attempt never starts",
        "agent/ebbtide_agent/supervisor/lock.py",
        "if attempt <= highest:",
        "if False:",
        "tests/agent/supervisor/test_adoption.py::test_an_overtaken_order_is_refused_for_good",
    ),
    Mutation(
        "the search for processes: an agent that lost its state starts no second copy",
        "agent/ebbtide_agent/attempts/launching.py",
        "if running is not None:",
        "if False:",
        "tests/agent/supervisor/test_adoption.py::test_losing_the_agents_state_never_starts_a_second_copy",
    ),
    Mutation(
        "the identity of a process: a pid alone names nobody",
        "machine/ebbtide_machine/process.py",
        "yield descriptor if self.is_alive() else None",
        "yield descriptor",
        "tests/agent/processes/test_process_tree.py::test_a_process_that_only_has_the_same_pid_is_not_signalled",
    ),
    Mutation(
        "the digest of a checkpoint",
        "sdk/ebbtide/checkpoints.py",
        "        if digest != file.sha256:\n",
        "        if False:\n",
        "tests/sdk/test_checkpoints.py::test_after_a_byte_flipped_anywhere_the_previous_checkpoint_is_used",
    ),
    Mutation(
        "the gate's table: each method asks for a role",
        "master/ebbtide_master/calls/gate.py",
        "        if caller.role < needed:\n",
        "        if False:\n",
        "tests/master/calls/test_access.py::test_a_method_for_a_higher_role_is_refused",
    ),
    Mutation(
        "the owner check: what is somebody else's is refused",
        "master/ebbtide_master/calls/gate.py",
        "self._check_owner(id, caller)",
        "pass",
        "tests/master/calls/test_access.py::test_what_is_somebody_elses_is_refused_by_every_method_that_names_it",
    ),
    Mutation(
        "the agent's name: a certificate speaks for its own node only",
        "master/ebbtide_master/calls/certificates.py",
        "if hello and message.hello.node != caller.node:",
        "if False:",
        "tests/master/tls/test_ports.py::test_an_agent_speaks_for_no_other_node",
    ),
    Mutation(
        "the end of a lease: nothing goes on elsewhere before",
        "core/ebbtide_core/nodes/silence.py",
        "if ends is not None and ends <= now:",
        "if ends is not None:",
        "tests/core/nodes/test_silence.py::TestLease::test_a_job_with_a_lease_goes_on_elsewhere_once_it_is_over_for_certain",
    ),
    Mutation(
        "the lease in the supervisor: who is cut off ends itself",
        "agent/ebbtide_agent/supervisor/watch.py",
        "if self._lease is None or not self._lease.is_ending(now):",
        "if True:",
        "tests/agent/supervisor/test_lease.py::test_without_word_from_the_master_it_saves_and_ends_in_time",
    ),
    Mutation(
        "the doubt: a master to which most nodes fell silent takes no lease for over",
        "core/ebbtide_core/nodes/silence.py",
        "    if state.silent.doubted:\n        return\n    for id in sorted(state.leasing):",
        "    for id in sorted(state.leasing):",
        "tests/core/nodes/test_silence.py::TestDoubt::test_where_most_nodes_fall_silent_together_the_master_doubts_itself",
    ),
)


def copy_of_the_tree(folder: Path) -> Path:
    """All files that are part of it, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    tree = folder / "tree"
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, tree / name)
    return tree


def test(tree: Path, *names: str) -> tuple[int, str]:
    """How pytest ends for these tests in a tree, and the end of what it says."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(str(tree / package) for package in PACKAGES)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *names],
        cwd=tree, env=environment, capture_output=True, text=True, timeout=LONGEST_S,
    )  # fmt: skip
    return done.returncode, "\n".join(done.stdout.splitlines()[-15:])


def check(tree: Path, mutation: Mutation) -> bool:
    """Whether its test notices; the tree is as it was when this returns."""
    path = tree / mutation.file
    before = path.read_text()
    if before.count(mutation.text) != 1:
        print(f"STALE    {mutation.fence}: its text is not once in {mutation.file}")
        return False
    path.write_text(before.replace(mutation.text, mutation.instead))
    try:
        code, said = test(tree, mutation.test)
    finally:
        path.write_text(before)
    print(f"{'noticed ' if code == FAILED else 'MISSED  '} {mutation.fence}\n         {mutation.test}", flush=True)
    if code not in (PASSED, FAILED):
        print(said)
    return code == FAILED


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ebb-mutations-") as folder:
        tree = copy_of_the_tree(Path(folder))
        code, said = test(tree, *(mutation.test for mutation in MUTATIONS))
        if code != PASSED:
            print(f"the tests do not pass as it is:\n{said}")
            return 1
        print("as it is: all pass", flush=True)
        noticed = [check(tree, mutation) for mutation in MUTATIONS]
    print(f"{sum(noticed)} of {len(noticed)} noticed")
    return 0 if all(noticed) else 1


if __name__ == "__main__":
    with until_interrupted():
        sys.exit(main())
    sys.exit(EXIT_INTERRUPTED)

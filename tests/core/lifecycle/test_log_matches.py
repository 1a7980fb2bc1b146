"""What follows from a line that a rule was found in."""

import re

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.logs import LogMatch
from ebbtide_core.model.log_rules import LogAction, LogRule, parse_rule
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import ExitFacts, HeldBy, JobState, NodeId, SuspendMode
from ebbtide_core.policies.registry import POLICIES
from ebbtide_core.views.explain import explain
from ebbtide_core.views.narrate import narrate

from tests.core.lab import GIB, Lab, gpus_of, registration

FAILED = ExitFacts(exit_code=1)


def found(lab, job, action, line="a line", gpus=(), node="a"):
    match = LogMatch("a pattern", action, line, gpus)
    return lab.tell(e.LogMatched(job.id, len(job.attempts), NodeId(node), match))


def test_a_failure_that_the_log_calls_pointless_to_repeat_ends_the_job_whatever_its_retries():
    lab = Lab()
    job = lab.running(retries=3)
    found(lab, job, LogAction.NO_RETRY, "CUDA out of memory.")
    lab.end(job, FAILED)
    assert job.state is JobState.FAILED
    assert job.reason == "failed with exit code 1: 'CUDA out of memory.', not to be tried again"


def test_without_such_a_line_it_is_tried_again():
    lab = Lab()
    job = lab.running(retries=3)
    found(lab, job, LogAction.NOTIFY)
    lab.end(job, FAILED)
    assert not job.state.finished


def test_out_of_memory_on_a_share_is_tried_once_more_alone_before_the_rule_counts():
    lab = Lab()
    job = lab.running("1/4", gpu_mem_bytes=4 * GIB)
    memory = ExitFacts(exit_code=1, out_of_memory=True)
    found(lab, job, LogAction.NO_RETRY, "CUDA out of memory")
    lab.end(job, memory)
    assert not job.state.finished
    lab.wait(10)
    lab.start(job)
    found(lab, job, LogAction.NO_RETRY, "CUDA out of memory")
    lab.end(job, memory)
    assert job.state is JobState.FAILED
    assert "out of GPU memory" in job.reason


@pytest.mark.parametrize("policy", sorted({"fitgpp", "fifo", "priority", "fair-share"} & set(POLICIES)))
@pytest.mark.parametrize("size", ["1", "1/2"])
def test_a_broken_gpu_is_not_given_to_the_job_again_and_its_failure_is_not_charged(policy, size):
    lab = Lab(policy, gpus=2)
    job = lab.running(size)
    broken = gpus_of(job)
    found(lab, job, LogAction.EXCLUDE_GPU, "uncorrectable ECC error")
    lab.end(job, FAILED)
    assert job.retries.failures == 0
    assert gpus_of(job)
    assert gpus_of(job).isdisjoint(broken)


def test_of_several_gpus_only_that_of_the_rank_that_printed_it_is_left_out():
    lab = Lab(gpus=3)
    job = lab.running(2)
    first, second = sorted(gpus_of(job))
    found(lab, job, LogAction.EXCLUDE_GPU, gpus=(second,))
    lab.end(job, FAILED)
    assert first in gpus_of(job)
    assert second not in gpus_of(job)


def test_a_job_that_has_nowhere_else_to_go_is_held_so_that_others_can_run():
    lab = Lab(gpus=1)
    job = lab.running()
    found(lab, job, LogAction.EXCLUDE_GPU, "uncorrectable ECC error")
    lab.end(job, FAILED)
    assert job.held_by is HeldBy.SYSTEM
    assert job.reason == "held: it can only run on a0, and its log showed a fault there"
    other = lab.submit()
    assert gpus_of(other) == {"a0"}
    lab.end(other, ExitFacts())
    lab.tell(e.ReleaseRequested(job.id))
    assert gpus_of(job) == {"a0"}


def test_a_job_that_waits_for_a_gpu_says_which_it_does_not_want():
    lab = Lab(gpus=2)
    lab.running(suspend=SuspendMode.NONE)
    job = lab.running()
    broken = gpus_of(job)
    found(lab, job, LogAction.EXCLUDE_GPU, "uncorrectable ECC error")
    lab.end(job, FAILED)
    [id] = broken
    assert job.reason == f"waiting for 1 GPU, not of GPU {id} (the job's log showed a fault)"
    lab.tell(e.NodeLost(NodeId("a"), 1.0))
    assert explain(lab.cluster.state, job, lab.now).nodes[0].obstacle == "not connected"


def test_a_node_that_a_rule_excludes_is_not_used_again_by_that_job():
    lab = Lab(nodes="")
    for name in "ab":
        lab.tell(registration(name, 1, checkpoint_root_id="shared"))
    job = lab.running()
    node = job.attempts[-1].allocation.node_ids[0]
    found(lab, job, LogAction.EXCLUDE_NODE, "cannot open shared object file", node=node)
    lab.end(job, FAILED)
    assert len(job.attempts) == 2
    assert job.attempts[-1].allocation.node_ids[0] != node


def test_a_node_says_of_each_rule_only_once_what_is_news():
    lab = Lab()
    job = lab.running()
    assert found(lab, job, LogAction.NOTIFY)
    assert not [command for command in found(lab, job, LogAction.NOTIFY) if hasattr(command, "event")]
    [kept] = job.attempts[-1].matches
    assert narrate(kept) == "attempt 1 printed 'a line' (notify) on node a"


def test_completing_with_such_a_line_is_completing():
    lab = Lab()
    job = lab.running()
    found(lab, job, LogAction.NO_RETRY)
    lab.end(job, ExitFacts())
    assert job.state is JobState.COMPLETED


def test_a_rule_is_a_pattern_and_an_action():
    assert parse_rule("loss=nan=notify") == LogRule("loss=nan", LogAction.NOTIFY)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("CUDA", "'CUDA' is not of the form REGEX=ACTION"),
        (
            "CUDA=explode",
            "'explode' is none of ignore, notify, no-retry, exclude-gpu, exclude-node: did you mean 'exclude-node'?",
        ),
        ("(=notify", "'(' is not a regular expression: missing ), unterminated subpattern at position 0"),
        (".*=notify", "'.*' is found in an empty line, and so in every one"),
        ("=notify", "a pattern has 1 to 256 characters, not 0"),
    ],
)
def test_what_is_no_rule_is_refused(text, complaint):
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        parse_rule(text)


def test_a_job_with_a_rule_that_is_none_is_refused():
    spec = JobSpec(command=("x",), workdir="/", log_rules=(LogRule("(", LogAction.NOTIFY),))
    with pytest.raises(SpecError, match="--on-log: '\\(' is not a regular expression"):
        validate(spec)

"""A job whose checkpoint only some nodes see: it waits for them, or its checkpoint is copied first."""

from ebbtide_core import events as e
from ebbtide_core.commands import Launch
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import CheckpointFacts, JobState, NodeId, RefusalCause
from ebbtide_core.views.explain import explain

from tests.core.lab import DONE, Lab, gpus_of, registration, stepped_aside


def homeless(lab: Lab, **spec: object) -> Job:
    """A job that saved on node a, stepped aside, and finds a taken now."""
    job = lab.running(1, **spec)
    assert gpus_of(job) == {"a0"}
    lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(7, 100, "/a/step-7", True)))
    lab.tell(e.SuspendRequested(job.id))
    lab.exit(job, stepped_aside())
    lab.free(job)
    other = lab.running(1, suspend=job.spec.suspend)
    assert gpus_of(other) == {"a0"}
    lab.tell(registration("b", 1))
    lab.tell(e.ResumeRequested(job.id))
    return job


def launches(lab: Lab) -> list[Launch]:
    return [command for command in lab.last if isinstance(command, Launch)]


def refuses_the_copy(lab: Lab, job: Job, reason: str = "copying it to node b failed: disk full") -> None:
    lab.tell(e.AttemptRefused(job.id, len(job.attempts), RefusalCause.NOT_MOVED, reason))


def test_without_the_wish_it_waits_for_the_node_that_has_it():
    lab = Lab(gpus=1)
    job = homeless(lab)
    assert (job.state, job.reason) == (JobState.SUSPENDED, "waiting for 1 GPU of node a, where its checkpoint is")


def test_with_it_the_launch_names_the_node_to_copy_from():
    lab = Lab(gpus=1)
    job = homeless(lab, move_checkpoints=True)
    [launch] = launches(lab)
    assert (launch.nodes, launch.source, launch.needs_checkpoint) == (("b",), "a", True)
    assert job.reason == "starting on 1 GPU of node b; its checkpoint is copied from node a first"


def test_what_ran_there_since_is_where_its_checkpoint_is():
    lab = Lab(gpus=1)
    job = homeless(lab, move_checkpoints=True)
    lab.start(job)
    lab.tell(registration("b", 1, known=lab.known(job)))
    assert job.saved.root_id == "root-b"
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job)
    lab.tell(e.ResumeRequested(job.id))
    assert [(launch.nodes, launch.source) for launch in launches(lab)] == [(("b",), None)]


def test_a_copy_that_failed_leaves_it_waiting_for_the_node_that_has_it():
    lab = Lab(gpus=1)
    job = homeless(lab, move_checkpoints=True)
    refuses_the_copy(lab, job)
    expected = "waiting for 1 GPU of node a, where its checkpoint is (copying it to node b failed: disk full)"
    assert (job.reason, job.held_by) == (expected, None)
    views = {view.node: view.obstacle for view in explain(lab.cluster.state, job, lab.now).nodes}
    assert views == {"a": "too few GPUs left", "b": "cannot read its checkpoint"}
    lab.end(lab.cluster.state.jobs["2"], DONE)
    assert [(launch.nodes, launch.source) for launch in launches(lab)] == [(("a",), None)]


def test_once_it_has_run_again_its_checkpoint_may_be_copied_again():
    lab = Lab(gpus=1)
    job = homeless(lab, move_checkpoints=True)
    refuses_the_copy(lab, job)
    lab.end(lab.cluster.state.jobs["2"], DONE)
    lab.start(job)
    assert job.saved.move_failure == ""


def test_a_user_who_holds_and_releases_it_has_it_tried_again():
    lab = Lab(gpus=1)
    job = homeless(lab, move_checkpoints=True)
    refuses_the_copy(lab, job)
    lab.tell(e.HoldRequested(job.id))
    lab.tell(e.ReleaseRequested(job.id))
    assert [(launch.nodes, launch.source) for launch in launches(lab)] == [(("b",), "a")]


def test_while_no_node_that_has_it_is_connected_it_waits_and_says_for_which():
    for wish in (False, True):
        lab = Lab(gpus=1)
        job = lab.running(1, move_checkpoints=wish)
        lab.tell(e.SuspendRequested(job.id))
        lab.exit(job, stepped_aside())
        lab.free(job)
        lab.tell(e.NodeDisconnected(NodeId("a")))
        lab.tell(e.NodeLost(NodeId("a"), 20.0))
        lab.tell(registration("b", 1))
        lab.tell(e.ResumeRequested(job.id))
        assert job.reason == "waiting for 1 GPU: its checkpoint is on node a, not connected"


def test_an_order_that_never_arrived_is_repeated_with_the_copy():
    lab = Lab(gpus=1)
    homeless(lab, move_checkpoints=True)
    lab.tell(registration("b", 1))
    assert [(launch.nodes, launch.source) for launch in launches(lab)] == [(("b",), "a")]


def test_the_first_node_of_several_copies_it_for_all():
    lab = Lab(nodes="", gpus=1)
    for name, root in (("a", "near"), ("b", "near")):
        lab.tell(registration(name, 1, checkpoint_root_id=root))
    job = lab.submit(2, nodes=2, move_checkpoints=True)
    for name in "ab":
        lab.tell(e.AttemptStarted(job.id, 1, 5, node=NodeId(name), port=20000))
    lab.tell(e.SuspendRequested(job.id))
    for name in "ab":
        lab.tell(e.AttemptExited(job.id, 1, stepped_aside(), freed=True, node=NodeId(name)))
    lab.running(1)
    for name in ("c", "d"):
        lab.tell(registration(name, 1, checkpoint_root_id="far"))
    lab.tell(e.ResumeRequested(job.id))
    assert [(launch.nodes, launch.source) for launch in launches(lab)] == [(("c",), "a")]
    lab.tell(e.AttemptStarted(job.id, 2, 5, node=NodeId("c"), port=20000))
    assert [(launch.nodes, launch.source) for launch in launches(lab)] == [(("d",), None)]

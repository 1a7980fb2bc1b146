"""A job leaves its GPU and comes back, or is refused, or breaks: the same on fake GPUs and in the C stub."""

from functools import partial

import pytest
from ebbtide_agent.swap.driver import NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY
from ebbtide_agent.swap.sequence import SwapOutcome, SwapStep

from tests.agent.swap.worlds import GIB, HANG, TOTAL_BYTES


def test_a_swapped_job_holds_no_gpu_memory_and_stands_still_until_it_is_back(world):
    job = world.job(GIB, processes=3)
    out = job.suspend()
    assert (out.ending, out.reason) == (SwapOutcome.DONE, "")
    assert world.on_gpu() == {}
    assert world.state(job.pids[0]) == "CHECKPOINTED"
    assert job.frozen()
    assert (out.swapped.process.pid, out.swapped.mem_bytes) == (job.pids[0], GIB)
    back = job.resume(out.swapped)
    assert (back.ending, back.reason) == (SwapOutcome.DONE, "")
    assert world.on_gpu() == {job.pids[0]: GIB}
    assert world.state(job.pids[0]) == "RUNNING"
    assert job.moves()


def test_it_goes_in_one_order(world):
    job = world.job(GIB)
    out = job.suspend()
    assert list(out.parts_s) == [
        SwapStep.CHECK,
        SwapStep.RESERVE,
        SwapStep.LOCK,
        SwapStep.CHECKPOINT,
        SwapStep.PROVE,
        SwapStep.FREEZE,
    ]
    back = job.resume(out.swapped)
    assert list(back.parts_s) == [
        SwapStep.CHECK,
        SwapStep.START,
        SwapStep.THAW,
        SwapStep.RESTORE,
        SwapStep.PROVE_BACK,
        SwapStep.UNLOCK,
    ]
    assert sum((*out.parts_s.values(), *back.parts_s.values())) < 5


def test_another_job_fits_on_the_gpu_meanwhile(world):
    job = world.job(2 * GIB)
    out = job.suspend()
    visitor = world.occupy(2 * GIB)
    assert world.on_gpu() == {visitor: 2 * GIB}
    assert out.ending is SwapOutcome.DONE


def test_a_job_that_does_not_use_its_gpu_yet_is_only_frozen(world):
    job = world.job(processes=2)
    out = job.suspend()
    assert (out.ending, out.swapped.process) == (SwapOutcome.DONE, None)
    assert job.frozen()
    assert job.resume(out.swapped).ending is SwapOutcome.DONE
    assert job.moves()


# Refused: the job runs on as before.


def test_a_job_with_two_processes_on_its_gpu_is_refused(world):
    job = world.job(GIB, GIB)
    refused(world, job, job.suspend(), "one process on their GPU can be swapped, and this one has 2")


def test_a_job_on_two_gpus_is_refused(world):
    job = world.job(GIB, processes=2)
    world.hold(job.pids[1], GIB, world.other)
    refused(world, job, job.suspend(), f"uses {world.other}, too")


def test_a_gpu_that_is_lost_keeps_no_job_on_another_from_leaving(fake_world):
    job = fake_world.job(GIB)
    fake_world.faults(lost=[fake_world.other])
    out = job.suspend()
    assert (out.ending, out.reason) == (SwapOutcome.DONE, "")
    assert job.resume(out.swapped).ending is SwapOutcome.DONE


def test_a_job_on_a_lost_gpu_stays_as_it_is(fake_world):
    job = fake_world.job(GIB)
    fake_world.faults(lost=[fake_world.uuid])
    out = job.suspend()
    assert (out.ending, out.reason) == (SwapOutcome.UNTOUCHED, "NVML: GPU is lost")


def test_a_mig_device_is_refused(world):
    job = world.job(GIB)
    assert job.suspend(gpu="MIG-1").ending is SwapOutcome.UNTOUCHED


def test_a_gpu_that_is_not_there_is_refused(world):
    job = world.job(GIB)
    assert job.suspend(gpu="GPU-nobody").reason == "NVML: Not Found"


def test_a_process_that_cannot_be_locked_in_time_runs_on(world):
    job = world.job(GIB)
    world.fault("lock", NOT_READY)
    refused(world, job, job.suspend(), "not ready in time (600)")


def test_a_driver_that_cannot_do_it_leaves_the_process_alone(world):
    job = world.job(GIB)
    world.fault("lock", NOT_SUPPORTED)
    refused(world, job, job.suspend(), "not supported for this process (801)")


def refused(world, job, result, reason):
    assert result.ending is SwapOutcome.UNTOUCHED
    assert reason in result.reason
    assert job.moves()
    assert job.pids[0] in world.on_gpu()
    assert world.state(job.pids[0]) == "RUNNING"


# Broken: only SIGKILL helps.


def test_a_checkpoint_that_fails_breaks_the_job(world):
    job = world.job(GIB)
    world.fault("checkpoint", NOT_SUPPORTED)
    result = job.suspend()
    assert result.ending is SwapOutcome.BROKEN
    assert world.state(job.pids[0]) == "FAILED"


def asked_in_time(act):
    """What comes of a driver that hangs, and the deadline: on a busy machine it may not be asked within a second."""
    for deadline_s in (1, 5, 25):
        result = act(deadline_s=deadline_s)
        if result.ending is not SwapOutcome.UNTOUCHED:
            break
    return result, deadline_s


@pytest.mark.parametrize("call", ["lock", "checkpoint"])
def test_a_driver_that_hangs_is_killed_at_the_deadline(world, call):
    job = world.job(GIB)
    world.fault(call, HANG)
    result, deadline_s = asked_in_time(job.suspend)
    assert result.ending is SwapOutcome.BROKEN
    # A slow machine may only have come to the step before, which is no harmless one either.
    assert result.reason in {
        f"the driver did not answer within {deadline_s} s, in step '{step}'" for step in ("lock", call)
    }


def test_a_driver_that_hangs_before_anything_was_done_leaves_the_job_alone(world):
    job = world.job(GIB)
    world.fault("state", HANG)
    result = job.suspend(deadline_s=1)
    world.fault("nothing", 0)
    refused(world, job, result, "within 1 s, in step 'check'")


def test_a_restore_that_hangs_breaks_the_job(world):
    job = world.job(GIB)
    out = job.suspend()
    world.fault("restore", HANG)
    back, _ = asked_in_time(partial(job.resume, out.swapped))
    assert (back.ending, back.swapped) == (SwapOutcome.BROKEN, out.swapped)


def test_out_of_memory_while_restoring_is_fatal_for_good(world):
    job = world.job(GIB)
    out = job.suspend()
    world.fault("room" if world.fake_gpu_dir == "" else "restore", OUT_OF_MEMORY)
    first = job.resume(out.swapped)
    assert first.ending is SwapOutcome.BROKEN
    assert "out of memory (2)" in first.reason
    world.fault("nothing", 0)
    again = job.resume(out.swapped)
    assert again.ending is SwapOutcome.BROKEN
    assert "(304)" in again.reason


def test_a_job_that_died_while_it_was_out_is_told_so(world):
    job = world.job(GIB)
    out = job.suspend()
    world.close()
    back = job.resume(out.swapped)
    assert (back.ending, back.reason) == (SwapOutcome.BROKEN, f"process {job.pids[0]} has ended")


# A resume that finds no room does no harm.


def test_without_room_on_its_gpu_the_job_stays_swapped_and_can_come_back_later(world):
    job = world.job(2 * GIB)
    out = job.suspend()
    visitor = world.occupy(2 * GIB)
    back = job.resume(out.swapped, deadline_s=60)
    assert back.ending is SwapOutcome.UNTOUCHED
    assert "no room" in back.reason
    assert job.frozen()
    assert world.state(job.pids[0]) == "CHECKPOINTED"
    world.hold(visitor, 0)
    assert job.resume(out.swapped).ending is SwapOutcome.DONE


def test_what_a_restore_needs_is_a_little_more_than_the_process_held_but_no_more_than_there_was(world):
    roomy, full = world.job(GIB), world.job(TOTAL_BYTES - GIB)
    assert roomy.suspend().swapped.need_bytes == GIB  # nothing was free beside them
    swapped = full.suspend().swapped
    assert TOTAL_BYTES - GIB < swapped.need_bytes < TOTAL_BYTES

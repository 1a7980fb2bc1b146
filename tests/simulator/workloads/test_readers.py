"""Well-formed files of every kind."""

import pytest
from ebbtide_core.model.types import WHOLE, JobClass
from ebbtide_sim.workload import SimJob, WorkloadError
from ebbtide_sim.workloads import google, openb, swf
from ebbtide_sim.workloads.loading import load_workload
from ebbtide_sim.workloads.nodes import SimNode, read_cluster

GIB = 2**30


def swf_line(number=1, submit=0, wait=5, run=100, allocated=4, requested=4, status=1, user=7):
    return f"{number} {submit} {wait} {run} {allocated} -1 -1 {requested} -1 -1 {status} {user} -1 -1 -1 -1 -1 -1"


def event(time, kind, job="5", index="0", priority=0, user="ann"):
    return f"{time},,{job},{index},,{kind},{user},2,{priority},0.1,0.1,0.0,0"


# --- SWF ---


def test_an_swf_job_has_its_run_time_and_its_processors_as_gpus(file):
    path = file("; MaxProcs: 240", "", swf_line(submit=10, run=553, allocated=40), name="log.swf")
    (job,) = load_workload(str(path)).jobs
    assert job == SimJob(
        id="1", submit_s=0.0, runtime_s=553.0, user="7", bag="7.1", gpus_min=40 * WHOLE, gpus_max=40 * WHOLE
    )


def test_a_packed_log_reads_like_the_unpacked_one(file):
    lines = [swf_line(number, submit=10 * number) for number in range(1, 20)]
    packed, unpacked = file(*lines, name="log.swf.gz"), file(*lines, name="log.swf")
    assert load_workload(str(packed)).jobs == load_workload(str(unpacked)).jobs


def test_a_log_without_the_name_of_one_is_known_by_its_comments(file):
    path = file("; Version: 2.2", swf_line(), name="log.txt")
    assert len(load_workload(str(path)).jobs) == 1


def test_comments_are_lines_of_their_own(file):
    path = file("  ; indented", "   ", swf_line(), ";", name="log.swf")
    assert len(load_workload(str(path)).jobs) == 1
    path = file(swf_line(1), swf_line(2) + " ; the second", name="log.swf")
    with pytest.raises(WorkloadError, match=r"log\.swf:2: line: has 21 fields, SWF has 18"):
        load_workload(str(path))


def test_jobs_come_when_they_were_submitted_or_when_they_started(file):
    path = file(swf_line(1, submit=100, wait=50), swf_line(2, submit=120, wait=0), name="log.swf")
    assert [(job.id, job.submit_s) for job in load_workload(str(path)).jobs] == [("1", 0), ("2", 20)]
    by_start = load_workload(str(path), arrival="start")
    assert [(job.id, job.submit_s) for job in by_start.jobs] == [("2", 0), ("1", 30)]


def test_the_requested_processors_stand_in_for_unknown_allocated_ones(file):
    path = file(swf_line(allocated=-1, requested=9), name="log.swf")
    assert load_workload(str(path)).jobs[0].gpus_max == 9 * WHOLE


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (swf_line(run=-1), swf.NO_RUN_TIME),
        (swf_line(allocated=-1, requested=-1), swf.NO_PROCESSORS),
        (swf_line(allocated=0, requested=0), swf.NO_PROCESSORS),
        (swf_line(status=3), swf.PART_OF_JOB),
        (swf_line(status=5, run=0), swf.NEVER_RAN),
        (swf_line(allocated=5000), swf.TOO_LARGE),
    ],
)
def test_what_cannot_be_replayed_is_left_out_and_counted(file, line, why):
    workload = load_workload(str(file(swf_line(2), line, name="log.swf")))
    assert [job.id for job in workload.jobs] == ["2"]
    assert workload.skipped == {why: 1}


def test_a_job_without_waiting_time_is_left_out_only_where_its_start_matters(file):
    path = file(swf_line(wait=-1), name="log.swf")
    assert load_workload(str(path)).skipped == {}
    assert load_workload(str(path), arrival="start").skipped == {swf.NO_WAIT: 1}


def test_a_job_of_no_time_stays(file):
    assert load_workload(str(file(swf_line(run=0), name="log.swf"))).jobs[0].runtime_s == 0


def test_a_bag_goes_on_while_tasks_start_within_a_minute_of_the_end_of_another(file):
    """Seed 001, III-C: starts at 0, 50, 210 (60 after the end at 150), 371 (61 after 310); another user's own bag."""
    starts = ((1, 0, 7), (2, 50, 7), (3, 210, 7), (4, 371, 7), (5, 60, 8))
    lines = [swf_line(number, submit=start, wait=0, user=user) for number, start, user in starts]
    jobs = load_workload(str(file(*lines, name="log.swf"))).jobs
    assert {job.id: job.bag for job in jobs} == {"1": "7.1", "2": "7.1", "3": "7.1", "4": "7.2", "5": "8.1"}


def test_jobs_of_nobody_are_in_no_bag(file):
    job = load_workload(str(file(swf_line(user=-1), name="log.swf"))).jobs[0]
    assert (job.user, job.bag) == ("", "")


# --- our CSV ---


def test_three_columns_are_enough(file):
    (job,) = load_workload(str(file("runtime_s,id,submit_s", "60,a,5"))).jobs
    assert job == SimJob(id="a", submit_s=5.0, runtime_s=60.0)


def test_every_column_counts(file):
    path = file(
        "id,submit_s,runtime_s,class,user,bag,gpus_min,gpus_max,gpu_mem_gib,cpus,mem_gib,grace_s,priority,weight,preemptible",
        "a,0,60,te,ann,b1,1/4,4,2.5,1.5,8,30,7,2,false",
    )
    assert load_workload(str(path)).jobs == [
        SimJob(
            id="a", submit_s=0.0, runtime_s=60.0, job_class=JobClass.TRIAL_AND_ERROR, user="ann", bag="b1",
            gpus_min=WHOLE // 4, gpus_max=4 * WHOLE, gpu_mem_bytes=5 * GIB // 2, cpus=1.5, mem_bytes=8 * GIB,
            grace_s=30.0, priority=7, weight=2.0, preemptible=False,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("column", ["gpus_min", "gpus_max"])
@pytest.mark.parametrize(("cell", "parts"), [("0", 0), ("2", 2 * WHOLE), ("1/16", WHOLE // 16), ("0.25", WHOLE // 4)])
def test_one_of_the_two_gpu_columns_stands_for_both(file, column, cell, parts):
    (job,) = load_workload(str(file(f"id,submit_s,runtime_s,{column}", f"a,0,60,{cell}"))).jobs
    assert (job.gpus_min, job.gpus_max) == (parts, parts)


def test_lines_are_sorted_by_time_and_ties_stay_as_they_are(file):
    path = file("id,submit_s,runtime_s", "late,9,1", "first,0,1", "", "second,0,1")
    assert [job.id for job in load_workload(str(path)).jobs] == ["first", "second", "late"]


def test_a_byte_order_mark_and_line_ends_of_windows_do_no_harm(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xef\xbb\xbfid,submit_s,runtime_s\r\na,0,1\r\n")
    assert [job.id for job in load_workload(str(path)).jobs] == ["a"]


# --- traces ---


def test_a_philly_job_comes_at_its_time_after_the_first(file):
    path = file(
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
        "2017-10-09 07:00:55,2951.0,8,23608.0,6214e9",
        "2017-10-09 07:00:56,10.0,0,0.0,6214e9",
    )
    workload = load_workload(str(path))
    assert [(job.id, job.submit_s, job.runtime_s, job.gpus_max // WHOLE, job.user) for job in workload.jobs] == [
        ("2", 0.0, 2951.0, 8, "6214e9"),
        ("1", 60.0, 66.0, 1, "11cb48"),
    ]
    assert workload.skipped == {"jobs without GPUs": 1}


@pytest.mark.parametrize(
    ("milli", "denominator"), [(1000, 1), (810, 1), (501, 1), (500, 2), (470, 2), (320, 3), (230, 4), (50, 16), (1, 16)]
)
def test_a_share_of_an_openb_pod_is_rounded_up_to_one_nth(file, milli, denominator):
    path = file(",".join(openb.COLUMNS), f"p,6000,1024,1,{milli},,LS,Running,5,105,10")
    (job,) = load_workload(str(path)).jobs
    assert job.gpus_max == WHOLE // denominator
    assert (job.runtime_s, job.cpus, job.mem_bytes) == (95.0, 6.0, GIB)


@pytest.mark.parametrize(("qos", "job_class"), [("LS", "te"), ("Guaranteed", "te"), ("BE", "be"), ("Burstable", "be")])
def test_quality_of_service_becomes_the_class(file, qos, job_class):
    path = file(",".join(openb.COLUMNS), f"p,6000,1024,8,1000,,{qos},Running,0,100,0")
    (job,) = load_workload(str(path)).jobs
    assert (job.job_class.value, job.gpus_max) == (job_class, 8 * WHOLE)


def test_a_pod_that_was_never_scheduled_is_counted_and_a_wanted_model_is_noted(file):
    path = file(
        ",".join(openb.COLUMNS), "p,6000,1024,0,0,,BE,Pending,0,100,", "q,6000,1024,0,0,V100M16|T4,BE,Running,0,100,9"
    )
    workload = load_workload(str(path))
    assert [(job.id, job.gpus_max) for job in workload.jobs] == [("q", 0)]
    assert workload.skipped == {"never scheduled": 1}
    assert any("1 pods insist on a GPU model" in note for note in workload.notes)


def test_a_pollux_job_runs_as_long_as_its_application_is_assumed_to(file):
    path = file("name,time,application,num_replicas,batch_size", "bert-0,107,bert,1,12", "bert-1,110,bert,4,48")
    workload = load_workload(str(path))
    assert [(job.submit_s, job.runtime_s) for job in workload.jobs] == [(0.0, 10_800.0), (3.0, 10_800 / (4 * 0.65))]
    assert "bert 3" in workload.notes[0]


def test_a_google_task_runs_from_its_last_schedule_to_its_first_finish(file):
    lines = [event(600_000_000, 0, priority=9)]
    lines += [event(601_000_000, 1, priority=9), event(602_000_000, 2, priority=9), event(603_000_000, 0, priority=9)]
    lines += [event(605_000_000, 1, priority=9), event(700_000_000, 4, priority=9), event(701_000_000, 0, priority=9)]
    (job,) = load_workload(str(file(*lines, name="part-0.csv.gz"))).jobs
    assert (job.id, job.bag, job.user) == ("5/0", "5", "ann")
    assert (job.submit_s, job.runtime_s) == (0.0, pytest.approx(95.0))
    assert (job.priority, job.job_class) == (3, JobClass.TRIAL_AND_ERROR)


def test_google_tasks_from_before_the_trace_and_without_an_end_are_counted(file):
    lines = [event(0, 0, job="1"), event(0, 1, job="1"), event(9, 4, job="1"), event(5, 1, job="2")]
    lines += [
        event(6, 0, job="3"),
        event(7, 1, job="3"),
        event(8, 5, job="3"),
        event(9, 0, job="4"),
        event(10, 4, job="4"),
    ]
    workload = load_workload(str(file(*lines)))
    assert workload.jobs == []
    assert workload.skipped == {google.BEFORE_TRACE: 2, google.UNFINISHED: 1, google.UNSCHEDULED: 1}


# --- clusters ---


def test_a_cluster_file_lists_nodes(file):
    path = file(
        "node,gpus,gpu_mem_gib,cpus,mem_gib,count,cores,speed,model",
        "big,8,80,96,1024,2,,,A100",
        "one,1,24,8,32,,8,0.5,",
    )
    big = {"gpus": 8, "gpu_mem_bytes": 80 * GIB, "cpus": 96.0, "mem_bytes": 1024 * GIB, "model": "A100"}
    assert read_cluster(path) == [
        SimNode(name="big-0", **big),
        SimNode(name="big-1", **big),
        SimNode(name="one", gpus=1, gpu_mem_bytes=24 * GIB, cpus=8.0, mem_bytes=32 * GIB, cores=8, speed=0.5),
    ]


def test_an_openb_node_list_is_a_cluster_file_too(file):
    path = file("sn,cpu_milli,memory_mib,gpu,model", "n0,32000,262144,0,", "n1,64000,262144,2,P100")
    assert read_cluster(path) == [
        SimNode(name="n0", gpus=0, cpus=32.0, mem_bytes=256 * GIB),
        SimNode(name="n1", gpus=2, gpu_mem_bytes=16 * GIB, cpus=64.0, mem_bytes=256 * GIB, model="P100"),
    ]


# --- all of them ---


def test_only_the_first_jobs_are_kept_if_so_wished(file):
    workload = load_workload(str(file("id,submit_s,runtime_s", "b,1,1", "a,0,1", "c,2,1")), jobs=2)
    assert [job.id for job in workload.jobs] == ["a", "b"]
    assert workload.skipped == {"after the first 2 jobs": 1}


def test_an_empty_log_is_an_empty_workload(file):
    assert load_workload(str(file("; nothing", name="log.swf"))).jobs == []


@pytest.mark.parametrize("size", [0, -1, 2**40])
def test_a_number_of_jobs_has_limits(size):
    with pytest.raises(WorkloadError, match=r"--jobs-limit: .* is not between 1 and 4194304"):
        load_workload("fitgpp", jobs=size)

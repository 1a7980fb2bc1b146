"""What is wrong with a file is said in one line, with file, line and field."""

import gzip

import pytest
from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads import openb
from ebbtide_sim.workloads.curve import load_speedup
from ebbtide_sim.workloads.loading import load_workload
from ebbtide_sim.workloads.nodes import read_cluster

SWF_LINE = "1 0 5 100 4 -1 -1 4 -1 -1 1 7 -1 -1 -1 -1 -1 -1"
OPENB = ",".join(openb.COLUMNS)
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"
POLLUX = "name,time,application,num_replicas,batch_size"
NODES = "node,gpus,gpu_mem_gib,cpus,mem_gib"


def complaint(call, *args, **kwargs):
    with pytest.raises(WorkloadError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def swf_with(position, value):
    cells = SWF_LINE.split()
    cells[position - 1] = value
    return " ".join(cells)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3", "2: line: has 3 fields, SWF has 18"),
        (SWF_LINE + " 9", "2: line: has 19 fields, SWF has 18"),
        (swf_with(1, "x"), "2: job number: 'x' is not a number"),
        (swf_with(1, "1.5"), "2: job number: 1.5 is not a whole number"),
        (swf_with(2, "-1"), "2: submit time: -1 is not between 0 and 1e+12"),
        (swf_with(2, "nan"), "2: submit time: nan is not between 0 and 1e+12"),
        (swf_with(3, "-5"), "2: wait time: -5 is not between 0 and 1e+12, nor -1 for unknown"),
        (swf_with(4, "-100"), "2: run time: -100 is not between 0 and 1e+12, nor -1 for unknown"),
        (swf_with(4, "-0.5"), "2: run time: -0.5 is not between 0 and 1e+12, nor -1 for unknown"),
        (swf_with(4, "inf"), "2: run time: inf is not between 0 and 1e+12, nor -1 for unknown"),
        (swf_with(5, "2.5"), "2: allocated processors: 2.5 is not a whole number"),
        (swf_with(8, "-3"), "2: requested processors: -3 is not between 0 and 1e+12, nor -1 for unknown"),
        (swf_with(11, "nan"), "2: status: nan is not a finite number"),
        (swf_with(18, "late"), "2: think time: 'late' is not a number"),
    ],
)
def test_an_swf_line_is_refused(file, line, message):
    path = file("; header", line, name="log.swf")
    assert complaint(load_workload, str(path)) == f"{path}:{message}"


def test_two_jobs_of_a_log_have_two_numbers(file):
    path = file(SWF_LINE, SWF_LINE, name="log.swf")
    assert complaint(load_workload, str(path)) == f"{path}:2: job number: 1 is the one of line 1, too; must be unique"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"id": ""}, "id: is missing"),
        ({"id": "x" * 200}, "id: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is not up to 128 printable characters"),
        ({"id": "a\x1b[2J"}, "id: 'a\\x1b[2J' is not up to 128 printable characters"),
        ({"submit_s": ""}, "submit_s: is missing"),
        ({"submit_s": "soon"}, "submit_s: 'soon' is not a number"),
        ({"submit_s": "-1"}, "submit_s: -1 is not between 0 and 1e+12"),
        ({"runtime_s": "-60"}, "runtime_s: -60 is not between 0 and 1e+12"),
        ({"runtime_s": "NaN"}, "runtime_s: NaN is not between 0 and 1e+12"),
        ({"runtime_s": "inf"}, "runtime_s: inf is not between 0 and 1e+12"),
        ({"class": "urgent"}, "class: 'urgent' is none of te, be"),
        ({"gpus_min": "4", "gpus_max": "2"}, "gpus_min: 4 is more than the gpus_max of 2"),
        ({"gpus_min": "0", "gpus_max": "2"}, "gpus_min: an elastic job needs more than 0 GPUs at least"),
        ({"gpus_min": "1/0"}, "gpus_min: 1/0 divides by zero"),
        ({"gpus_min": "2/3"}, "gpus_min: 2/3 is neither a whole number of GPUs nor 1/n of one (n at most 16)"),
        ({"gpus_min": "1/17"}, "gpus_min: 1/17 is not a multiple of 1/720720 GPU"),
        ({"gpus_min": "-1"}, "gpus_min: '-1' is neither a number of GPUs nor a share like 1/4"),
        ({"gpus_min": "1e9"}, "gpus_min: '1e9' is neither a number of GPUs nor a share like 1/4"),
        ({"gpus_max": "5000"}, "gpus_max: 5000 is more than the limit of 4096"),
        ({"gpu_mem_gib": "-1"}, "gpu_mem_gib: -1 is not between 0 and 8.38861e+06"),
        ({"cpus": "1e9"}, "cpus: 1e9 is not between 0 and 65536"),
        ({"mem_gib": "x"}, "mem_gib: 'x' is not a number"),
        ({"grace_s": "90000"}, "grace_s: 90000 is not between 0 and 86400"),
        ({"priority": "0"}, "priority: 0 is not between 1 and 99"),
        ({"priority": "1.5"}, "priority: 1.5 is not a whole number"),
        ({"weight": "0"}, "weight: 0 is not between 0.001 and 1000"),
        ({"preemptible": "maybe"}, "preemptible: 'maybe' is none of true, false, yes, no, 1, 0"),
    ],
)
def test_a_line_of_our_csv_is_refused(file, cells, message):
    whole = {"id": "a", "submit_s": "0", "runtime_s": "1"} | cells
    path = file(",".join(whole), ",".join(whole.values()))
    assert complaint(load_workload, str(path)) == f"{path}:2: {message}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,submit_s,runtime_s", "a,0"], "2: line: has 2 cells, but the header has 3 columns"),
        (["id,submit_s,runtime_s", "a,0,1,2"], "2: line: has 4 cells, but the header has 3 columns"),
        (["id,submit_s,runtime_s", "a,0,1", "a,1,1"], "3: id: 'a' is the one of line 2, too; each must be unique"),
        (["id,submit_s", "a,0"], "1: runtime_s: no such column; needed are id,submit_s,runtime_s"),
        (["id,submit_s,runtime_s,runtime_s", "a,0,1,1"], "1: runtime_s: is there twice, each column must be unique"),
        (["id,submit_s,runtime_s", 'a,0,"1'], "2: line: is not CSV: unexpected end of data"),
        ([PHILLY, "yesterday,1,1,1,v"], "2: timestamp: 'yesterday' is not a time like 2017-10-09 07:01:55"),
        ([PHILLY, "2017-10-09 07:01:55,-1,1,1,v"], "2: duration: -1 is not between 0 and 1e+12"),
        ([PHILLY, "2017-10-09 07:01:55,1,,1,v"], "2: num_gpus: is missing"),
        ([PHILLY, "2017-10-09 07:01:55,1,1.5,1,v"], "2: num_gpus: 1.5 is not a whole number"),
        ([PHILLY, "2017-10-09 07:01:55,1,1,x,v"], "2: gpu_time: 'x' is not a number"),
        ([OPENB, "p,1,1,1,1001,,LS,Running,0,1,0"], "2: gpu_milli: 1001 is not between 0 and 1000"),
        ([OPENB, "p,1,1,1,0,,LS,Running,0,1,0"], "2: gpu_milli: 0 is no share of 1 GPUs"),
        ([OPENB, "p,1,1,2,500,,LS,Running,0,1,0"], "2: gpu_milli: 500 of 2 GPUs: only one GPU can be shared"),
        ([OPENB, "p,1,1,1,500,,XL,Running,0,1,0"], "2: qos: 'XL' is none of LS, Guaranteed, BE, Burstable"),
        (
            [OPENB, "p,1,1,1,500,,LS,Running,0,1,5"],
            "2: deletion_time: 1 is before scheduled_time, which makes a negative run time",
        ),
        ([POLLUX, "a,0,gpt,1,8"], "2: application: 'gpt' is none of cifar10, ncf, deepspeech2, bert, yolov3, imagenet"),
        ([POLLUX, "a,0,bert,0,8"], "2: num_replicas: 0 is not between 1 and 4096"),
        (["5,,1,0,,9,,2,0,,,,", "1,,1,0,,0,,2,0,,,,"], "1: event_type: 9 is not between 0 and 8"),
        (["5,,1,0,,0,,2,12,,,,"], "1: priority: 12 is not between 0 and 11"),
        (["5,,1,0,,0,,2,0,,,,", "6,,1,0,,1"], "2: line: has 6 cells, the table has 13"),
        (
            ["5,,1,0,,0,,2,0,,,,", "9,,1,0,,1,,2,0,,,,", "6,,1,0,,4,,2,0,,,,"],
            "3: time: 6 is before the task was scheduled, which makes a negative run time",
        ),
        (["a,b,c", "1,2,3"], "1: header: 'a,b,c' is none of SWF, our CSV, Philly, openb, Pollux or Google"),
        ([], "1: header: '' is none of SWF, our CSV, Philly, openb, Pollux or Google"),
    ],
)
def test_a_file_is_refused(file, lines, message):
    path = file(*lines)
    assert complaint(load_workload, str(path)) == f"{path}:{message}"


def test_an_unknown_column_is_refused_because_it_may_be_a_slip(file):
    path = file("id,submit_s,runtime_s,gpu_max", "a,0,1,2")
    assert complaint(load_workload, str(path)).startswith(f"{path}:1: 'gpu_max': unknown column; known are id,submit_s")


def test_what_is_not_a_workload_is_named(tmp_path, file):
    meant = "fitgp: neither a file nor one of fitgpp, hybrid, bags: did you mean 'fitgpp'?"
    assert complaint(load_workload, "fitgp") == meant
    assert complaint(load_workload, "x" * 5000).endswith("neither a file nor one of fitgpp, hybrid, bags")
    nodes = file("sn,cpu_milli,memory_mib,gpu,model", "n0,1,1,0,")
    assert complaint(load_workload, str(nodes)) == f"{nodes}: lists nodes, not jobs: it is for --cluster"


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "log.swf"
    path.write_bytes(b"\xff\xfe\x00")
    assert complaint(load_workload, str(path)) == f"{path}: is not UTF-8 text"


@pytest.mark.parametrize(
    "content", [b"plain", gzip.compress(SWF_LINE.encode() * 100)[:-20]], ids=["no archive", "cut off"]
)
def test_a_broken_archive_is_refused(tmp_path, content):
    path = tmp_path / "log.swf.gz"
    path.write_bytes(content)
    assert complaint(load_workload, str(path)).startswith(f"{path}: cannot be unpacked: ")


def test_arrival_by_start_is_for_logs_that_know_it(file):
    path = file("id,submit_s,runtime_s", "a,0,1")
    message = complaint(load_workload, str(path), arrival="start")
    assert message == f"--arrival: 'start' is for SWF logs only, {path} is none"
    log = file(SWF_LINE, name="log.swf")
    assert complaint(load_workload, str(log), arrival="end") == "--arrival: 'end' is neither submit nor start"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([NODES], " has no nodes, a cluster needs at least one"),
        ([NODES, "a,1.5,1,1,1"], "2: gpus: 1.5 is not a whole number"),
        ([NODES, "a,2000,1,1,1"], "2: gpus: 2000 is not between 0 and 1024"),
        ([NODES, "a,1,-1,1,1"], "2: gpu_mem_gib: -1 is not between 0 and 8.38861e+06"),
        ([NODES, "a,1,1,1,1", "a,1,1,1,1"], "3: node: 'a' is the one of line 2, too; each must be unique"),
        ([NODES + ",count", "a,1,1,1,1,0"], "2: count: 0 is not between 1 and 100000"),
        ([NODES + ",count", "a,1,1,1,1,99999", "b,1,1,1,1,2"], "3: count: 100001 nodes are over the limit of 100000"),
        (
            [NODES + ",count", "a-0,1,1,1,1,", "a,1,1,1,1,1"],
            "3: node: 'a-0' is the one of line 2, too; each must be unique",
        ),
        ([NODES + ",speed", "a,1,1,1,1,0"], "2: speed: 0 is not more than 0"),
        (
            ["sn,cpu_milli,memory_mib,gpu,model", "a,1,1,1,B9"],
            "2: model: 'B9' is none of P100, T4, V100M16, V100M32, A10, G1, G2, G3",
        ),
    ],
)
def test_a_cluster_file_is_refused(file, lines, message):
    path = file(*lines)
    assert complaint(read_cluster, path) == f"{path}:{message}"


def test_a_cluster_file_must_be_there(tmp_path):
    path = tmp_path / "none.csv"
    assert complaint(read_cluster, path) == f"{path}: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["gpus,speedup", "1,1", "2,x"], "3: speedup: 'x' is not a number"),
        (["gpus,speedup", "1,1", "1,1"], "3: gpus: 1 is not more than in the line before"),
        (["gpus,speedup", "1,1", "2,0.5"], "3: speedup: 0.5 is less than the 1 of fewer GPUs; it must not fall"),
        (["gpus,speedup", "0,1"], "2: gpus: 0 is not more than 0"),
        (["gpus,speedup", "1,0"], "2: speedup: 0 is not more than 0"),
        (["gpus,speedup", "2,nan"], "2: speedup: nan is not between 0 and 1e+06"),
        (["gpus,speedup", "1,2"], " the speed at 1 GPU is 2, it must be 1"),
        (["gpus,speedup", "2,2.5"], " the speed at 1 GPU is 1.25, it must be 1"),
        (["gpus,speedup"], " the speed at 1 GPU is unknown, it must be 1"),
        (["gpus,speed", "1,1"], "1: speedup: no such column; needed are gpus,speedup"),
    ],
)
def test_a_speed_up_file_is_refused(file, lines, message):
    path = file(*lines)
    assert complaint(load_speedup, str(path)) == f"{path}:{message}"


def test_an_unknown_speed_up_names_the_known_ones():
    message = complaint(load_speedup, "log")
    assert message == "log: neither a file nor one of linear, dl-sublinear, pollux-resnet18, pollux-bert"


def test_jobs_of_a_workload_are_in_order():
    jobs = [SimJob(id="a", submit_s=1.0, runtime_s=1.0), SimJob(id="b", submit_s=0.0, runtime_s=1.0)]
    assert complaint(Workload, "w", jobs) == "w: jobs: 'b' is listed after 'a', but came earlier"

"""Values as sbatch takes them, and lines as it reads them."""

from fractions import Fraction

import pytest
from ebbtide_cli.errors import Failure
from ebbtide_cli.submitting.slurm import values
from ebbtide_cli.submitting.slurm.lines import read_lines
from ebbtide_cli.submitting.slurm.options import OPTIONS
from ebbtide_cli.submitting.slurm.translation import translate
from ebbtide_cli.submitting.slurm.values import GpuRequest
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("2-12:30:15", 217_815),
        ("0", None),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_times_are_minutes_unless_they_say_otherwise(text, seconds):
    assert values.minutes_or_more(text) == seconds


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("4000", 4000), ("16G", 16_384), ("1T", 2**20), ("2048K", 2), ("32GB", 32_768)]
)
def test_sizes_are_mebibytes_unless_they_say_otherwise(text, mebibytes):
    assert values.memory(text) == mebibytes * 2**20


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu", GpuRequest(Fraction(1))),
        ("gpu:4", GpuRequest(Fraction(4))),
        ("gpu:a100", GpuRequest(Fraction(1), "a100")),
        ("gpu:a100:2(S:0-1)", GpuRequest(Fraction(2), "a100")),
        ("gres/gpu=2", GpuRequest(Fraction(2))),
        ("none", None),
        ("mps:100", GpuRequest(Fraction(1))),
        ("mps:25", GpuRequest(Fraction(1, 4))),
        ("mps:30", GpuRequest(Fraction(1, 3))),
        ("mps:1", GpuRequest(Fraction(1, 16))),
    ],
)
def test_generic_resources_are_gpus_or_parts_of_one(text, gpus):
    assert values.gres(text) == gpus


@pytest.mark.parametrize(
    "text", ["gpu:a100:x", "gpu:v100:1,gpu:a100:1", "mps:0", "craynetwork:2", "shard:1", "gpu:a b:1"]
)
def test_other_generic_resources_are_not_known(text):
    with pytest.raises(ValueError, match=r".+"):
        values.gres(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("n[1,3-4]x", ["n1x", "n3x", "n4x"]),
    ],
)
def test_lists_of_nodes_are_written_out(text, names):
    assert values.hosts(text) == names


def asked(*lines: str) -> dict[str, str]:
    script = "\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines)])
    return {name: one.value for name, one in read_lines("job.sh", script).items()}


def test_options_are_long_or_short_and_the_last_one_counts():
    assert asked("-N2 -n 4 --time=1:00 --mem 4G", "--nodes=3") == {
        "ntasks": "4",
        "time": "1:00",
        "mem": "4G",
        "nodes": "3",
    }
    assert asked("-HQ -J 'two words' --ntasks-per-n 2") == {
        "hold": "", "quiet": "", "job-name": "two words", "ntasks-per-node": "2",
    }  # fmt: skip
    assert asked("-J a#1 --gpus=4 #--mem=4G") == {"job-name": "a#1", "gpus": "4"}
    assert asked("--nice --no-kill=off --exclusive=user --export=NONE # why") == {
        "nice": "", "no-kill": "off", "exclusive": "user", "export": "NONE",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--time", "job.sh:2: #SBATCH --time needs a value"),
        ("-N", "job.sh:2: #SBATCH -N needs a value"),
        ("--hold=1", "job.sh:2: #SBATCH --hold takes no value"),
        ("--nonsense=1", "job.sh:2: sbatch has no option --nonsense"),
        ("--mem-=1", "job.sh:2: sbatch has several options that begin with --mem-"),
        ("-y", "job.sh:2: sbatch has no option -y"),
        ("gpus=2", "job.sh:2: #SBATCH 'gpus=2' is no option"),
        ("--comment='a", "job.sh:2: no closing quotation"),
        ("packjob", "job.sh:2: heterogeneous jobs are not known here"),
        ("--signal=B:", "job.sh:2: #SBATCH --signal: 'B:' is not a signal"),
        ("--signal=99@10", "job.sh:2: #SBATCH --signal: there is no signal 99"),
        ("--dependency=after:1", "job.sh:2: #SBATCH --dependency: 'after:1': there are afterok"),
        ("--dependency=afterok:1?afterok:2", "job.sh:2: #SBATCH --dependency: a job waits for all"),
        ("--constraint=[a*2]", "job.sh:2: #SBATCH --constraint: only one feature"),
        ("--mail-type=SOMETIMES", "job.sh:2: #SBATCH --mail-type: 'SOMETIMES' is not known"),
        ("--output=x.%s", "job.sh:2: #SBATCH --output: %s is not known in file names"),
        ("--nodes=4-2", "job.sh:2: #SBATCH --nodes: '4-2' begins above its end"),
        ("--ntasks=0", "job.sh:2: #SBATCH --ntasks: '0' is not a number from 1"),
        ("--mem=lots", "job.sh:2: #SBATCH --mem: 'lots' is not a size"),
        ("--array=a", "job.sh:2: #SBATCH --array: 'a' is not a list of indices"),
        ("--nodelist=n[1-", "job.sh:2: #SBATCH --nodelist: "),
        ("--exclude=n[1,5-3]", "job.sh:2: #SBATCH --exclude: 'n[1,5-3]': 5-3 begins above its end"),
    ],
)
def test_a_mistake_names_its_line(line, reason):
    with pytest.raises(Failure) as failure:
        translate("job.sh", f"#!/bin/sh\n#SBATCH {line}\n")
    assert failure.value.message.startswith(reason)


def words(*lines: str) -> str:
    """The options that lines become, without the environment."""
    script = "\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines)])
    directives = translate("job.sh", script).directives
    return " ".join(word for directive in directives[:-1] for word in directive.words if "SLURM_" not in word)


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (["--gpus=8 --gpus-per-node=4"], "--nodes 2 --gpus 8"),
        (["--ntasks=8 --ntasks-per-node=4 --gpus-per-task=1"], "--nodes 2 --gpus 8 --cpus 4"),
        (["-N1-3 --gpus=4"], "--nodes 1-3 --gpus 4"),
        (["-N2-3 --gres=gpu:1"], "--nodes 2 --gpus 2"),
        (["--gpus=a100:2 --cpus-per-gpu=4 --mem-per-gpu=8G"], "--gpus 2 --gpu-type a100 --cpus 8 --mem 16384MiB"),
        (["--gres=gpu:0"], "--cpu-only"),
        (["--gres=gpu:1 --signal=10"], "--gpus 1 --signal USR1 --grace 60s"),
        (["--gres=gpu:1 -o /dev/null -e x.err"], "--gpus 1"),
        (["--gres=gpu:1 --constraint=nvlink|ib"], "--gpus 1 --select feature=nvlink|ib"),
        (["--gres=gpu:1 --begin=16:00"], "--gpus 1 --begin 16:00"),
        (["--gres=gpu:1 --begin=noon -W --test-only"], "--gpus 1 --begin 12:00 --wait --dry-run"),
        (["--gres=gpu:1 --mail-type=ALL"], "--gpus 1"),
        (["--gres=gpu:1 --mail-type=FAIL --mail-user=a@b"], "--gpus 1 --notify failed=mailto:a@b"),
        (["--gres=gpu:1 --dependency=afternotok:3_2"], "--gpus 1 --after afternotok:3.2"),
    ],
)
def test_lines_become_options(lines, options):
    assert words(*lines) == options


@pytest.mark.parametrize(
    ("line", "noted"),
    [("-e x.err", True), ("-o x.out -e x.err", True), ("-e /dev/null", True), ("-o x.log -e x.log", False)],
)
def test_errors_that_would_have_a_file_of_their_own_are_said_to_have_none(line, noted):
    notes = translate("job.sh", f"#!/bin/sh\n#SBATCH --gpus=1 {line}\n").notes
    assert notes == ["job.sh:2: #SBATCH --error: not used: stderr goes where stdout goes"] * noted


def test_a_script_that_requeues_itself_has_no_limit_over_all_its_runs():
    translated = translate("job.sh", "#!/bin/sh\n#SBATCH --time=10\n#SBATCH --gpus=1\nscontrol requeue $SLURM_JOB_ID\n")
    assert "--time" not in [word for directive in translated.directives for word in directive.words]
    assert translated.notes[0].startswith("job.sh:2: #SBATCH --time: not used: the script requeues itself")


def exported(monkeypatch, line: str, **variables: str) -> list[str]:
    monkeypatch.setattr("os.environ", variables)
    last = translate("job.sh", f"#!/bin/sh\n#SBATCH {line}\n").directives[-1].words
    return [word for word in last if word != "--env" and not word.startswith("SLURM_")]


def test_the_environment_is_passed_on_as_the_script_says(monkeypatch):
    here = {"WANDB_API_KEY": "s", "LC_ALL": "C"}
    assert exported(monkeypatch, "--mem=1G", **here) == ["--env-all"]
    assert exported(monkeypatch, "--export=NONE", **here) == []
    assert exported(monkeypatch, "--export=LC_ALL,A=b=c,MISSING", **here) == ["LC_ALL", "A=b=c"]
    assert exported(monkeypatch, "--export=ALL,A=1", **here) == ["--env-all", "A=1"]


def test_no_option_is_there_twice():
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)
    letters = [option.short for option in OPTIONS if option.short]
    assert len(set(letters)) == len(letters)


@given(st.sampled_from(sorted(option.name for option in OPTIONS)), st.text(max_size=20))
def test_no_value_of_any_option_makes_a_traceback(name, value):
    assert refusal(f"--{name}={value}")[:7] in ("", "job.sh:")


def refusal(line: str) -> str:
    """What is said of a line; empty if it is taken."""
    try:
        translate("job.sh", f"#!/bin/sh\n#SBATCH {line}\n")
    except Failure as failure:
        return failure.message
    return ""

"""What the file of `--output` is called."""

import re

import pytest
from ebbtide_core.model.output_name import check, expand
from ebbtide_core.model.spec import JobSpec, SpecError, validate


@pytest.mark.parametrize(
    ("pattern", "job", "name"),
    [
        ("train.log", "17", "train.log"),
        ("%x-%j.out", "17", "train.py-17.out"),
        ("%A/%a-%N.out", "17.3", "17/3-n1.out"),
        ("slurm", "17", "slurm-17.out"),
        ("slurm", "17.3", "slurm-17_3.out"),
        ("100%%", "17", "100%"),
        ("%a", "17", "0"),
    ],
)
def test_names_are_slurms(pattern, job, name):
    assert expand(pattern, job, "train.py", "n1", "n1") == name


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", ""])
def test_a_jobs_name_is_one_component_of_the_path(name):
    assert "/" not in expand("%x", "17", name, "n1", "n1").replace("_", "")
    assert expand("%x", "17", name, "n1", "n1") not in ("", ".", "..")


@pytest.mark.parametrize("pattern", ["%t.out", "50%"])
def test_what_is_not_known_is_refused(pattern):
    with pytest.raises(ValueError, match=re.escape("is not known: there are %j, %A, %a, %x, %N, %%")):
        check(pattern)
    with pytest.raises(SpecError, match=r"^--output: "):
        validate(JobSpec(command=("x",), workdir="/", output=pattern))


def test_of_several_nodes_only_the_first_writes_unless_each_has_a_file_of_its_own():
    assert expand("%j.out", "17", "x", "n2", "n1") == ""
    assert expand("%j-%N.out", "17", "x", "n2", "n1") == "17-n2.out"

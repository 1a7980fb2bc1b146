"""What is said of scripts that were changed between submit and start."""

from ebbtide_core.job.edited_scripts import running


def test_a_job_runs_and_its_edited_scripts_are_named():
    assert running(()) == "running"
    assert running(("a.py",)) == "running; a.py was edited since submit"
    assert running(("a.py", "b.sh")) == "running; a.py, b.sh were edited since submit"

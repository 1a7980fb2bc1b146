"""All topics together: the options of a job, and the job that they amount to."""

from functools import reduce
from typing import Any, Final, TypeVar

from ebbtide_core.model.spec import JobSpec

from ebbtide_cli.submitting import (
    array,
    environments,
    halving,
    idleness,
    notices,
    passing,
    pools,
    printing,
    resources,
    running,
    snapshots,
    standing,
    stepping_aside,
    sweep,
    templates,
    waiting,
    whereabouts,
)
from ebbtide_cli.submitting.checks import check
from ebbtide_cli.submitting.topic import Given, Topic

Command = TypeVar("Command")

TOPICS: Final[tuple[Topic, ...]] = (
    running,
    passing,
    resources,
    pools,
    whereabouts,
    standing,
    waiting,
    array,
    sweep,
    halving,
    stepping_aside,
    environments,
    snapshots,
    printing,
    notices,
    templates,
    idleness,
)
"""In the order in which the help shows their options."""


def job_options(command: Command) -> Command:
    """Give ``command`` every option that says what a job is."""
    options = [option for topic in TOPICS for option in topic.OPTIONS]
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def job_spec(given: Given) -> JobSpec:
    """The job that was asked for; `Failure` names the option that is wrong, and the limit."""
    fields: dict[str, Any] = {}
    for topic in TOPICS:
        fields |= topic.fields(given)
    return check(JobSpec(**fields))

"""All topics together: the options of a job, and the job that they amount to."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final, TypeVar

from ebbtide_core.spec import JobSpec

from ebbtide_cli.submitting import (
    array,
    environments,
    halving,
    pools,
    resources,
    running,
    standing,
    stepping_aside,
    templates,
    waiting,
    whereabouts,
)
from ebbtide_cli.submitting.checks import check
from ebbtide_cli.submitting.topic import Given, Topic

Command = TypeVar("Command")

TOPICS: Final[tuple[Topic, ...]] = (
    running,
    resources,
    pools,
    whereabouts,
    standing,
    waiting,
    array,
    halving,
    stepping_aside,
    environments,
    templates,
)
"""In the order in which the help shows their options."""


ONE_JOB: Final = tuple(topic for topic in TOPICS if topic not in (array, halving, templates))
"""Those that say what one job is, each by itself."""


def job_options(command: Command) -> Command:
    """Give ``command`` every option that says what a job is."""
    return _with_options(TOPICS, command)


def one_job_options(command: Command) -> Command:
    """Give ``command`` those of them that have a meaning for a job which somebody waits for."""
    return _with_options(ONE_JOB, command)


def _with_options(topics: Sequence[Topic], command: Command) -> Command:
    options = [option for topic in topics for option in topic.OPTIONS]
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def job_spec(given: Given, topics: Sequence[Topic] = TOPICS) -> JobSpec:
    """The job that was asked for; `Failure` names the option that is wrong, and the limit."""
    fields: dict[str, Any] = {}
    for topic in topics:
        fields |= topic.fields(given)
    return check(JobSpec(**fields))

"""Combine the options of all topics, and build from them a job, and the request that submits it."""

import dataclasses
import os
from collections.abc import Callable
from functools import reduce
from typing import Any, Final, TypeVar

import click
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_protos.spec import spec_to_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.sections import help_all_option
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.address import Address
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
from ebbtide_cli.submitting.array import array_limits
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.submitting.startable import check_start
from ebbtide_cli.submitting.sweep import array_tasks
from ebbtide_cli.submitting.topic import Given, Topic

Command = TypeVar("Command")

TOPICS: Final[tuple[Topic, ...]] = (
    resources,
    pools,
    whereabouts,
    running,
    passing,
    environments,
    snapshots,
    standing,
    waiting,
    array,
    sweep,
    halving,
    stepping_aside,
    idleness,
    printing,
    notices,
    templates,
)
"""All topics, in the order in which the help shows their options."""
DAILY: Final = frozenset(
    {
        *("--gpus", "--nodes", "--gpu-mem", "--cpus", "--mem"),
        *("--name", "--workdir", "--launch", "--retries", "--env", "--venv", "--conda", "--snapshot"),
        *("--te", "--priority", "--after", "--array", "--time", "--grace", "--output"),
    }
)
"""The options that ``--help`` shows; the others are for special cases, and ``--help-all`` shows them, too."""
_NAMES: Final = tuple(field.name for field in dataclasses.fields(JobSpec))
_FOLLOWING: Final[tuple[Callable[[Given], dict[str, Any]], ...]] = (
    running.fields,
    passing.fields,
    resources.fields,
    whereabouts.fields,
    standing.fields,
    waiting.fields,
    halving.fields,
    stepping_aside.fields,
    environments.fields,
    snapshots.fields,
)
"""Functions that give those fields of a `JobSpec` for which no single option of the same name exists."""


def job_options(command: Command) -> Command:
    """Give ``command`` every option that describes a job."""
    options = [option for topic in TOPICS for option in topic.OPTIONS]
    options.append(help_all_option)
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def sections() -> dict[str, list[str]]:
    """Return the options, each by the first of its names, by section of the help and in its order."""
    found: dict[str, list[str]] = {}
    for topic in TOPICS:
        owner = click.Command(None)
        for option in topic.OPTIONS:
            option(owner)
        found.setdefault(topic.TITLE, []).extend(parameter.opts[0] for parameter in owner.params)
    return found


def job_spec(given: Given) -> JobSpec:
    """Build the requested job; an option gives the field of its name. `Failure` names what is wrong."""
    fields = {name: given[name] for name in _NAMES if given.get(name) is not None}
    for following in _FOLLOWING:
        fields |= following(given)
    spec = JobSpec(**fields)
    return check(dataclasses.replace(spec, env={**_slurm_variables(spec), **spec.env}) if spec.slurm else spec)


def _slurm_variables(spec: JobSpec) -> dict[str, str]:
    """Return those of Slurm's variables that say what the job asks for, wherever it does so."""
    said = {"SLURM_JOB_NAME": spec.name, "SLURM_JOB_PARTITION": spec.pool}
    return {
        **{name: value for name, value in said.items() if value},
        **({"SLURM_MEM_PER_NODE": str(spec.mem_bytes // 2**20)} if spec.mem_bytes else {}),
    }


def submit_request(
    master: str | Address | None, given: Given, *, hold: bool, dry_run: bool = False
) -> client_pb2.SubmitRequest:
    """Return the request for the job that the options describe; `Failure` names the option that is wrong."""
    spec = job_spec(given)
    tasks = array_tasks(given, spec)
    if spec.slurm and tasks:
        spec = dataclasses.replace(spec, env={"SLURM_ARRAY_TASK_COUNT": str(len(tasks)), **spec.env})
    request = client_pb2.SubmitRequest(
        spec=spec_to_message(spec),
        hold=hold,
        operation_id=os.urandom(16).hex(),
        dry_run=dry_run,
        user=user_name(),
        **array_limits(given),
        tasks=tasks,
    )
    check_start(master, spec, waits=hold or bool(spec.after or spec.begin_at))
    return request


def check(spec: JobSpec) -> JobSpec:
    """Return ``spec`` if it can be sent; the failure names the option and the limit."""
    try:
        validate(spec)
    except SpecError as error:
        raise Failure(f"submit: {error}", USAGE) from None
    return spec

"""Build interactive jobs: they start soon, are not preempted, and end when unused."""

import os
from dataclasses import replace
from typing import Any, Final

import click
from click.core import ParameterSource
from ebbtide_core.model.choices import JobClass, JobKind, SuspendMode
from ebbtide_core.model.spec import JobSpec
from ebbtide_protos.quantities import parse_duration
from ebbtide_protos.spec import spec_to_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import argument_type
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.submitting.job import check, job_spec
from ebbtide_cli.submitting.sending import send
from ebbtide_cli.submitting.topic import Given
from ebbtide_cli.terminal.output import complain

SESSION_GRACE_S: Final = 10.0
NEVER: Final = "never"
OF_MANY: Final = {
    "array": "--array",
    "params": "--param",
    "param_file": "--param-file",
    "sample": "--sample",
    "asha": "--asha",
    "max_concurrent": "--max-concurrent",
    "max_slots": "--max-slots",
}
"""Options that submit several jobs, which an interactive user has no use for."""
IDLE: Final = argument_type("time", lambda text: NEVER if text == NEVER else parse_duration(text))

idle_option: Final = click.option(
    "--idle",
    metavar="TIME|never",
    type=IDLE,
    help=(
        "End the session, after a warning, when it was unused for this long (default: 8h, unless the "
        "cluster is configured otherwise)."
    ),
)


def interactive_spec(given: Given, kind: JobKind, argv: tuple[str, ...], name: str = "") -> JobSpec:
    """Build the job from a submit's options: trial-and-error and not preemptible unless the options say otherwise."""
    if many := next((option for name, option in OF_MANY.items() if given.get(name)), ""):
        raise Failure(f"{many}: an array is for 'ebb submit'", USAGE)
    chosen: dict[str, Any] = {**given, "argv": argv, "name": given["name"] or name or None}
    spec = job_spec(chosen)
    stays = kind.is_session or not (said("urgent") or said("suspend"))
    if stays and not said("suspend"):
        spec = replace(spec, suspend=SuspendMode.NONE)
    if not said("urgent"):
        spec = replace(spec, job_class=JobClass.TRIAL_AND_ERROR)
    if kind.is_session:
        idle = given["idle"]
        spec = replace(spec, idle_limit_s=None if idle == NEVER else idle, warm=False)
        spec = spec if said("grace_s") else replace(spec, grace_s=SESSION_GRACE_S)
    return check(replace(spec, kind=kind))


def with_input(spec: JobSpec) -> JobSpec:
    """Return the job with standard input. `Failure` for an option that could make the job start a second time."""
    if spec.suspend is not SuspendMode.NONE and not said("suspend"):
        option = "--te" if spec.job_class is JobClass.TRIAL_AND_ERROR else "--be"
        raise Failure(
            f"run: {option}: the job could be suspended, and standard input, which is piped or redirected here, cannot "
            "be read a second time: add --suspend none, or </dev/null to do without standard input",
            USAGE,
        )
    return check(replace(spec, stdin=True))


def queue(master: str | None, spec: JobSpec) -> str:
    """Submit the job, and return its id."""
    message, operation = spec_to_message(spec), os.urandom(16).hex()
    if click.get_current_context().params.get("idle") == NEVER:
        message.idle_limit_s = 0.0  # an unset limit would mean the one of the cluster's configuration
    request = client_pb2.SubmitRequest(spec=message, operation_id=operation, user=user_name())
    reply = send(master, request)
    for warning in reply.warnings:
        complain(f"warning: {warning}")
    return reply.job_id


def said(option: str) -> bool:
    """Whether the user gave this option of the verb."""
    return click.get_current_context().get_parameter_source(option) not in (None, ParameterSource.DEFAULT)

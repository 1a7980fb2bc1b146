"""Converts a job's request and its GPU shares between the wire and the core.

A field of `JobSpec` is sent as the field of the same name (see `ebbtide_protos.mapping`); `WIRES` has the exceptions.
"""

from functools import lru_cache, partial
from math import gcd
from typing import Final

from ebbtide_core.model.choices import WHOLE, JobKind, parts
from ebbtide_core.model.dependency import Dependency
from ebbtide_core.model.log_rules import LogRule
from ebbtide_core.model.spec import JobSpec, SpecError
from ebbtide_core.model.spec.halving import Asha, Mode
from ebbtide_core.model.workdir_snapshot import SnapshotRef

from ebbtide_protos.mapping import Mapper, Wire, Wires, negated
from ebbtide_protos.v1 import job_pb2


def share_to_parts(field: str, share: job_pb2.Share) -> int:
    """Return a share of GPUs in parts. Raises `SpecError`, which names ``field``, if it is not a valid share."""
    if share.denominator == 0:
        raise SpecError(field, "is not a number of GPUs")
    try:
        return _parts(share.numerator, share.denominator)
    except ValueError as error:
        raise SpecError(field, f"{error} (1/n needs n of at most 16)") from None


def parts_to_share(count: int) -> job_pb2.Share:
    """Return a number of parts as a share of GPUs."""
    common = gcd(count, WHOLE)
    return job_pb2.Share(numerator=count // common, denominator=WHOLE // common)


@lru_cache  # most jobs have one of a few sizes
def _parts(numerator: int, denominator: int) -> int:
    from fractions import Fraction

    return parts(Fraction(numerator, denominator))


_SHARE: Final = Wire(write=lru_cache(parts_to_share), read=partial(share_to_parts, "--gpus"))
WIRES: Final[Wires] = {
    JobSpec: {
        "gpus_min": _SHARE,
        "gpus_max": _SHARE,
        "warm": negated("cold"),
        "sdk": negated("no_sdk"),
        "job_class": Wire(option="--class"),
        "exit_zero": Wire(option="--exit0"),
        "log_rules": Wire(option="--on-log"),
        "kind": Wire(option="kind"),
    },
    Asha: {
        "mode": Wire(name="maximise", write=lambda mode: mode is Mode.MAX, read=lambda most: Mode.MAX),
        "metric": Wire(zero=True),
        "eta": Wire(zero=True),
    },
    Dependency: {"job": Wire(name="job_id")},
}
"""The fields that differ on the wire, and the names in errors of fields whose option has another name."""

_BESIDE: Final = ("spread", "work_s")
"""Fields that are not sent: `spread` follows from `max_nodes`, and only the simulator knows `work_s`."""

LOG_RULES: Final = Mapper(LogRule, job_pb2.LogRule, option="--on-log")
SNAPSHOTS: Final = Mapper(SnapshotRef, job_pb2.Snapshot, option="--snapshot")
_SPECS: Final = Mapper(JobSpec, job_pb2.JobSpec, WIRES, beside=_BESIDE)


def spec_from_message(message: job_pb2.JobSpec) -> JobSpec:
    """Return the requested job. Raises `SpecError` for a value without any meaning; `validate` checks the rest."""
    values = _SPECS.values(message)
    if "gpus_min" in values:
        values.setdefault("gpus_max", values["gpus_min"])
    if values.get("idle_limit_s") == 0:  # no limit; the master distinguishes 0 from a field that was left out
        del values["idle_limit_s"]
    return JobSpec(**values, spread=message.max_nodes > 1)


def spec_to_message(spec: JobSpec) -> job_pb2.JobSpec:
    """Return the message for a job's request."""
    message = _SPECS.to_message(spec)
    if not spec.spread:
        message.ClearField("max_nodes")
    if spec.kind is JobKind.BATCH:  # older versions, without other kinds, do not send the field
        message.ClearField("kind")
    return message

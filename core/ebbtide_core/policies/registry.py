"""Creates policies from their names and from options given as text."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Final

from ebbtide_core.model.spelling import choices, none_of
from ebbtide_core.planning.policy import Policy
from ebbtide_core.policies.baselines import Lrtp, Rand
from ebbtide_core.policies.equipartition import MalleableEquipartition, MoldableEquipartition
from ebbtide_core.policies.fair_share import FairShare
from ebbtide_core.policies.fifo import Fifo
from ebbtide_core.policies.fitgpp import FitGpp
from ebbtide_core.policies.hybrid import Hybrid, Pri, PriLimit
from ebbtide_core.policies.priority import Priority
from ebbtide_core.policies.proportional import MalleableProportional, MoldableProportional
from ebbtide_core.policies.reservation import Reservation
from ebbtide_core.policies.rigid import RigidFcfs, RigidShortest
from ebbtide_core.policies.tide import Tide


class PolicyError(ValueError):
    """Raised for an unknown policy, or an option that the policy does not take."""


POLICIES: Final[dict[str, type[Policy]]] = {
    "fair-share": FairShare,
    "fifo": Fifo,
    "fitgpp": FitGpp,
    "lrtp": Lrtp,
    "malleable-equipartition": MalleableEquipartition,
    "malleable-proportional": MalleableProportional,
    "moldable-equipartition": MoldableEquipartition,
    "moldable-proportional": MoldableProportional,
    "rand": Rand,
    "hybrid": Hybrid,
    "pri": Pri,
    "pri-limit": PriLimit,
    "priority": Priority,
    "reservation": Reservation,
    "rigid-fcfs": RigidFcfs,
    "rigid-shortest": RigidShortest,
    "tide": Tide,
}


def create_policy(name: str, options: Mapping[str, str]) -> Policy:
    """Build policy ``name`` with ``options`` given as text; `PolicyError` names what is wrong."""
    if name not in POLICIES:
        raise PolicyError(f"--policy: {none_of(name, POLICIES)}")
    kind: Callable[..., Policy] = POLICIES[name]
    types = typing.get_type_hints(kind)
    known = {key: types[key] for key in option_names(name)}
    values = {}
    for key, text in options.items():
        if key not in known:
            raise PolicyError(f"--policy-option: {name} has no {key!r}; it has {choices(key, known)}")
        values[key] = _parse(key, text, known[key])
    try:
        policy = kind(**values)
    except ValueError as error:
        raise PolicyError(f"--policy-option: {error}") from None
    return policy


def name_of(policy: Policy) -> str:
    """Return the name of ``policy``."""
    return next(name for name, kind in POLICIES.items() if type(policy) is kind)


def option_names(name: str) -> tuple[str, ...]:
    """Return the names of the options that policy ``name`` takes."""
    kind: object = POLICIES[name]
    assert dataclasses.is_dataclass(kind)
    return tuple(field.name for field in dataclasses.fields(kind))


def _parse(key: str, text: str, kind: object) -> object:
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        if text == "none":
            return None
        kind = next(argument for argument in arguments if argument is not type(None))
    if typing.get_origin(kind) is typing.Literal:
        if text in typing.get_args(kind):
            return text
        raise PolicyError(f"--policy-option: {key} is one of {', '.join(typing.get_args(kind))}, not {text!r}")
    parsers: dict[object, Callable[[str], object]] = {int: int, float: float, str: str}
    try:
        return parsers[kind](text)
    except ValueError:
        raise PolicyError(f"--policy-option: {key} takes a number, not {text!r}") from None

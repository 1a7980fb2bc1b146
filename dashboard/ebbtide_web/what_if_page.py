"""Which simulations the page "what if" asks for, the choices that it offers, and the facts of a result. Pure."""

import dataclasses
import json
import re
import shlex
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_core.model.settings import DEFAULT_POLICY
from ebbtide_core.policies.registry import POLICIES, PolicyError, create_policy, option_names

OPTION: Final = "o."
"""What the names of a policy's options begin with in the page's address."""
LONGEST_OPTION: Final = 40
MOST_POLICIES: Final = 4
"""Policies that one address compares."""
_LATEST: Final = 253402300800
"""The end of the year 9999."""
_NODES: Final = re.compile(r"[1-9]\d{0,4}x\d{1,3}")


@dataclass(frozen=True, slots=True)
class WantedWhatIf:
    """One simulation: a policy with options, a span in Unix seconds, and perhaps other machines.

    A bound of 0 is none: the span begins with the first job then, or ends now. ``nodes`` is such as ``4x8``; empty
    stands for the cluster's own.
    """

    policy: str = DEFAULT_POLICY
    options: tuple[tuple[str, str], ...] = ()
    since: int = 0
    until: int = 0
    nodes: str = ""

    @property
    def label(self) -> str:
        """What the simulation is called beside others: its policy, with the options that it was given."""
        return ", ".join([self.policy, *(f"{name} = {text}" for name, text in self.options)])

    def mistake(self) -> str:
        """Return what is wrong with the options or the span, in words; empty if nothing is."""
        if self.until and self.since >= self.until:
            return "the time from which it begins is not before the time at which it ends"
        try:
            create_policy(self.policy, dict(self.options))
        except PolicyError as error:
            return str(error)
        return ""

    def arguments(self) -> list[str]:
        """Return the arguments of ``ebb replay`` that ask for the same."""
        found = ["--policy", self.policy]
        for name, text in self.options:
            found += ["--policy-option", f"{name}={text}"]
        found += ["--since", f"@{self.since}"] if self.since else []
        found += ["--until", f"@{self.until}"] if self.until else []
        return found + (["--nodes", self.nodes] if self.nodes else [])

    def command(self) -> str:
        """Return the command that does the same on the master's machine."""
        return shlex.join(["ebb", "replay", *self.arguments()])

    def configuration(self) -> list[str]:
        """Return the lines of the configuration file that schedule a pool so."""
        options = ", ".join(f"{name} = {json.dumps(text)}" for name, text in self.options)
        lines = ["[pools.default]", f"policy = {json.dumps(self.policy)}"]
        return [*lines, f"options = {{{options}}}"] if options else lines


def read_what_ifs(query: Iterable[tuple[str, str]]) -> tuple[WantedWhatIf, ...]:
    """Read the query of an address, in its order: one to `MOST_POLICIES` simulations of the same span and machines.

    Options belong to the policy before them. What makes no sense is as if it were not there, as is what comes twice.
    """
    asked: list[tuple[str, dict[str, str]]] = []
    shared = dict[str, str]()
    for name, text in query:
        if name == "policy":
            asked.append((text if text in POLICIES else DEFAULT_POLICY, {}))
        elif not name.startswith(OPTION):
            shared.setdefault(name, text)
        elif asked:
            asked[-1][1].setdefault(name.removeprefix(OPTION), text.strip())
    nodes = shared.get("nodes", "").strip()
    span = _seconds(shared.get("since", "")), _seconds(shared.get("until", ""))
    found = [
        WantedWhatIf(policy, _known(policy, options), *span, nodes if _NODES.fullmatch(nodes) else "")
        for policy, options in asked or [(DEFAULT_POLICY, {})]
    ]
    return tuple(dict.fromkeys(found))[:MOST_POLICIES]


def mistake_of(wanted: Sequence[WantedWhatIf]) -> str:
    """Return what is wrong with simulations that are to be compared, in words; empty if nothing is."""
    if len(wanted) > 1 and not wanted[0].until:
        return "policies are compared up to the same time: choose when it ends"
    for each in wanted:
        if mistake := each.mistake():
            return f"{each.policy}: {mistake}" if len(wanted) > 1 else mistake
    return ""


def _known(policy: str, options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = ((name, options.get(name, "")) for name in option_names(policy))
    return tuple((name, text) for name, text in found if text and _is_plain(text))


def _is_plain(text: str) -> bool:
    return len(text) <= LONGEST_OPTION and text.isprintable() and text.isascii()


def _seconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 13 and int(text) < _LATEST else 0


@dataclass(frozen=True, slots=True)
class OfferedOption:
    """An option of a policy: its default as text, and the values that it may have; none: any number."""

    name: str
    default: str
    choices: tuple[str, ...]


def offered_policies() -> dict[str, list[OfferedOption]]:
    """Return the options of each policy, by its name."""
    return {name: _offered(name) for name in sorted(POLICIES)}


def _offered(policy: str) -> list[OfferedOption]:
    kind: Any = POLICIES[policy]
    types = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        is_choice = typing.get_origin(types[field.name]) is typing.Literal
        choices = typing.get_args(types[field.name]) if is_choice else ()
        found.append(OfferedOption(field.name, _as_text(field.default), choices))
    return found


def _as_text(default: object) -> str:
    return "none" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def what_if_facts(wanted: WantedWhatIf, replayed: Mapping[str, Any], left_out: int) -> dict[str, Any]:
    """Return what the page shows of what ``ebb replay --json`` printed; ``left_out`` events were not to be seen."""
    return {
        "policy": wanted.policy,
        "label": wanted.label,
        "live": replayed["live"],
        "simulated": replayed["simulated"][0],
        "since": replayed["since"],
        "until": replayed["until"],
        "gpus": replayed["gpus"],
        "restart_cost_s": replayed["restart_cost_s"],
        "skipped": replayed["skipped"],
        "notes": replayed["notes"],
        "left_out": left_out,
        "command": wanted.command(),
        "configuration": wanted.configuration(),
    }

"""Which simulation the page "what if" asks for, the choices that it offers, and the facts of a result. Pure."""

import dataclasses
import json
import re
import shlex
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_core.model.settings import DEFAULT_POLICY
from ebbtide_core.policies.registry import POLICIES, PolicyError, create_policy, option_names

OPTION: Final = "o."
"""What the names of a policy's options begin with in the page's address."""
LONGEST_OPTION: Final = 40
_LATEST: Final = 253402300800
"""The end of the year 9999."""
_NODES: Final = re.compile(r"[1-9]\d{0,4}x\d{1,3}")


@dataclass(frozen=True, slots=True)
class WantedWhatIf:
    """A policy with options, a span in Unix seconds, and perhaps other machines, as the page's address says it.

    A bound of 0 is none: the span begins with the first job then, or ends now. ``nodes`` is such as ``4x8``; empty
    stands for the cluster's own.
    """

    policy: str = DEFAULT_POLICY
    options: tuple[tuple[str, str], ...] = ()
    since: int = 0
    until: int = 0
    nodes: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedWhatIf":
        """Read the query of an address; what makes no sense is as if it were not there."""
        policy = query.get("policy", "")
        policy = policy if policy in POLICIES else DEFAULT_POLICY
        options = ((name, query.get(f"{OPTION}{name}", "").strip()) for name in option_names(policy))
        nodes = query.get("nodes", "").strip()
        return cls(
            policy=policy,
            options=tuple((name, text) for name, text in options if text and _is_plain(text)),
            since=_seconds(query.get("since", "")),
            until=_seconds(query.get("until", "")),
            nodes=nodes if _NODES.fullmatch(nodes) else "",
        )

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

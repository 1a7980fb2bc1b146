"""The page "what if": simulations of the cluster's past under other policies, or on other machines."""

import dataclasses
import json
import re
import shlex
import time
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_core.model.settings import DEFAULT_POLICY
from ebbtide_core.policies.registry import POLICIES, PolicyError, create_policy, option_names
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import Templates
from ebbtide_web.board.shared_page import encoded, event
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.pages.replays import Replay, Replayed, ReplayFailedError, ReplayProgress, Replays
from ebbtide_web.streams import PING, PING_S, Events, before_end, next_of, pause

OPTION: Final = "o."
"""What the names of a policy's options begin with in the page's address."""
LONGEST_OPTION: Final = 40
MOST_POLICIES: Final = 4
"""Policies that one address compares."""
_LATEST: Final = 253402300800
"""The end of the year 9999."""
_NODES: Final = re.compile(r"[1-9]\d{0,4}x\d{1,3}")


class WhatIfPage(Page):
    """Shows what can be tried, and, if the address says it, what came of it."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        super().__init__(dashboard, templates)
        self.replays = Replays(dashboard.master, dashboard.settings.replay)

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return PageRoute("/whatif", self.show), PageRoute("/stream/whatif", self.stream)

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        return self._templates.page(
            "what_if.html", session, policies=offered_policies(), most=MOST_POLICIES, now=int(time.time())
        )

    async def stream(self, request: Request, session: Session) -> Response:
        """Run simulations one by one, and stream how far they are and their results; leaving the stream ends them."""
        wanted = read_what_ifs(request.query_params.multi_items())
        return streams.again(session, lambda: _what_if_now(session, self.replays, wanted))

    async def close(self) -> None:
        """End all simulations."""
        await self.replays.close()


async def _what_if_now(session: Session, replays: Replays, wanted: Sequence["WantedWhatIf"]) -> Events:
    """Yield how far simulations are, and the result of each, or why there is none."""
    if mistake := mistake_of(wanted):
        yield event("failed", encoded({"words": mistake}))
    else:
        for number in range(len(wanted)):
            async with aclosing(_simulated(session, replays, wanted, number)) as events:
                async for each in events:
                    yield each
    while await before_end(session, pause(PING_S)):
        yield PING


async def _simulated(session: Session, replays: Replays, wanted: Sequence["WantedWhatIf"], number: int) -> Events:
    """Yield how far all simulations are while the one with this number runs, and what came of it."""
    one, which = wanted[number], {"number": number, "of": len(wanted)}
    try:
        async with aclosing(replays.replies(session, one.replay())) as replies:
            while (found := await before_end(session, next_of(replies))) is not None:
                match found:
                    case ReplayProgress(words, done):
                        counted = f" ({number + 1} of {len(wanted)})" if len(wanted) > 1 else ""
                        told = {"words": words + counted, "done": (number + done) / len(wanted)}
                        yield event("progress", encoded(told))
                    case Replayed():
                        yield event("result", encoded(which | what_if_facts(one, found)))
    except ReplayFailedError as error:
        yield event("failed", encoded(which | {"words": str(error), "label": one.label}))


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
        found += ["--until", f"@{self.until}" if self.until else "now"]
        return found + (["--nodes", self.nodes] if self.nodes else [])

    def replay(self) -> Replay:
        """Return the simulation that gives the figures."""
        return Replay(tuple(self.arguments()), self.until)

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


def what_if_facts(wanted: WantedWhatIf, replayed: Replayed) -> dict[str, Any]:
    """Return what the page shows of a simulation."""
    found = replayed.printed
    return {
        "policy": wanted.policy,
        "label": wanted.label,
        "live": found["live"],
        "simulated": found["simulated"][0],
        "since": found["since"],
        "until": found["until"],
        "gpus": found["gpus"],
        "restart_cost_s": found["restart_cost_s"],
        "skipped": found["skipped"],
        "notes": found["notes"],
        "left_out": replayed.left_out,
        "command": wanted.command(),
        "configuration": wanted.configuration(),
    }

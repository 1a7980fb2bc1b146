"""Read which hosts to deploy to: the arguments of the verb, and a file with a host and its agent's options a line."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.commands.verb import usage_words
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.directives import shell_words

MAX_HOSTS: Final = 1000
MAX_HOSTFILE_BYTES: Final = 1 << 20
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_TARGET: Final = re.compile(
    rf"(?:(?P<user>[A-Za-z_][A-Za-z0-9_.-]{{0,31}})@)?"
    rf"(?:(?P<name>{_NAME})|\[(?P<address>[0-9A-Fa-f:.]{{2,45}})\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_IPV4: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_HELP_ALL: Final = "--help-all"


@dataclass(frozen=True, slots=True)
class Host:
    """One host: how ssh reaches it, and with which options its agent runs.

    ``doctor`` are those of the agent's ``options`` that ``ebb doctor`` takes, too.
    """

    target: str
    user: str
    name: str
    port: int
    node: str
    options: tuple[str, ...]
    doctor: tuple[str, ...]


def read_hosts(given: Sequence[str], hostfile: Path | None, common: str) -> list[Host]:
    """Return the hosts of the arguments and of the file; ``common`` are options of all agents. Raises `Failure`."""
    shared = _words(common, "--agent")
    _agent(shared, "--agent")
    lines: list[tuple[str, Sequence[str], str]] = [(target, (), f"host {abbreviated(target)!r}") for target in given]
    if hostfile is not None:
        lines += _lines(hostfile)
    if not lines:
        raise Failure("deploy: name at least one host, or a --hostfile with some", USAGE)
    if len(lines) > MAX_HOSTS:
        raise Failure(f"deploy: {len(lines)} hosts; at most {MAX_HOSTS} at a time", USAGE)
    hosts = [_host(target, [*shared, *own], where) for target, own, where in lines]
    _refuse_twins(hosts)
    return hosts


@dataclass(frozen=True, slots=True)
class _Agent:
    """The options of an agent, as far as they matter here."""

    node: str
    options: tuple[str, ...]
    doctor: tuple[str, ...]


def _lines(path: Path) -> Iterable[tuple[str, Sequence[str], str]]:
    """Yield the target, the options and the place of each line that is not empty."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_HOSTFILE_BYTES + 1)
        if len(data) > MAX_HOSTFILE_BYTES:
            raise Failure(f"deploy: --hostfile: {path} has more than {MAX_HOSTFILE_BYTES} bytes", USAGE)
        text = data.decode()
    except OSError as error:
        raise Failure(f"deploy: --hostfile: {path}: {error.strerror}", USAGE) from None
    except UnicodeDecodeError:
        raise Failure(f"deploy: --hostfile: {path} is no text", USAGE) from None
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}, line {number}"
        if words := _words(line, where, comments=True):
            yield words[0], words[1:], where


def _words(text: str, where: str, *, comments: bool = False) -> list[str]:
    try:
        words = list(shell_words(text)) if comments else shlex.split(text)
    except ValueError as error:
        raise Failure(f"deploy: {where}: {error}".lower(), USAGE) from None
    if any(not word.isprintable() for word in words):
        raise Failure(f"deploy: {where}: has a character that cannot be printed", USAGE)
    return words


def _host(target: str, options: Sequence[str], where: str) -> Host:
    found = _TARGET.fullmatch(target)
    port = int(found["port"]) if found and found["port"] else 0
    if found is None or (found["port"] and not 0 < port < 65536):
        form = "[USER@]HOST[:PORT], with letters, digits, '.', '_' and '-', and an IPv6 address in brackets"
        raise Failure(f"deploy: {where}: {abbreviated(target)!r} is not {form}", USAGE)
    agent = _agent(options, where)
    name = found["name"] or found["address"]
    node = agent.node or (name if _IPV4.fullmatch(name) else name.partition(".")[0])
    try:
        _check_node(node)
    except ValueError as error:
        raise Failure(f"deploy: {where}: {error}; give another one with --name, in a --hostfile", USAGE) from None
    named = agent.options if agent.node else ("--name", node, *agent.options)
    return Host(target, found["user"] or "", name, port, node, named, agent.doctor)


def _check_node(name: str) -> None:
    from ebbtide_agent.node import node_name

    node_name(name)


def _agent(words: Sequence[str], where: str) -> _Agent:
    """Check options as ``ebb agent`` will read them on the host. Raises `Failure`."""
    from ebbtide_cli.verbs.agent import command

    if _HELP_ALL in words:
        raise Failure(f"deploy: {where}: {_HELP_ALL} is no option to run an agent with", USAGE)
    alone = click.Command("agent", params=command.params, add_help_option=False)
    try:
        read = alone.make_context("agent", list(words)).params
    except click.UsageError as error:
        raise Failure(f"deploy: {where}: {usage_words(error)}", USAGE) from None
    root = read["checkpoint_root"]
    if root is not None and not root.is_absolute():
        raise Failure(f"deploy: {where}: --checkpoint-root: {str(root)!r} does not begin with /", USAGE)
    doctor = ["--gpus", read["gpus"]]
    doctor += ["--checkpoint-root", str(root)] if root is not None else []
    doctor += ["--ports", read["ports"]] if read["ports"] else []
    return _Agent(read["name"], tuple(words), tuple(doctor))


def _refuse_twins(hosts: Sequence[Host]) -> None:
    targets, nodes = set[tuple[str, str, int]](), dict[str, str]()
    for host in hosts:
        if (host.user, host.name, host.port) in targets:
            raise Failure(f"deploy: host {host.target} is given twice", USAGE)
        targets.add((host.user, host.name, host.port))
        if other := nodes.get(host.node):
            both = f"{other} and {host.target} would both be node {host.node}"
            raise Failure(f"deploy: {both}: give one of them another --name, in a --hostfile", USAGE)
        nodes[host.node] = host.target

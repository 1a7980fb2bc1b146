"""Complete words in a shell: quickly, and without a message if there is nothing to offer."""

from typing import TYPE_CHECKING, Final

import click

from ebbtide_cli import COMPLETION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem, ShellComplete
    from ebbtide_protos.v1 import client_pb2

PATIENCE_S: Final = 1.0
"""Seconds after which completion gives up, because a user waits no longer for a key."""


def shells() -> "dict[str, type[ShellComplete]]":
    """Return the class that answers each shell."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    class Bash(BashComplete):
        """Skip the check of bash's version, which would start a bash each time; every bash since 2014 will do."""

        @staticmethod
        def _check_version() -> None:
            pass

    return {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}


def complete(verbs: click.Command, wanted: str) -> int:
    """Print the words that fit at the cursor; return the exit code."""
    shell, _, instruction = wanted.partition("_")
    kind = shells().get(shell)
    if kind is None or instruction != "complete":
        return 1
    print(kind(verbs, {}, "ebb", COMPLETION).complete())
    return 0


def job_ids(context: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem]":
    """Return the unfinished jobs whose ids begin with ``begun``, each with its name."""
    from click.shell_completion import CompletionItem

    given = context.params.get(parameter.name or "") or ()
    return [
        CompletionItem(job.job_id, help=job.spec.name)
        for job in _jobs(context.params.get("master"))
        if job.job_id.startswith(begun) and job.job_id not in given
    ]


def files(context: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem]":
    """Let the shell complete the names of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def _jobs(master: str | None) -> "list[client_pb2.Job]":
    from ebbtide_protos.v1 import client_pb2

    from ebbtide_cli.errors import Failure
    from ebbtide_cli.masters.connection import connected

    try:
        with connected(master) as stub:
            return list(stub.ListJobs(client_pb2.ListJobsRequest(), timeout=PATIENCE_S).jobs)
    except Failure:
        return []

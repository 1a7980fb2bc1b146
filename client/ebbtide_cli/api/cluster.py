"""A cluster as its user sees it from Python: it takes jobs, and finds them again."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack, overload

from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.api.executor import JobExecutor
from ebbtide_cli.api.job import Job, JobArray, Link, job_of
from ebbtide_cli.api.options import JobOptions
from ebbtide_cli.api.queueing import queue_call, queue_calls, queue_command
from ebbtide_cli.commands.verb import known_id
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import ask
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.verbs.ls import listing, parse_state

Result = TypeVar("Result")


class Cluster:
    """A connection to a master; any number of threads may use it. Every method may raise `Failure`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<Cluster at {self._link.master}>"

    @classmethod
    def connect(cls, master: str | None = None) -> "Cluster":
        """Connect to the master that ``ebb`` would talk to, or to the one at ``HOST:PORT`` or ``unix:HOME``.

        It is found through ``EBB_MASTER``, ``EBB_HOME`` or the last login, and gets the token that ``ebb`` would send.
        Raises `Unreachable` if no master answers.
        """
        address = find_master(master)
        # Of several masters that stand by for each other, another one may serve later.
        link = Link(",".join(address.beside) or address)
        link.ask(lambda stub: ask(stub.ShowCluster, client_pb2.ShowClusterRequest()))
        return cls(link)

    @overload
    def submit(self, work: Callable[..., Result], /, *args: Any, **options: Unpack[JobOptions]) -> Job[Result]: ...
    @overload
    def submit(self, work: Sequence[str], /, **options: Unpack[JobOptions]) -> Job[None]: ...
    def submit(self, work: Any, /, *args: Any, **options: Any) -> Job[Any]:
        """Queue a function with its arguments, or a command, as ``ebb submit OPTIONS CMD...`` does.

        The ``options`` are those of ``ebb submit`` (see `JobOptions`). Named arguments of a function are given with
        `functools.partial`, or to an `executor`. A command is a list of words. Raises TypeError for an option that does
        not exist.
        """
        if callable(work):
            return queue_call(self._link, work, args, {}, options)
        if args or isinstance(work, str):
            raise TypeError("a command is one list of words, such as ['python', 'train.py']")
        return queue_command(self._link, [str(word) for word in work], options)

    def map(
        self, function: Callable[..., Result], /, *inputs: Iterable[Any], **options: Unpack[JobOptions]
    ) -> JobArray[Result]:
        """Queue an array with a task for each input; of several inputs, the function gets one of each, as in `map`."""
        return queue_calls(self._link, function, [(args, {}) for args in zip(*inputs, strict=False)], options)

    def executor(self, **options: Unpack[JobOptions]) -> JobExecutor:
        """Return a `concurrent.futures.Executor` whose calls are jobs with these ``options``."""
        return JobExecutor(self._link, options)

    def job(self, job_id: str | int) -> Job[Any]:
        """Return the job or array with this id; ``@`` is the one that you submitted last, ``@~1`` the one before."""
        known = known_id(self._link.master, str(job_id))
        if "-" in known:
            raise Failure(f"job: {known}: name the array, and take a part of that: job(17)[2:5]", USAGE)
        shown = self._link.ask(lambda stub: ask(stub.ShowJob, client_pb2.JobRequest(job_id=known)))
        return job_of(self._link, shown)

    def jobs(
        self,
        *,
        name: str | None = None,
        all: bool = False,
        mine: bool = False,
        user: str | None = None,
        state: str | Sequence[str] = (),
        limit: int = 0,
    ) -> list[Job[Any]]:
        """List jobs in order of submission, as ``ebb ls`` does: the unfinished ones, or with ``all`` every job.

        An array is one of them, as a `JobArray`. ``name`` is the job's, by default that of its function or script.
        ``limit`` leaves so many of those that were submitted last; 0 leaves all.
        """
        try:
            states = [parse_state(one) for one in ([state] if isinstance(state, str) else state)]
        except ValueError as error:
            raise Failure(f"jobs: state: {error}", USAGE) from None
        asked = listing(
            finished_too=all,
            mine=mine,
            of_user=user,
            states=states,
            limit=limit if name is None else None,
            folded=True,
        )
        listed = self._link.ask(lambda stub: ask(stub.ListJobs, asked)).jobs
        found = [job_of(self._link, job) for job in listed if name is None or job.spec.name == name]
        return found[-limit:] if limit else found

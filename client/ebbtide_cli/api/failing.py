"""The errors of jobs that did not bring a result; all that the master refuses is a `Failure`, as for `ebb`."""

from ebbtide_cli.errors import Failure


class JobFailed(Failure):
    """The job ``job_id`` ended without a result: it failed, or was killed, or its function could not be called."""

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class FunctionFailure(Failure):
    """The function raised an exception that cannot be loaded here; the message names it, and its cause shows where."""


class RemoteTraceback(Exception):
    """The cause of an exception that came from a job: the traceback there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'

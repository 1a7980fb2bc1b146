"""Submits functions and commands to a cluster, and controls their jobs, from Python: docs/how-to/python-api.md.

This is the one module of the SDK that needs all of Ebbtide where it is imported (`pip install ebbtide`): it hands on
what the `ebb` command is made of. Training scripts in a job do not need it.
"""

try:
    from ebbtide_cli.api.asynchronous import AsyncCluster, AsyncJob, AsyncJobArray
    from ebbtide_cli.api.cluster import Cluster
    from ebbtide_cli.api.executor import JobExecutor, JobFuture
    from ebbtide_cli.api.failing import FunctionFailure, JobFailed, RemoteTraceback
    from ebbtide_cli.api.job import Job, JobArray, JobProgress
    from ebbtide_cli.api.options import JobOptions
    from ebbtide_cli.errors import Failure, Unreachable
except ModuleNotFoundError as error:
    words = f"ebbtide.cluster needs all of Ebbtide, and this Python lacks {error.name}: pip install ebbtide"
    raise ModuleNotFoundError(words, name=error.name) from error

__all__ = [
    "AsyncCluster",
    "AsyncJob",
    "AsyncJobArray",
    "Cluster",
    "Failure",
    "FunctionFailure",
    "Job",
    "JobArray",
    "JobExecutor",
    "JobFailed",
    "JobFuture",
    "JobOptions",
    "JobProgress",
    "RemoteTraceback",
    "Unreachable",
]

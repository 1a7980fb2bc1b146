"""``ebb release``: let held jobs start."""

from ebbtide_cli.job_requests import request_verb

command = request_verb(
    "Let held jobs start, whoever held them, and let them use the nodes that they were excluded from.",
    "ebb release 17",
    "ebb release 17 18",
    method=lambda stub: stub.Release,
    effective=lambda job, _: not job.held_by,
)

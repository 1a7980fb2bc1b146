"""``ebb hold``: keep waiting jobs from starting."""

from ebbtide_cli.job_requests import request_verb

command = request_verb(
    "Keep waiting jobs from starting until 'ebb release'.",
    "ebb hold 17",
    "ebb hold 17 18",
    method=lambda stub: stub.Hold,
    effective=lambda job, _: bool(job.held_by),
)

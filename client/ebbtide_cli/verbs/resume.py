"""``ebb resume``: let suspended jobs go on."""

from ebbtide_cli.describing.effects import resumed
from ebbtide_cli.job_requests import request_verb

command = request_verb(
    """Resume suspended jobs, and release held ones, from their newest checkpoint as soon as GPUs are free.

    With --wait, return when they run again.
    """,
    "ebb resume 17",
    "ebb resume --wait 17",
    method=lambda stub: stub.Resume,
    effective=resumed,
)

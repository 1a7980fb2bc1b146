"""``ebb suspend``: free the GPUs of jobs until their user resumes them."""

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.describing.effects import suspended
from ebbtide_cli.describing.jobs import is_unsaved, left, saved_words, summary
from ebbtide_cli.errors import OK, UNSAVED
from ebbtide_cli.job_requests import request_verb
from ebbtide_cli.terminal.text import printable


def _came_of(job: client_pb2.Job) -> tuple[str, int]:
    newest = left(job)
    if newest is None or not (newest.checkpointed == job_pb2.CHECKPOINTED_YES or newest.lost or newest.hint):
        return summary(job), OK  # it never ran, or is still in host memory
    hint = f" ({newest.hint})" if newest.hint else ""
    return printable(f"{summary(job)}; {saved_words(newest)}{hint}"), UNSAVED if is_unsaved(job) else OK


command = request_verb(
    """Let jobs checkpoint within their grace period and free their GPUs until 'ebb resume'.

    With --wait, report whether each job has saved; exit code 4 if one has not, so that work is lost.
    """,
    "ebb suspend 17",
    "ebb suspend --wait 17 18",
    method=lambda stub: stub.Suspend,
    effective=suspended,
    came_of=_came_of,
)

"""Open a tunnel to a new job that is a web server for its user."""

from ebbtide_cli.channels import tunnel
from ebbtide_cli.channels.waiting import cancel, wait_until_it_runs
from ebbtide_cli.terminal.output import complain


def reach(master: str | None, job_id: str, what: str, local_port: int, url: str, *, stop: bool) -> None:
    """Wait until the queued job answers, and keep a tunnel open until the job ends or Ctrl-C is pressed.

    ``what`` is the job's kind in words. With ``stop``, Ctrl-C ends the job, too.
    """
    complain(f"job {job_id}: a {what}; 'ebb tunnel {job_id}' reaches it again, 'ebb cancel {job_id}' ends it")
    wait_until_it_runs(master, job_id)
    ended = False
    try:
        ended = tunnel.run(master, job_id, "", 0, local_port, url)
    finally:
        if stop and not ended:
            cancel(master, job_id)
    if ended:
        return
    complain(f"tunnel closed; job {job_id} is {'ended' if stop else 'left running'}")

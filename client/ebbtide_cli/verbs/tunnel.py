"""``ebb tunnel``: forward a port of this machine to a port of a job."""

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.channels.asking import output_of
from ebbtide_cli.channels.tunnel import run
from ebbtide_cli.commands.verb import examples, id_argument, master_option
from ebbtide_cli.masters.connection import ask, connected

PORT = click.IntRange(0, 65535)


@click.command(epilog=examples("ebb tunnel 17 8000", "ebb tunnel --port 9000 17 8000", "ebb tunnel 17"))
@id_argument
@click.argument("remote", metavar="[PORT]", type=click.IntRange(1, 65535), required=False)
@click.option("--port", type=PORT, default=0, help="Port on this machine (default: any free one).")
@click.option("--node", default="", metavar="NAME", help="Node of the job (default: its first).")
@master_option
def command(job_id: str, remote: int | None, port: int, node: str, master: str | None) -> None:
    """Forward a port of this machine to PORT of a job, over the connection to the master; print the address.

    A process of the job must listen on PORT of its node's loopback. Without PORT, it is the port of a notebook or a
    TensorBoard. Any number of connections may be open at once. Ctrl-C closes the tunnel and leaves the job alone; the
    end of the job closes it, too.
    """
    run(master, job_id, node, remote or 0, port, "127.0.0.1:{port}" if remote else _url(master, job_id))


def _url(master: str | None, job_id: str) -> str:
    """Return the URL of what the job serves, with its token; ``{port}`` stands for the local port."""
    with connected(master) as stub:
        job = ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id))
    if job.spec.kind != job_pb2.JOB_KIND_NOTEBOOK or job.state != job_pb2.JOB_STATE_RUNNING:
        return "http://127.0.0.1:{port}/"
    # The master shows no job's environment; a user who may run a process inside the job may read it there.
    token = output_of(master, job_id, "printenv", "JUPYTER_TOKEN").strip()
    return "http://127.0.0.1:{port}/" + (f"?token={token}" if token else "")

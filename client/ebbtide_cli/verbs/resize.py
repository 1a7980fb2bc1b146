"""``ebb resize``: give jobs another number of GPUs."""

from fractions import Fraction
from typing import TYPE_CHECKING

import click
from ebbtide_core.model.choices import parts
from ebbtide_protos.spec import parts_to_share
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import GPUS, examples, ids_argument, json_option, master_option
from ebbtide_cli.describing.effects import resized
from ebbtide_cli.describing.facts import share_of
from ebbtide_cli.job_requests import grant, wait_option
from ebbtide_cli.masters.connection import ask
from ebbtide_cli.terminal.output import complain
from ebbtide_cli.values import GpuRange

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub


@click.command(epilog=examples("ebb resize 17 --gpus 4", "ebb resize 17 18 --gpus 1-8 --wait"))
@ids_argument
@click.option("--gpus", metavar="N|N-M|1/n", type=GPUS, required=True, help="New number of GPUs, or a range of it.")
@wait_option
@json_option
@master_option
def command(job_ids: tuple[str, ...], gpus: GpuRange, wait: bool, as_json: bool, master: str | None) -> int:
    """Let jobs checkpoint and resume with another number of GPUs.

    One number fixes the size of an elastic job; N-M gives it another range.
    """
    low, high = parts_to_share(parts(gpus.low)), parts_to_share(parts(gpus.high))

    def send(stub: "ClientServiceStub", job_id: str) -> client_pb2.Job:
        before = ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id)).spec
        accepted = ask(stub.Resize, client_pb2.ResizeRequest(job_id=job_id, gpus_min=low, gpus_max=high))
        least, most = Fraction(share_of(before.gpus_min)), Fraction(share_of(before.gpus_max))
        if gpus.low == gpus.high and least < most:
            had = GpuRange(least, most)
            complain(
                f"job {job_id} had {had} GPUs and now has {gpus} until it is changed again: --gpus {had} undoes it"
            )
        return accepted

    return grant(master, job_ids, send, resized(gpus), wait=wait, as_json=as_json)

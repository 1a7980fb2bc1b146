"""Choose from several addresses, of a master and its standby masters, the one that serves now."""

from collections.abc import Sequence

import grpc

from ebbtide_cli.errors import Unreachable
from ebbtide_cli.masters.address import CONNECT_S, Address
from ebbtide_cli.masters.credentials import channel_credentials
from ebbtide_cli.masters.trust import authority


def first_that_serves(addresses: Sequence[Address]) -> Address:
    """Return the first address where a master answers: a standby does not listen, a stuck master does not answer.

    If none answers, return the first that listens, so that its failure is reported. `Unreachable` if none listens.
    """
    listening = [address for address in addresses if _listens(address)]
    if not listening:
        named = ", ".join(map(str, addresses))
        raise Unreachable(f"no master at any of {named} ({addresses[0].source}): start one with 'ebb master'")
    return next((address for address in listening if _answers(address)), listening[0])


def _listens(address: Address) -> bool:
    try:
        with address.reached():
            pass
    except Unreachable:
        return False
    return True


def _answers(address: Address) -> bool:
    if address.home is None and not authority(address):
        return False  # nothing proves the identity of a master there
    with address.reached() as target:
        channel = grpc.secure_channel(target, channel_credentials(address), [("grpc.enable_http_proxy", 0)])
        try:
            grpc.channel_ready_future(channel).result(CONNECT_S)
        except grpc.FutureTimeoutError:
            return False
        finally:
            channel.close()
        return True

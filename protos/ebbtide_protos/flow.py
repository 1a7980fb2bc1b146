"""gRPC's options for how far the sender on a connection between master and agents may be ahead of its reader.

By default gRPC finds this out by pings: up to one each way for each message that comes alone, which is what heartbeats
and their answers are. With thousands of nodes, pings cost a master more than the messages.
"""

from typing import Final

from ebbtide_core.model.limits import MAX_MESSAGE_BYTES

FLOW_OPTIONS: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", MAX_MESSAGE_BYTES))
"""The number of bytes is what an agent asks for at a time, so that a checkpoint is copied fast over a long way."""

"""The node agent: supervision of attempts, GPU backends, and the link to the master."""

import os

# Before anything imports gRPC: the agent forks nothing that uses it, and its fork handlers slow down every spawn.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

"""What holds for every test: gRPC reads these when it is first imported, by whichever test that is."""

import os

# Tests start processes, and gRPC would print a line about each fork into the output that they compare.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

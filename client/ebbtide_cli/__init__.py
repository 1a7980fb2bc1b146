"""The ``ebb`` command: one file per verb."""

import os

# gRPC's own log lines ("Got goaway") would break the promise of one line on stderr. gRPC reads this variable when it
# is imported, which every verb may do first.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

COMPLETION = "_EBB_COMPLETE"
"""The variable in which the shell says which completion it asks for."""

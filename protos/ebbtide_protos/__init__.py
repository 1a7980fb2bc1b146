"""Ebbtide's wire protocol (gRPC), one sub-package per protocol version."""

RETRY_KEY = "ebb-retry-after-s"
"""Key in the trailing metadata of a refusal that soon ends; its value is the number of seconds to wait."""

NODE_AWAY_KEY = "ebb-node-away"
"""Key in the trailing metadata of a call that failed because a node could not be asked; the master itself answered."""

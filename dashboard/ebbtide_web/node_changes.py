"""Makes the master's request from a change of a node that somebody asks for on a page. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2

from ebbtide_web.changes import BadInputError, Change

NODE_VERBS: Final = ("drain", "undrain", "confirm-dead", "remove")
MOST_DEADLINE_S: Final = 30 * 86_400.0
LONGEST_NAME: Final = 64
LONGEST_REASON: Final = 200


def check_node(name: str) -> str:
    """Return ``name`` if it can be a node's. Raises `BadInputError`."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise BadInputError(f"node: is not a name of 1 to {LONGEST_NAME} printable characters")
    return name


def node_change(verb: str, name: str, fields: Mapping[str, Any]) -> Change:
    """Return the change that ``verb`` asks for node ``name``. Raises `BadInputError`."""
    node = client_pb2.NodeRequest(node=check_node(name))
    match verb:
        case "drain":
            return Change("DrainNode", drain_request(name, fields), f"Nothing new starts on node {name}.")
        case "undrain":
            return Change("ResumeNode", node, f"Node {name} is in service.")
        case "confirm-dead":
            return Change("ConfirmDead", node, f"Node {name} counts as dead: its jobs go on elsewhere.")
        case "remove":
            return Change("RemoveNode", node, f"Node {name} is removed: it is one again if its agent comes back.")
        case _:
            raise BadInputError(f"verb: is none of {', '.join(NODE_VERBS)}")


def drain_request(name: str, fields: Mapping[str, Any]) -> client_pb2.DrainNodeRequest:
    """Return the request to drain a node, by ``deadline`` in seconds from now if there is one."""
    reason, deadline, force = fields.get("reason", ""), fields.get("deadline"), fields.get("force", False)
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON or not reason.isprintable():
        raise BadInputError(f"reason: is not a text of at most {LONGEST_REASON} printable characters")
    if not isinstance(force, bool):
        raise BadInputError("force: is neither true nor false")
    if deadline is None:
        if force:
            raise BadInputError("force: needs a deadline")
        return client_pb2.DrainNodeRequest(node=check_node(name), reason=reason)
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 <= deadline <= MOST_DEADLINE_S:
        raise BadInputError(f"deadline: is not a number of seconds from 0 to {MOST_DEADLINE_S:g}")
    return client_pb2.DrainNodeRequest(node=check_node(name), reason=reason, deadline_s=float(deadline), force=force)

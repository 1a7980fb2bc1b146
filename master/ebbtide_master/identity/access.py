"""Defines who may call each method. A method that is not listed here may not be called at all."""

from enum import Enum, auto
from typing import Final


class Access(Enum):
    """Who may call a method. Owners of what a request names are looked up by exact ids, never by prefixes of ids."""

    INVITED = auto()  # anyone with the secret of an invitation
    AGENT = auto()  # agents, each for its own node
    USER = auto()  # every user; the method concerns nothing that one user owns
    SEEN = auto()  # every user, who sees of other users' jobs what `visibility` allows
    OWNER = auto()  # the owner of the jobs that the request names, and operators
    BOOKER = auto()  # the user whom a reservation is for, the user who made it, and operators
    HOLDER = auto()  # the user whose tokens the request concerns, and admins
    OPERATOR = auto()
    ADMIN = auto()


ACCESS: Final = {
    "/ebbtide.v1.AgentService/Attach": Access.AGENT,
    "/ebbtide.v1.AgentService/Renew": Access.AGENT,
    **{
        f"/ebbtide.v1.ClientService/{name}": access
        for access, names in {
            Access.USER: (
                "Submit",  # with a snapshot only for a user who has sent it; see `api.snapshots`
                "FindSnapshot", "UploadSnapshot", "TestNotice", "ListNodes", "ShowCluster", "WatchNode", "Usage",
                "ListReservations", "WhoAmI",
                # These tell everybody the same: nothing that `visibility` would hide from anybody.
                "WatchBoard", "ForecastQueue", "QueryTimeline",
            ),
            Access.SEEN: (
                "ListJobs", "ShowJob", "ShowArray", "ShowStory", "Explain", "WatchJobs", "WatchEvents", "QueryEvents",
            ),
            Access.OWNER: (
                "ReadLogs", "Suspend", "Resume", "Resize", "Drill", "Change", "Cancel", "Hold", "Release",
                "Requeue",  # a job that is run again keeps its user
                "Connect", "Remove",
            ),
            Access.BOOKER: ("ReserveGpus", "CancelReservation"),
            Access.HOLDER: ("CreateToken", "ListTokens", "RevokeToken"),
            Access.OPERATOR: (
                "DrainNode", "ForecastDrain", "ResumeNode", "ListUsers", "ConfirmDead", "EndStray", "BelieveSilence",
                "RemoveNode", "EndNode", "ShowSettings", "CountDemand",
            ),
            Access.ADMIN: (
                "Quiesce", "AddUser", "SetUser", "RemoveUser", "ImportUsers", "Reload", "InviteNode", "RevokeNode",
            ),
            Access.INVITED: ("Join",),
        }.items()
        for name in names
    },
}  # fmt: skip

READS: Final = frozenset(
    f"/ebbtide.v1.ClientService/{name}"
    for name in (
        "CountDemand", "Explain", "FindSnapshot", "ForecastDrain", "ForecastQueue", "ListJobs", "ListNodes",
        "ListReservations", "ListTokens", "ListUsers", "QueryEvents", "QueryTimeline", "ReadLogs", "ShowArray",
        "ShowCluster", "ShowJob", "ShowSettings", "ShowStory", "Usage", "WatchBoard", "WatchEvents", "WatchJobs",
        "WatchNode", "WhoAmI",
    )
)  # fmt: skip
"""The users' methods that change nothing that is kept; a user may call these more often than those that do."""

_IN_WORDS: Final = {
    "AddUser": "adding users",
    "BelieveSilence": "believing that silent nodes are dead",
    "ConfirmDead": "saying that a node is dead",
    "CountDemand": "asking how many nodes the jobs need",
    "DrainNode": "draining a node",
    "EndNode": "saying when a node ends",
    "EndStray": "ending what runs without a job",
    "ForecastDrain": "asking what draining a node would do",
    "ImportUsers": "importing users",
    "InviteNode": "inviting a node",
    "ListUsers": "listing users",
    "Quiesce": "stopping the cluster",
    "Reload": "reading the configuration again",
    "RemoveNode": "forgetting a node",
    "RemoveUser": "removing users",
    "ResumeNode": "putting a node back into service",
    "RevokeNode": "revoking a node's certificate",
    "SetUser": "changing users",
    "ShowSettings": "looking at the configuration",
}
"""Phrases for the methods that operators and admins may call and users may not."""


def in_words(method: str) -> str:
    """Return a phrase for what ``method`` does."""
    name = method.rpartition("/")[2]
    return _IN_WORDS.get(name, f"the call {name}")

"""What each method asks of whoever calls it. A method that is not listed is for nobody."""

from enum import Enum, auto
from typing import Final


class Access(Enum):
    """Who may call a method. Whose is what a request names is looked up by exact ids, never by what they begin with."""

    INVITED = auto()  # whoever has the secret of an invitation
    AGENT = auto()  # agents, each for its own node
    USER = auto()  # every user; there is nothing in it that is somebody's
    SEEN = auto()  # every user, who sees of others' jobs what `sight` lets through
    OWNER = auto()  # who owns the jobs that the request names, and operators
    BOOKER = auto()  # whom a reservation is for, or who made it, and operators
    HOLDER = auto()  # whose tokens the request is about, and admins
    OPERATOR = auto()
    ADMIN = auto()


ACCESS: Final = {
    "/ebbtide.v1.AgentService/Attach": Access.AGENT,
    "/ebbtide.v1.AgentService/Renew": Access.AGENT,
    **{
        f"/ebbtide.v1.ClientService/{name}": access
        for access, names in {
            Access.USER: (
                "Submit",  # a snapshot: who has shown that they have it; see `api.snapshots`
                "FindSnapshot", "UploadSnapshot", "TestNotice", "ListNodes", "ShowCluster", "WatchNode", "Usage",
                "ListReservations", "WhoAmI",
            ),
            Access.SEEN: ("ListJobs", "ShowJob", "ShowStory", "Explain", "WatchJobs", "WatchEvents"),
            Access.OWNER: (
                "ReadLogs", "Suspend", "Resume", "Resize", "Drill", "Change", "Cancel", "Hold", "Release",
                "Requeue",  # what is run once more stays whose it was
                "Connect", "Remove",
            ),
            Access.BOOKER: ("ReserveGpus", "CancelReservation"),
            Access.HOLDER: ("CreateToken", "ListTokens", "RevokeToken"),
            Access.OPERATOR: (
                "DrainNode", "ResumeNode", "ListUsers", "ConfirmDead", "EndStray", "BelieveSilence", "RemoveNode",
            ),
            Access.ADMIN: (
                "Quiesce", "AddUser", "SetUser", "RemoveUser", "ImportUsers", "Reload", "InviteNode", "RevokeNode",
            ),
            Access.INVITED: ("Join",),
        }.items()
        for name in names
    },
}  # fmt: skip

_IN_WORDS: Final = {
    "AddUser": "adding users",
    "BelieveSilence": "believing that silent nodes are dead",
    "ConfirmDead": "saying that a node is dead",
    "DrainNode": "draining a node",
    "EndStray": "ending what runs without a job",
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
}
"""What operators and admins may do and users may not, as people say it."""


def in_words(method: str) -> str:
    """What a method does, in words."""
    name = method.rpartition("/")[2]
    return _IN_WORDS.get(name, f"the call {name}")

"""Shows and changes users and tokens (``ebb user``, ``ebb token``, ``ebb whoami``)."""

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.job.job import Job
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import HeldBy
from ebbtide_protos.v1 import user_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.request_checks import check_words
from ebbtide_master.identity.accounts import accounts
from ebbtide_master.identity.caller import Role, caller
from ebbtide_master.identity.identities import User
from ebbtide_master.identity.tokens import Token
from ebbtide_master.loop import PAUSE, Facts, RefusedError

One = TypeVar("One")
Message = TypeVar("Message")

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
ROLES: Final = ("user", "operator", "admin")
MAX_USERS: Final = 10_000
MAX_TOKENS: Final = 100
"""Tokens of one user."""
MAX_LABEL: Final = 128
AT_A_TIME: Final = 100
"""Users that are put into messages without a break, in less than a millisecond."""
MAX_UID: Final = 2**32 - 2
DAY_S: Final = 86_400.0
LIFETIME_S: Final = 90 * DAY_S
MAX_LIFETIME_S: Final = 3650 * DAY_S


class IdentityService:
    """Shows and changes users and tokens. The gate has checked that the caller may do so."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._now = master.wall
        self._identities = master.identities

    # --- users ---

    async def WhoAmI(self, request: user_pb2.WhoAmIRequest, context: Any) -> user_pb2.Identity:
        """Show the caller, and the token that proves it."""
        who, now = caller(), self._now()
        user = self._identities.user(who.user) or User(who.user, who.role)
        token = self._identities.token(who.token)
        message = None if token is None else self._token_message(token)
        return user_pb2.Identity(user=self._message(user), token=message, now=now)

    async def ListUsers(self, request: user_pb2.ListUsersRequest, context: Any) -> user_pb2.ListUsersReply:
        """List all users by name."""
        return user_pb2.ListUsersReply(users=await _in_parts(self._message, list(self._identities.users())))

    async def AddUser(self, request: user_pb2.AddUserRequest, context: Any) -> user_pb2.User:
        """Add a user that does not exist yet."""
        user = _user(request.user)
        async with self._identities.changing:
            if self._identities.user(user.name) is not None:
                raise _refused(RefusalKind.CONFLICT, f"user {user.name} exists already: 'ebb user set' changes it")
            _check_count(len(list(self._identities.users())) + 1)
            await self._identities.put_user(user)
        return self._message(user)

    async def SetUser(self, request: user_pb2.SetUserRequest, context: Any) -> user_pb2.User:
        """Give a user another role, account or uid."""
        async with self._identities.changing:
            user = self._known(request.name)
            wanted = user_pb2.User(
                name=user.name,
                role=request.role if request.HasField("role") else user.role.name.lower(),
                account=request.account if request.HasField("account") else user.account,
                uid=request.uid if request.HasField("uid") else user.uid,
            )
            changed = _user(wanted)
            self._check_admins(user, changed.role)
            await self._identities.put_user(changed)
        return self._message(changed)

    async def RemoveUser(self, request: user_pb2.RemoveUserRequest, context: Any) -> user_pb2.RemoveUserReply:
        """Remove a user, whose access ends at once. The user's running jobs go on, and waiting ones are held.

        They are held first, so that none starts after a master that ended amid this, and once more for what came in
        meanwhile. Of a user who does not exist any more, such jobs may be left.
        """
        reply, name = user_pb2.RemoveUserReply(), request.name

        def facts(cluster: Cluster) -> Facts:
            jobs = _unfinished(cluster, name)
            if user is None and not jobs:
                raise _unknown(name)
            for job in jobs:
                yield PAUSE
                if job.held_by is None and (job.waiting or job.off_gpu):  # even if it is being ended: it may run again
                    reply.held.append(job.id)
                    yield e.JobHeld(job.id, HeldBy.SYSTEM, f"held: user {name} was removed")

        def running(cluster: Cluster) -> list[str]:
            return [job.id for job in _unfinished(cluster, name) if job.live is not None]

        async with self._identities.changing:
            user = self._identities.user(name)
            if user is not None:
                self._check_admins(user, Role.USER)
            live = await self._loop.tell(facts, running)
            if user is not None:
                reply.tokens = await self._identities.remove_user(name)
                live = await self._loop.tell(facts, running)
        reply.running.extend(live)
        return reply

    async def ImportUsers(self, request: user_pb2.ImportUsersRequest, context: Any) -> user_pb2.ImportUsersReply:
        """Add users from a list, or from this machine's accounts; users that exist already keep their role."""
        wanted = await asyncio.to_thread(self._wanted, request)
        async with self._identities.changing:
            known = {user.name: user for user in self._identities.users()}
            _check_count(len(known.keys() | wanted.keys()))
            merged = {name: _merged(known.get(name), user) for name, user in wanted.items()}
            changed = {name: user for name, user in merged.items() if known.get(name) != user}
            if changed and not request.dry_run:
                await self._identities.put_users(changed)

        def message(user: User) -> user_pb2.ImportedUser:
            return user_pb2.ImportedUser(user=self._message(user), change=_change(known.get(user.name), user))

        return user_pb2.ImportUsersReply(users=await _in_parts(message, [user for _, user in sorted(merged.items())]))

    def _wanted(self, request: user_pb2.ImportUsersRequest) -> dict[str, User]:
        """Return the users to import, by name. Raises `SpecError` if one is invalid."""
        if not (request.all_accounts or request.group):
            return {user.name: user for user in map(_user, request.users)}
        try:
            return {user.name: user for user in map(_user, accounts(request.group))}
        except (KeyError, ValueError):  # ValueError: no group can have such a name
            raise _refused(RefusalKind.UNKNOWN, f"--group: the master knows no group {request.group[:64]!r}") from None

    # --- tokens ---

    async def CreateToken(self, request: user_pb2.CreateTokenRequest, context: Any) -> user_pb2.CreateTokenReply:
        """Create a token; this reply is the only one with its text."""
        now, name = self._now(), request.for_user or caller().user
        lifetime_s = request.lifetime_s if request.HasField("lifetime_s") else LIFETIME_S
        if not (math.isfinite(lifetime_s) and 0 <= lifetime_s <= MAX_LIFETIME_S):
            raise SpecError("--expires", f"is not between 0 s and {MAX_LIFETIME_S / DAY_S:.0f} days from now")
        check_words("--label", request.label, MAX_LABEL)
        async with self._identities.changing:
            user = self._known(name)
            await self._forget_expired(user.name, now)
            if len(list(self._identities.tokens_of(user.name))) >= MAX_TOKENS:
                raise _refused(RefusalKind.LIMIT, f"{user.name} has {MAX_TOKENS} tokens, the limit: revoke some")
            expires = now + lifetime_s if lifetime_s else None
            token, text = await self._identities.issue(user.name, now, expires, request.label)
        return user_pb2.CreateTokenReply(token=self._token_message(token), text=text)

    async def ListTokens(self, request: user_pb2.ListTokensRequest, context: Any) -> user_pb2.ListTokensReply:
        """List the tokens of one user, or of all users."""
        names = [user.name for user in self._identities.users()]
        if not request.all:
            names = [self._known(request.for_user or caller().user).name]
        by_user = await _in_parts(lambda name: list(map(self._token_message, self._identities.tokens_of(name))), names)
        return user_pb2.ListTokensReply(tokens=[token for theirs in by_user for token in theirs], now=self._now())

    async def RevokeToken(self, request: user_pb2.RevokeTokenRequest, context: Any) -> user_pb2.Token:
        """Revoke a token, so that it proves no user any more."""
        token = self._identities.token(request.id)
        if token is None:
            raise _refused(RefusalKind.UNKNOWN, f"token {request.id[:40]!r} does not exist: 'ebb token ls' shows ids")
        message = self._token_message(token)
        await self._identities.revoke(token.id)
        return message

    # --- shared parts ---

    async def _forget_expired(self, name: str, now: float) -> None:
        """Revoke the user's expired tokens, so that they do not count towards the limit."""
        for token in list(self._identities.tokens_of(name)):
            if token.expires is not None and token.expires <= now:
                await self._identities.revoke(token.id)

    def _known(self, name: str) -> User:
        user = self._identities.user(name)
        if user is None:
            raise _unknown(name)
        return user

    def _check_admins(self, user: User, role: Role) -> None:
        """Raise `RefusedError` if ``role`` for ``user`` would leave the cluster without an admin."""
        admins = [one for one in self._identities.users() if one.role is Role.ADMIN]
        if admins == [user] and role is not Role.ADMIN:
            raise _refused(RefusalKind.CONFLICT, f"{user.name} is the last admin: make another user an admin first")

    def _message(self, user: User) -> user_pb2.User:
        tokens = len(list(self._identities.tokens_of(user.name)))
        return user_pb2.User(
            name=user.name,
            role=user.role.name.lower(),
            account=user.account,
            uid=user.uid,
            tokens=tokens,
            last_used=self._identities.uses.of_user(user.name),
        )

    def _token_message(self, token: Token) -> user_pb2.Token:
        return user_pb2.Token(
            id=token.id,
            user=token.user,
            label=token.label,
            created=token.created,
            expires=token.expires,
            last_used=self._identities.uses.of_token(token.id),
        )


async def _in_parts(message: Callable[[One], Message], known: Sequence[One]) -> list[Message]:
    """Return a message for each of ``known``; other calls get their turn in between."""
    found = list[Message]()
    for start in range(0, len(known), AT_A_TIME):
        await asyncio.sleep(0)
        found += map(message, known[start : start + AT_A_TIME])
    return found


def _user(message: user_pb2.User) -> User:
    """Return the user of a request. Raises `SpecError` if a field is invalid."""
    role = message.role or "user"
    if not NAME.fullmatch(message.name):
        raise SpecError("user", f"{message.name[:64]!r} is not a name of at most 32 letters, digits, '.', '_' and '-'")
    if message.account and not NAME.fullmatch(message.account):
        raise SpecError("--account", f"{message.account[:64]!r} is not the name of an account")
    if role not in ROLES:
        raise SpecError("--role", f"{role[:64]!r} is none of {', '.join(ROLES)}")
    if message.uid > MAX_UID:
        raise SpecError("--uid", f"{message.uid} is more than {MAX_UID}")
    return User(message.name, Role[role.upper()], message.account, message.uid if message.HasField("uid") else None)


def _merged(known: User | None, wanted: User) -> User:
    """Return the imported user; one that exists already keeps the role that an admin gave it."""
    if known is None:
        return wanted
    uid = known.uid if wanted.uid is None else wanted.uid
    return replace(known, account=wanted.account or known.account, uid=uid)


def _change(before: User | None, after: User) -> str:
    return "added" if before is None else "unchanged" if before == after else "changed"


def _check_count(users: int) -> None:
    if users > MAX_USERS:
        raise _refused(RefusalKind.LIMIT, f"{users} users are over the limit of {MAX_USERS}")


def _unfinished(cluster: Cluster, user: str) -> list[Job]:
    return [job for job in cluster.state.unfinished.values() if job.user == user]


def _unknown(name: str) -> RefusedError:
    return _refused(RefusalKind.UNKNOWN, f"user {name[:64]!r} does not exist: 'ebb user ls' shows all")


def _refused(kind: RefusalKind, message: str) -> RefusedError:
    return RefusedError(Refusal(kind, message))

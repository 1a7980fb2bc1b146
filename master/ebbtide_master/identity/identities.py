"""Keeps the users of the cluster and their tokens in the vault."""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from ebbtide_master.identity import tokens
from ebbtide_master.identity.caller import Caller, NotKnownError, Role
from ebbtide_master.identity.last_uses import LastUses
from ebbtide_master.identity.standing import Standing
from ebbtide_master.identity.tokens import Token
from ebbtide_master.store.vault import EntryKind, Vault

One = TypeVar("One")

WHAT_TO_DO: Final = "log in with 'ebb login', or ask an admin for a token"


@dataclass(frozen=True, slots=True)
class User:
    """A user. ``account`` is the UNIX account that jobs run as if an agent may choose; empty means the user's name.

    ``uid`` is that account's number, if known; it shows on which nodes the account has another number.
    """

    name: str
    role: Role
    account: str = ""
    uid: int | None = None


class Identities:
    """Users and tokens, kept in memory for reading; every change is durable before it takes effect.

    Code that reads before it changes something holds the lock `changing` for both.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._users = {name: _user(name, text) for name, text in vault.read(EntryKind.USER).items()}
        self._tokens: dict[str, Token] = {}
        self._tokens_of: dict[str, dict[str, Token]] = {}
        for id, text in vault.read(EntryKind.TOKEN).items():
            self._add(Token(id=id, **json.loads(text)))
        self._standings: set[Standing] = set()
        self.uses = LastUses(vault)
        self.changing = asyncio.Lock()

    # --- reading ---

    def user(self, name: str) -> User | None:
        """Return the user ``name``, or None."""
        return self._users.get(name)

    def users(self) -> Iterator[User]:
        """Yield all users by name."""
        yield from (self._users[name] for name in sorted(self._users))

    def token(self, id: str) -> Token | None:
        """Return the token ``id``, or None."""
        return self._tokens.get(id)

    def tokens_of(self, name: str) -> Iterator[Token]:
        """Yield a user's tokens, the oldest first."""
        yield from sorted(self._tokens_of.get(name, {}).values(), key=lambda token: token.created)

    def caller(self, text: str, now: float) -> Caller:
        """Return the caller that a token's text proves. Raises `NotKnownError`."""
        parsed = tokens.parse(text)
        token = self._tokens.get(parsed[0]) if parsed else None
        if parsed is None or token is None or not token.is_proven_by(parsed[1]):
            raise NotKnownError(f"the token is not one of this cluster: {WHAT_TO_DO}")
        if token.expires is not None and token.expires <= now:
            raise NotKnownError(f"the token of {token.user} has expired: {WHAT_TO_DO}")
        user = self._users.get(token.user)
        if user is None:
            raise NotKnownError(f"user {token.user} does not exist any more")
        self.uses.note(token.id, user.name, now)
        return Caller(user.name, user.role, token=token.id)

    @contextmanager
    def standing(self, caller: Caller, now: float) -> Iterator[Standing]:
        """Give the standing of a caller's stream, which ends when the token does, or when the caller may do less."""
        token = self._tokens.get(caller.token)
        expires_in_s = None if token is None or token.expires is None else token.expires - now
        standing = Standing(caller, expires_in_s)
        self._standings.add(standing)
        try:
            yield standing
        finally:
            self._standings.discard(standing)
            standing.close()

    def while_known(self, who: Caller, facts: Iterable[One]) -> Iterator[One]:
        """Yield ``facts`` for as long as the user ``who`` exists, and raise `NotKnownError` once it was removed.

        A caller without a token is none of these users.
        """
        remaining = iter(facts)
        while not who.token or who.user in self._users:
            try:
                yield next(remaining)
            except StopIteration:
                return
        raise NotKnownError(f"user {who.user} does not exist any more")

    # --- changes ---

    async def put_users(self, users: Mapping[str, User]) -> None:
        """Add ``users``, or replace those of the same names; all of them, or none."""
        texts = await asyncio.to_thread(lambda: {name: _text(user) for name, user in users.items()})
        await _durable(self._vault.put(EntryKind.USER, texts))
        before = {name: self._users.get(name) for name in users}
        self._users.update(users)
        lowered = {name for name, old in before.items() if old is not None and users[name].role < old.role}
        self._end(lambda caller: caller.user in lowered, "what you may do has changed")

    async def put_user(self, user: User) -> None:
        """Add ``user``, or replace the one of that name."""
        await self.put_users({user.name: user})

    async def remove_user(self, name: str) -> int:
        """Remove the user ``name`` and all its tokens, which prove nothing from now on; return how many there were.

        The tokens go first: a master that is killed in between leaves none to whoever gets that name later.
        """
        gone, why = [token.id for token in self.tokens_of(name)], f"user {name} does not exist any more"
        await self._revoke(gone, why)
        await _durable(self._vault.put(EntryKind.USER, {name: None}))
        self._users.pop(name, None)
        self.uses.forget_user(name)
        self._end(lambda caller: caller.user == name, why)
        return len(gone)

    async def issue(self, user: str, now: float, expires: float | None = None, label: str = "") -> tuple[Token, str]:
        """Make a token for ``user``, and return it and its text."""
        token, text = tokens.issue(user, now, expires, label)
        kept = asdict(token)
        del kept["id"]
        await _durable(self._vault.put(EntryKind.TOKEN, {token.id: json.dumps(kept)}))
        self._add(token)
        return token, text

    async def revoke(self, id: str) -> None:
        """Revoke the token ``id``, so that it proves no caller any more."""
        await self._revoke([id], "the token was revoked")

    async def _revoke(self, ids: Collection[str], why: str) -> None:
        await _durable(self._vault.put(EntryKind.TOKEN, dict.fromkeys(ids)))
        for id in ids:
            if (token := self._tokens.pop(id, None)) is not None:
                self._tokens_of[token.user].pop(id)
                self.uses.forget_token(id)
        self._end(lambda caller: caller.token in ids, why)

    def _add(self, token: Token) -> None:
        self._tokens[token.id] = self._tokens_of.setdefault(token.user, {})[token.id] = token

    def _end(self, concerned: Callable[[Caller], bool], why: str) -> None:
        for standing in [one for one in self._standings if concerned(one.caller)]:
            standing.end(why)


async def _durable(change: Future[None]) -> None:
    await asyncio.wrap_future(change)


def _text(user: User) -> str:
    return json.dumps({"role": user.role.name.lower(), "account": user.account, "uid": user.uid})


def _user(name: str, text: str) -> User:
    kept = json.loads(text)
    return User(name, Role[kept["role"].upper()], kept["account"], kept.get("uid"))

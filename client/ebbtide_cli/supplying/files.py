"""Keep what a supply has borrowed in a folder of its own, and leave wishes of users there for its supplier."""

import dataclasses
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ebbtide_agent.jsonfile import read_json, write_json
from ebbtide_core.supply.supply import BorrowedNode, LoanPhase, NodeSupply, SupplySettings
from ebbtide_machine.lock import locked

from ebbtide_cli.errors import FAILED, Failure
from ebbtide_cli.home import Home, write_record

_STATE: Final = "loans.json"
_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(BorrowedNode))
_KEPT: Final = (
    *("paused", "wanted", "number", "failures", "not_before", "trouble", "asked_at", "looked_at", "granted"),
    *("described", "known"),
)


def facts_of(supply: NodeSupply) -> dict[str, Any]:
    """Return what has to outlive the supplier."""
    loans = [dataclasses.asdict(loan) | {"phase": loan.phase.value} for loan in supply.loans.values()]
    return {"loans": loans, **{field: getattr(supply, field) for field in _KEPT}}


@dataclass(frozen=True, slots=True)
class SupplyFolder:
    """The files of one supply."""

    path: Path

    @classmethod
    def of(cls, home: Home, name: str) -> "SupplyFolder":
        """Return the folder of the supply with that name."""
        return cls(home.root / "supplies" / name)

    def make(self) -> None:
        """Make the folder, for this account only."""
        for folder in (self.path, self.path / "wishes"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only supplier of it. Raises `Failure` if another one runs."""
        with (self.path / "lock").open("a") as lock:
            if not locked(lock.fileno()):
                raise Failure(f"supply: another supplier of {self.path.name} runs", FAILED)
            yield

    def is_served(self) -> bool:
        """Return whether a supplier runs."""
        try:
            with (self.path / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def load(self, name: str, settings: SupplySettings) -> NodeSupply:
        """Return the loans as they were saved last; none if there are none."""
        supply = NodeSupply(name, settings)
        try:
            record = read_json(self.path / _STATE)
        except ValueError as error:  # with new numbers, loans would have the names of old ones
            raise Failure(f"supply: {error}", FAILED) from None
        if record is None:
            return supply
        for facts in record["loans"]:
            known = {field: value for field, value in facts.items() if field in _FIELDS}
            supply.loans[facts["id"]] = BorrowedNode(**known | {"phase": LoanPhase(facts["phase"])})
        for field in record.keys() & _KEPT:
            setattr(supply, field, record[field])
        return supply

    def save(self, facts: dict[str, Any]) -> None:
        """Save the `facts_of` a supply durably."""
        write_json(self.path / _STATE, facts)

    def write_secret(self, name: str, text: str) -> Path:
        """Write a file that only this account can read."""
        path = self.path / name
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return path

    # --- wishes ---

    def wish(self, **wish: Any) -> None:
        """Leave a wish for the supplier."""
        self.make()
        write_record(self.path / "wishes" / f"{time.time_ns():020}-{secrets.token_hex(4)}.json", wish)

    def wishes(self) -> dict[str, Any]:
        """Return the wishes that wait by their names, the oldest first; one that cannot be read is None."""
        found = dict[str, Any]()
        for path in sorted((self.path / "wishes").glob("*.json")):
            found[path.name] = None
            with suppress(OSError, ValueError):
                found[path.name] = json.loads(path.read_text())
        return found

    def remove_wishes(self, names: Iterable[str]) -> None:
        """Remove wishes, which were granted."""
        for name in names:
            (self.path / "wishes" / name).unlink(missing_ok=True)

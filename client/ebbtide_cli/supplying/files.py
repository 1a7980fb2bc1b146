"""Keep what a supply has borrowed in a folder of its own, and leave wishes of users there for its supplier."""

import dataclasses
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ebbtide_core.supply.supply import BorrowedNode, LoanPhase, NodeSupply, SupplySettings

from ebbtide_cli.errors import FAILED, Failure
from ebbtide_cli.home import Home, read_record, write_record

_STATE: Final = "loans.json"
_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(BorrowedNode))


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
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"supply: another supplier of {self.path.name} runs", FAILED) from None
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
        record = read_record(self.path / _STATE)
        if record is None:
            return supply
        for facts in record["loans"]:
            known = {field: value for field, value in facts.items() if field in _FIELDS}
            supply.loans[facts["id"]] = BorrowedNode(**known | {"phase": LoanPhase(facts["phase"])})
        for field in ("paused", "wanted", "number", "failures", "not_before", "trouble", "asked_at"):
            setattr(supply, field, record[field])
        return supply

    def save(self, supply: NodeSupply) -> None:
        """Save the loans durably."""
        path = self.path / _STATE
        loans = [dataclasses.asdict(loan) | {"phase": loan.phase.value} for loan in supply.loans.values()]
        facts = {name: getattr(supply, name) for name in ("paused", "wanted", "number", "failures", "not_before")}
        write_record(path, {"loans": loans, **facts, "trouble": supply.trouble, "asked_at": supply.asked_at})
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

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
        write_record(self.path / "wishes" / f"{secrets.token_hex(8)}.json", wish)

    def take_wishes(self) -> list[dict[str, Any]]:
        """Return the wishes that wait, the oldest first, and remove them."""
        found = []
        with suppress(FileNotFoundError):
            for path in sorted((self.path / "wishes").glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
                with suppress(ValueError):
                    found.append(json.loads(path.read_text()))
                path.unlink()
        return [wish for wish in found if isinstance(wish, dict)]

"""Opens a journal, writes to it and to the vault, and closes it; prints what was promised, when it was."""

import sys
from pathlib import Path

from ebbtide_core.events import CancelRequested
from ebbtide_core.model.types import JobId
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.vault import EntryKind

store = SqliteStore(Path(sys.argv[1]))
print(f"epoch {store.next_epoch()}", flush=True)
for number in range(1, 6):
    store.vault.put(EntryKind.ENVIRONMENT, {str(number): "{}", str(number - 3): None}).result()
    store.append([(1.0, CancelRequested(JobId(str(number)))), (1.0, CancelRequested(JobId(str(number))))]).result()
    print(f"job {number}", flush=True)
store.close()

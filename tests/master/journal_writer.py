"""Appends to a journal for as long as it lives, and prints the number of each line once that is durable.

Its words are the master's home and, for a journal in a database, the database's URL.
"""

import sys
from pathlib import Path

from ebbtide_core.events import CancelRequested
from ebbtide_core.model.types import JobId
from ebbtide_master.store.postgres import PostgresStore
from ebbtide_master.store.sqlite import SqliteStore

home, url = Path(sys.argv[1]), sys.argv[2]
store = PostgresStore(url, home) if url else SqliteStore(home / "journal.db")
print("ready", flush=True)
while True:
    first = store.last_sequence + 1
    batch = [(float(number), CancelRequested(JobId(str(number)))) for number in range(first, first + 1 + first % 3)]
    store.append(batch).result()
    print(store.last_sequence, flush=True)

"""Appends to a journal for as long as it lives, and prints the number of each line once that is durable."""

import sys
from pathlib import Path

from ebbtide_core.events import CancelRequested
from ebbtide_core.model import JobId
from ebbtide_master.store import Store

store = Store(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    first = store.last_sequence + 1
    batch = [(float(number), CancelRequested(JobId(str(number)))) for number in range(first, first + 1 + first % 3)]
    store.append(batch).result()
    print(store.last_sequence, flush=True)

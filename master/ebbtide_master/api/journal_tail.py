"""Where in the journal to begin, for those who want its end only."""

from ebbtide_protos.v1 import client_pb2

from ebbtide_master.store.journal import Store


def begin_of_events(store: Store, request: client_pb2.WatchEventsRequest) -> int:
    """The line behind which begins what is asked for. Blocks."""
    begin: int = request.after_sequence
    if request.tail:
        begin = max(begin, store.last_sequence - request.tail)
    if request.since:
        begin = max(begin, _last_before(store, request.since))
    return begin


def _last_before(store: Store, time: float) -> int:
    """The line behind which all were recorded at that time or later; times of lines only ever grow."""
    low, high = 0, store.last_sequence
    while low < high:
        middle = (low + high) // 2
        line = next(store.events(middle, limit=1), None)
        if line is None or line.time >= time:
            high = middle
        else:
            low = line.sequence
    return low

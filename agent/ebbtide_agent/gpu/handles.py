"""Find the driver's handle of a GPU by its UUID, even when other GPUs are lost."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ebbtide_agent.gpu.codes import CodeMeaning, meaning


def handle_of(library: Any, uuid: str) -> Any:
    """Return the handle of a GPU or MIG slice. Raises NVMLError.

    NVML's own search by UUID looks at other GPUs on its way, and fails if any is lost, as its header says. Asked by
    number, each GPU answers for itself.
    """
    try:
        return library.nvmlDeviceGetHandleByUUID(uuid)
    except library.NVMLError as error:
        if meaning(error) is not CodeMeaning.GPU_GONE:
            raise
        for handle in _answering(library):
            with suppress(library.NVMLError):
                if library.nvmlDeviceGetUUID(handle) == uuid:
                    return handle
        raise


def _answering(library: Any) -> Iterator[Any]:
    for index in range(library.nvmlDeviceGetCount()):
        with suppress(library.NVMLError):
            whole = library.nvmlDeviceGetHandleByIndex(index)
            yield whole
            for place in range(library.nvmlDeviceGetMaxMigDeviceCount(whole)):
                with suppress(library.NVMLError):
                    yield library.nvmlDeviceGetMigDeviceHandleByIndex(whole, place)

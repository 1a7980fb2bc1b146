"""Whether an attempt failed because a GPU's memory was used up: nothing but what it printed last tells.

The driver refuses an allocation and tells nobody else; the program reports that in the words of its library.
"""

import os
import re
from pathlib import Path

# So much of the end of a log is looked at: every rank may print a traceback of its own, and torchrun its table.
_END_BYTES = 64 * 1024
# Of PyTorch (its own, and CUDA's error passed on), the driver, cuBLAS, cuDNN, and XLA.
_REFUSED = re.compile(
    rb"torch\.(cuda\.)?OutOfMemoryError|CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)


def ran_out(output: Path) -> bool:
    """Whether the end of this log says so. A log that cannot be read says nothing."""
    try:
        descriptor = os.open(output, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        return _REFUSED.search(os.pread(descriptor, _END_BYTES, max(0, size - _END_BYTES))) is not None
    except OSError:
        return False
    finally:
        os.close(descriptor)

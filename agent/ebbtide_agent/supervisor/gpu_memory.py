"""Recognize that an attempt failed because a GPU's memory was used up; only the end of its output shows that.

The driver reports a refused allocation to the program alone, which prints it in the words of its library.
"""

import os
import re
from pathlib import Path

# Bytes of the end of a log that are searched: every rank may print a traceback of its own, and torchrun its table.
_END_BYTES = 64 * 1024
# The messages of PyTorch (its own, and CUDA's error passed on), the driver, cuBLAS, cuDNN, and XLA.
_REFUSED = re.compile(
    rb"torch\.(cuda\.)?OutOfMemoryError|CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)


def ran_out(output: Path) -> bool:
    """Return whether the end of this log reports that; False if the log cannot be read."""
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

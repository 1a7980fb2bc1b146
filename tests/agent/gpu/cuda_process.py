"""A real process that computes on a GPU with nothing but the driver's library: no package is needed for it."""

import os
import select
import subprocess
import sys

SUCCESS, OUT_OF_MEMORY = 0, 2
_PATIENCE_S = 60
# Commands come in by line: `allocate BYTES` fills so much with a pattern, `check` looks whether it is still there.
_PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
code = (
    cuda.cuInit(0)
    or cuda.cuDeviceGet(ctypes.byref(device), 0)
    or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    or cuda.cuCtxSetCurrent(context)
)
print(code, flush=True)
blocks, sample = [], (ctypes.c_ubyte * 4096)()

def allocate(size):
    block = ctypes.c_uint64()
    code = (
        cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size))
        or cuda.cuMemsetD8_v2(block, ctypes.c_ubyte(0xA5), ctypes.c_size_t(size))
        or cuda.cuCtxSynchronize()
    )
    if code == 0:
        blocks.append((block.value, size))
    return code

def differences():
    count = 0
    for start, size in blocks:
        for offset in (0, size // 2, size - 4096):
            code = cuda.cuMemcpyDtoH_v2(sample, ctypes.c_uint64(start + offset), ctypes.c_size_t(4096))
            count += code != 0 or set(sample) != {0xA5}
    return count

for line in sys.stdin:
    verb, *numbers = line.split()
    print(allocate(int(numbers[0])) if verb == "allocate" else differences(), flush=True)
"""


class CudaProcess:
    """One process with a context on one GPU. `start_code` is CUDA's code of its start, 0 if it computes."""

    def __init__(self, gpu_uuid: str, under: tuple[str, ...] = (), **environment: str) -> None:
        """`under`: words of a command that runs another one, such as a shell; none by default."""
        self._process = subprocess.Popen(
            [*under, sys.executable, "-Sc", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu_uuid, **environment},
        )
        self.start_code = self._hear()

    @property
    def pid(self) -> int:
        return self._process.pid

    def allocate(self, size: int) -> int:
        """Take so many bytes and fill them; CUDA's code."""
        return self._ask(f"allocate {size}")

    def is_intact(self) -> bool:
        """Whether everything that was allocated holds what it was filled with."""
        return self._ask("check") == 0

    def end(self) -> None:
        if not self._process.stdin.closed:
            self._process.stdin.close()
            self._process.wait(_PATIENCE_S)
            self._process.stdout.close()

    def _ask(self, line: str) -> int:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> int:
        ready, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_S)
        assert ready, "the process does not answer"
        line = self._process.stdout.readline()
        assert line, f"the process has ended with status {self._process.wait(_PATIENCE_S)}"
        return int(line)

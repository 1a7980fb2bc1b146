"""An object with pynvml's functions whose answers a test sets one by one."""

from types import SimpleNamespace


class NVMLError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


NOT_SUPPORTED = NVMLError(3, "Not Supported")
NOT_FOUND = NVMLError(6, "Not Found")
FUNCTION_NOT_FOUND = NVMLError(13, "Function Not Found")
GPU_IS_LOST = NVMLError(15, "GPU is lost")
VERSION_MISMATCH = NVMLError(25, "Argument Version Mismatch")
UNKNOWN = NVMLError(999, "Unknown Error")


class HandNvml:
    """Two 24 GiB GPUs. An answer that is an error is raised."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, count: int = 2) -> None:
        self.answers: dict[tuple[str, int], object] = {}
        self.count = count
        self.init_error: NVMLError | None = None

    def answer(self, function: str, index: int, value: object) -> None:
        self.answers[function, index] = value

    def processes(self, index: int, *processes: tuple[int, int | None]) -> None:
        entries = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]
        self.answer("nvmlDeviceGetComputeRunningProcesses_v3", index, entries)

    def memory(self, index: int, used: int, total: int = 24 << 30) -> None:
        self.answer("memory v2", index, SimpleNamespace(total=total, used=used, free=total - used))

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.init_error

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return self._say("nvmlDeviceGetHandleByIndex", index, index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        known = {f"GPU-{index}": index for index in range(self.count)}
        if uuid not in known:
            raise NOT_FOUND
        return self._say("nvmlDeviceGetHandleByUUID", known[uuid], known[uuid])

    def nvmlDeviceGetUUID(self, index: int) -> str:
        return self._say("nvmlDeviceGetUUID", index, f"GPU-{index}")

    def nvmlDeviceGetName(self, index: int) -> str:
        return self._say("nvmlDeviceGetName", index, "NVIDIA GeForce RTX 3090")

    def nvmlDeviceGetMemoryInfo(self, index: int, version: int | None = None) -> object:
        idle = SimpleNamespace(total=24 << 30, used=4 << 20, free=0)
        return self._say("memory v2" if version else "memory v1", index, idle)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, index: int) -> list[object]:
        return self._say("nvmlDeviceGetComputeRunningProcesses_v3", index, [])

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, index: int) -> list[object]:
        return self._say("nvmlDeviceGetMPSComputeRunningProcesses_v3", index, [])

    def nvmlDeviceGetUtilizationRates(self, index: int) -> object:
        return self._say("nvmlDeviceGetUtilizationRates", index, SimpleNamespace(gpu=0, memory=0))

    def _say(self, function, index, default):
        answer = self.answers.get((function, index), default)
        if isinstance(answer, NVMLError):
            raise answer
        return answer

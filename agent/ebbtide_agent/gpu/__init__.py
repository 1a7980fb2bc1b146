"""GPUs of a node, read through NVML: real ones, or fake ones behind the same functions."""

REAL = "auto"
NONE = "none"


def is_fake(gpus: str) -> bool:
    """Return whether the option asks for fake GPUs, and so is a profile."""
    return gpus not in (REAL, NONE)

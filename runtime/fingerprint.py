"""What the bits of a result depend on besides its request."""

import os
import platform
from functools import cache

import torch

__all__ = ["cpu_name", "fingerprint"]


def fingerprint(*, model_hash: str, dtype: torch.dtype, num_threads: int, invariant: bool) -> str:
    """One line: model hash, dtype, library versions, device and instruction set, threads."""
    parts = {
        "model": model_hash[:16],
        "dtype": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "device": f"cpu:{cpu_name()}",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": str(num_threads),
        "invariant": "on" if invariant else "off",
    }
    return " ".join(f"{key}={value.replace(' ', '_')}" for key, value in parts.items())


@cache
def cpu_name() -> str:
    """The processor's name as the operating system gives it."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

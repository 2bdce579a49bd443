"""How much memory the machine can still give."""

import os
from pathlib import Path

__all__ = ["available_memory"]


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that a process can still allocate without swapping; where only the machine's total is known, that; else
    None."""
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None

"""JSON paths, as they appear in errors and reports."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Path", "show_path"]

Path = tuple[str | int, ...]


def show_path(parts: Iterable[str | int]) -> str:
    """``$.properties.a.anyOf[0]``; a name that isn't an identifier is quoted: ``$.properties['a b']``."""
    shown = "$"
    for part in parts:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif part.removeprefix("$").isidentifier():
            shown += f".{part}"
        else:
            shown += f"[{part!r}]"
    return shown

"""Typed reading of config.json, keeping account of what was read."""

from collections.abc import Collection, Mapping
from typing import Any

from ..errors import ModelError

__all__ = ["ConfigFields"]


class ConfigFields:
    """The keys of one JSON object. A key that is absent or null gives the default; without a default it is required."""

    def __init__(self, values: Mapping[str, Any], file: str, place: str = "") -> None:
        self._values = values
        self._file = file
        self._place = place
        self._read: set[str] = set()

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, f"must be an integer of at least {minimum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.error(key, "must be a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A positive number; None where it is absent, null or zero."""
        self._read.add(key)
        return self.number(key) if self._values.get(key) not in (None, 0) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def choice(self, key: str, default: str | None, allowed: Collection[str]) -> str:
        value = self._get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, f"is not supported; supported: {', '.join(sorted(allowed))}")
        return value

    def child(self, key: str) -> "ConfigFields | None":
        """The fields of a nested object; None where it is absent, null or empty."""
        self._read.add(key)
        value = self._values.get(key)
        if not value:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, "must be an object")
        return ConfigFields(value, self._file, f"{self._place}{key}.")

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there and null, where that says more than leaving it out."""
        return key in self._values and self._values[key] is None

    def require(self, key: str, allowed: Collection[object], message: str) -> None:
        """Refuse a value other than null and those `allowed`."""
        self._read.add(key)
        value = self._values.get(key)
        if value is not None and value not in allowed:
            raise self.error(key, message)

    def ignore(self, keys: Collection[str]) -> None:
        """Keys that don't change the model's arithmetic."""
        self._read.update(keys)

    def unread(self) -> list[str]:
        """Keys that nothing has asked for."""
        return [self._place + key for key, value in self._values.items() if key not in self._read and value is not None]

    def error(self, key: str, message: str) -> ModelError:
        return ModelError(f"{self._place}{key}={self._values.get(key)!r} {message}", file=self._file)

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self._place}{key} is missing", file=self._file)
        return default

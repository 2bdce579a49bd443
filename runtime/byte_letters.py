"""The alphabet of byte-level vocabularies: one printable letter for each of the 256 bytes (GPT-2's convention)."""

from functools import cache

__all__ = ["byte_letters"]


@cache
def byte_letters() -> tuple[str, ...]:
    """The letter of each byte: printable Latin-1 stands for itself, the rest for U+0100 onwards, in order."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in itself else chr(next(others)) for byte in range(256))

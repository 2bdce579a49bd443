"""Character sets of regular expressions, written in the syntax of Rust's regex-syntax, which llguidance reads.

Unicode classes (``\\w``, ``\\d``, ``\\s``, ``\\p{..}``) are the engine's own tables (UTS #18). They agree with the
``regex`` module except for characters that only the newer of the two Unicode versions knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["CharacterSet", "escape_class", "property_class", "write_character"]

_DOTTED_I = "iI\u0130"  # equal under IGNORECASE in Python, not in Rust

# fmt: off
_CATEGORIES = frozenset("""
    L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co
    Letter Lowercase_Letter Uppercase_Letter Mark Number Decimal_Number Punctuation Symbol Separator Alphabetic
""".split())
_SCRIPTS = frozenset("""
    Arabic Armenian Bengali Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew Hiragana
    Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Tamil Telugu Thai Tibetan
""".split())
# fmt: on

_ECMA_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Z_a-z",
    "s": r"\x{9}-\x{d}\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}",
}


def write_character(char: str) -> str:
    """`char` as a literal that means itself everywhere: in a class, outside, and between Lark's slashes."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


@dataclass(frozen=True)
class CharacterSet:
    """One character out of the union of `items` (fragments of a Rust class), or, if `negated`, any other."""

    items: tuple[str, ...] = ()
    negated: bool = False
    ignore_case: bool = False

    @classmethod
    def build(
        cls,
        items: Sequence[CharacterSet | str | tuple[str, str]],
        negated: bool = False,
        ignore_case: bool = False,
        *,
        dotted_i: bool = False,
    ) -> CharacterSet:
        """The set of characters, ranges and sets; `dotted_i`: fold U+0130 with i, as Python does."""
        written: list[str] = []
        dotted = False
        for item in items:
            if isinstance(item, CharacterSet):
                written.append(item.write())
                continue
            low, high = item if isinstance(item, tuple) else (item, item)
            written.append(write_character(low) if low == high else f"{write_character(low)}-{write_character(high)}")
            dotted = dotted or any(low <= char <= high for char in _DOTTED_I)
        if dotted and dotted_i and ignore_case:
            written += [write_character(char) for char in _DOTTED_I]
        return cls(tuple(written), negated, ignore_case)

    def write(self) -> str:
        if not self.items:
            return r"[\x{0}-\x{10ffff}]" if self.negated else r"[^\x{0}-\x{10ffff}]"
        alone = not self.negated and len(self.items) == 1 and (len(self.items[0]) == 1 or self.items[0][0] in "[\\")
        body = self.items[0] if alone and "-" not in self.items[0] else self._class()
        return f"(?i:{body})" if self.ignore_case else body

    def _class(self) -> str:
        return f"[{'^' if self.negated else ''}{''.join(self.items)}]"


def escape_class(letter: str, dialect: Literal["python", "ecma"]) -> CharacterSet:
    """``\\d``, ``\\w``, ``\\s`` and their complements: Unicode in Python, ASCII (and ECMA's spaces) in ECMA."""
    if dialect == "python":
        return CharacterSet((f"\\{letter}",))
    return CharacterSet((_ECMA_CLASSES[letter.lower()],), negated=letter.isupper())


def property_class(name: str, *, negated: bool) -> CharacterSet | None:
    """``\\p{name}`` for categories and common scripts; None for names that the dialects may read differently."""
    kind, equals, value = name.partition("=")
    if equals:
        known = (kind in ("Script", "sc") and value in _SCRIPTS) or (
            kind in ("General_Category", "gc") and value in _CATEGORIES
        )
    else:
        known = name in _CATEGORIES or name in _SCRIPTS
    return CharacterSet((f"\\{'P' if negated else 'p'}{{{name}}}",)) if known else None

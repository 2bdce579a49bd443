"""Reading a regular expression: the cursor, errors with the position, escapes and classes of characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidConstraint, UnsupportedConstraint
from .regex_classes import CharacterSet, escape_class, property_class

__all__ = ["Dialect", "Flags", "RegexReader"]

Dialect = Literal["python", "ecma"]

_REGEX_MODULE_ESCAPES = "GKLMRXmhz"  # mean something in the regex module and are errors in re
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


@dataclass(frozen=True)
class Flags:
    ignore_case: bool = False
    dot_all: bool = False


class RegexReader:
    """A pattern in one of the dialects, and how far it has been read."""

    def __init__(self, pattern: str, dialect: Dialect, place: str) -> None:
        self.pattern = pattern
        self.dialect = dialect
        self.place = place
        self.position = 0

    def where(self, position: int | None = None) -> str:
        at = f"position {self.position if position is None else position}"
        return f"{self.place}: {at}" if self.place else at

    def invalid(self, message: str, position: int | None = None) -> InvalidConstraint:
        return InvalidConstraint(self.where(position), message)

    def unsupported(self, keyword: str, position: int | None = None) -> UnsupportedConstraint:
        return UnsupportedConstraint(self.where(position), keyword, "is not supported in a regular expression")

    def peek(self, count: int = 1) -> str:
        return self.pattern[self.position : self.position + count]

    def take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.position)
        if found:
            self.position += len(text)
        return found

    def next(self, what: str) -> str:
        if self.position >= len(self.pattern):
            raise self.invalid(what)
        self.position += 1
        return self.pattern[self.position - 1]

    def escape_value(self, flags: Flags, start: int) -> CharacterSet | str:
        """What follows a backslash, inside or outside of a class: a set, or one character."""
        letter = self.next("bad escape (end of pattern)")
        if letter in "dDsSwW":
            return escape_class(letter, self.dialect)
        if letter in "pP":
            if flags.ignore_case:
                raise self.unsupported("a property class under IGNORECASE", start)
            return self.property(letter, start)
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter in "xuU":
            return self.code_point(letter, start)
        if letter == "0" and not (self.peek().isdigit() and self.dialect == "ecma"):
            return chr(int("0" + self.octal(2), 8))
        if self.dialect == "python" and letter == "a":
            return "\a"
        if self.dialect == "ecma" and letter == "c" and self.peek().isascii() and self.peek().isalpha():
            return chr(ord(self.next("")) % 32)
        if not letter.isalnum() or not letter.isascii():
            return letter
        if self.dialect == "python" and letter not in _REGEX_MODULE_ESCAPES + "N" and not letter.isdigit():
            raise self.invalid(f"bad escape \\{letter}", start)
        raise self.unsupported(f"the escape \\{letter}", start)

    def octal(self, limit: int) -> str:
        begin = self.position
        while self.position - begin < limit and self.peek() in tuple("01234567"):
            self.position += 1
        return self.pattern[begin : self.position]

    def code_point(self, letter: str, start: int) -> str:
        if self.dialect == "ecma" and letter == "u" and self.take("{"):
            end = self.pattern.find("}", self.position)
            digits = self.pattern[self.position : end] if end >= 0 else ""
            self.position = end + 1
        elif self.dialect == "ecma" and letter == "U":
            raise self.unsupported("the escape \\U", start)
        else:
            count = {"x": 2, "u": 4, "U": 8}[letter]
            digits = self.peek(count) if len(self.peek(count)) == count else ""
            self.position += count
        try:
            value = int(digits, 16) if all(digit in "0123456789abcdefABCDEF" for digit in digits) else -1
            point = chr(value)
        except (ValueError, OverflowError):
            raise self.invalid(f"incomplete or impossible escape \\{letter}", start) from None
        if 0xD800 <= value < 0xE000:
            raise self.unsupported("a surrogate code point", start)
        return point

    def property(self, letter: str, start: int) -> CharacterSet:
        name = ""
        if self.take("{"):
            end = self.pattern.find("}", self.position)
            name = self.pattern[self.position : end] if end >= 0 else ""
            self.position = end + 1
        found = property_class(name, negated=letter == "P")
        if found is None:
            raise self.unsupported(f"\\{letter}{{{name}}}", start)
        return found

    def character_class(self, flags: Flags, start: int) -> CharacterSet:
        negated = self.take("^")
        if self.dialect == "ecma" and self.peek() == "]":
            raise self.unsupported("a class that begins with ]", start)  # empty in ECMA, a literal elsewhere
        items: list[CharacterSet | str | tuple[str, str]] = []
        first = self.dialect == "python"  # in Python a "]" in the first place is a literal
        while first or not self.take("]"):
            first = False
            at = self.position
            low = self.class_atom(flags, start)
            if self.peek() != "-" or self.peek(2)[1:] in ("]", "") or self.dash_is_literal(low):
                items.append(low)
                continue
            self.position += 1
            high = self.class_atom(flags, start)
            if isinstance(low, CharacterSet) or isinstance(high, CharacterSet) or low > high:
                raise self.invalid("bad character range", at)
            items.append((low, high))
        return CharacterSet.build(items, negated, flags.ignore_case, dotted_i=self.dialect == "python")

    def dash_is_literal(self, low: CharacterSet | str) -> bool:
        """ECMA-262 annex B: in ``[\\w-.]`` the dash stands for itself."""
        return self.dialect == "ecma" and isinstance(low, CharacterSet)

    def class_atom(self, flags: Flags, start: int) -> CharacterSet | str:
        at = self.position
        if at >= len(self.pattern):
            raise self.invalid("unterminated character set", start)
        char = self.next("")
        if char == "[" and self.dialect == "python" and self.peek() in (":", ".", "="):
            raise self.unsupported("a POSIX class", at)
        if char != "\\":
            return char
        if self.take("b"):
            return "\b"
        if self.peek().isdigit() and self.dialect == "python":
            digits = self.octal(3)
            if not digits or int(digits, 8) > 0o377:
                raise self.invalid("bad octal escape", at)
            return chr(int(digits, 8))
        return self.escape_value(flags, at)

    def literal(self, char: str, flags: Flags) -> CharacterSet:
        return CharacterSet.build([char], ignore_case=flags.ignore_case, dotted_i=self.dialect == "python")

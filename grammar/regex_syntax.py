"""Regular expressions as a syntax tree: one parser for two dialects.

``python`` reads what Python's :mod:`re` and the ``regex`` module (version 0) agree on; ``ecma`` reads JSON Schema's
`pattern`. What is malformed raises :class:`InvalidConstraint` with the position; what is well formed but has no
automaton (lookaround, backreferences, word boundaries, ...) raises :class:`UnsupportedConstraint` by name.

Only the set of matched texts matters here, so lazy and greedy quantifiers mean the same and groups capture nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..errors import InvalidConstraint, UnsupportedConstraint
from .regex_classes import CharacterSet, escape_class, property_class

__all__ = ["Alternation", "Anchor", "Concatenation", "Dialect", "Node", "Repeat", "parse_regex"]

Dialect = Literal["python", "ecma"]


@dataclass(frozen=True)
class Anchor:
    """`^`, ``\\A`` (start) or `$`, ``\\Z`` (end)."""

    at_start: bool
    position: int


@dataclass(frozen=True)
class Concatenation:
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Alternation:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    body: Node
    minimum: int
    maximum: int | None


Node = CharacterSet | Anchor | Concatenation | Alternation | Repeat


@dataclass(frozen=True)
class _Flags:
    ignore_case: bool = False
    dot_all: bool = False


_LOOKAROUND = {"=": "lookahead", "!": "negative lookahead", "<=": "lookbehind", "<!": "negative lookbehind"}
_PYTHON_ANCHORS = {"A": True, "Z": False}
_UNSUPPORTED_ESCAPES = {"b": "word boundary", "B": "word boundary", "k": "backreference", "g": "backreference"}
_REGEX_MODULE_ESCAPES = "GKLMRXmhz"  # mean something in the regex module and are errors in re
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_MAX_REPEAT = 2**32 - 1
_MAX_DEPTH = 100


def parse_regex(
    pattern: str, dialect: Dialect, *, ignore_case: bool = False, dot_all: bool = False, place: str = ""
) -> Node:
    """The tree of `pattern`. `place` is prefixed to the position in errors (a JSON path, for schemas)."""
    return _Parser(pattern, dialect, place).parse(_Flags(ignore_case, dot_all))


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect, place: str) -> None:
        self.pattern = pattern
        self.dialect = dialect
        self.place = place
        self.position = 0
        self.names: set[str] = set()
        self.depth = 0

    def parse(self, flags: _Flags) -> Node:
        flags = self.leading_flags(flags)
        node = self.alternation(flags)
        if self.position < len(self.pattern):
            raise self.invalid("unbalanced parenthesis")
        return node

    # Errors and the cursor

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

    # Structure

    def alternation(self, flags: _Flags) -> Node:
        options = [self.concatenation(flags)]
        while self.take("|"):
            options.append(self.concatenation(flags))
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def concatenation(self, flags: _Flags) -> Node:
        parts: list[Node] = []
        while self.position < len(self.pattern) and self.peek() not in "|)":
            atom = self.atom(flags)
            if atom is not None:
                parts.append(self.quantified(atom))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def atom(self, flags: _Flags) -> Node | None:
        start = self.position
        char = self.next("end of pattern")
        if char == "(":
            return self.group(flags, start)
        if char == "[":
            return self.character_class(flags, start)
        if char == ".":
            return self.dot(flags)
        if char == "^":
            return Anchor(True, start)
        if char == "$":
            return Anchor(False, start)
        if char in "*+?" or (char == "{" and self.braces(start) is not None):
            raise self.invalid("nothing to repeat", start)
        if char == "\\":
            return self.escape(flags, start)
        return self.literal(char, flags)

    def literal(self, char: str, flags: _Flags) -> CharacterSet:
        return CharacterSet.build([char], ignore_case=flags.ignore_case, dotted_i=self.dialect == "python")

    def dot(self, flags: _Flags) -> CharacterSet:
        newlines = "\n" if self.dialect == "python" else "\n\r\u2028\u2029"
        return CharacterSet.build([] if flags.dot_all else list(newlines), negated=True)

    def quantified(self, atom: Node) -> Node:
        start = self.position
        bounds = self.quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor):
            raise self.invalid("nothing to repeat", start)
        if self.peek() == "+":
            raise self.unsupported("possessive quantifier")
        self.take("?")
        follow = self.position
        if self.quantifier() is not None:
            raise self.invalid("multiple repeat", follow)
        return Repeat(atom, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        start = self.position
        if not self.take("{"):
            return None
        found = self.braces(start)
        if found is None:
            if self.dialect == "python" and self.peek() in tuple("eids<"):
                raise self.unsupported("fuzzy matching", start)  # a literal in re, an error bound in the regex module
            self.position = start
        return found

    def braces(self, start: int) -> tuple[int, int | None] | None:
        """Reads on behind a `{`; None, with the cursor behind the `{`, where it is a literal brace."""
        end = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position : end].partition(",") if end >= 0 else ("x", "", "")
        digits = all(part == "" or (part.isascii() and part.isdigit()) for part in (low, high))
        if comma and low == high == "":
            raise self.unsupported("the quantifier {,}", start)  # a literal for some, a star for others
        if not digits or low == high == "" or (low == "" and self.dialect == "ecma"):
            return None
        self.position = end + 1
        minimum = int(low or 0)
        maximum = minimum if not comma else (int(high) if high else None)
        if maximum is not None and minimum > maximum:
            raise self.invalid("min repeat greater than max repeat", start)
        if max(minimum, maximum or 0) > _MAX_REPEAT:
            raise self.invalid("the repetition number is too large", start)
        return minimum, maximum

    # Groups

    def group(self, flags: _Flags, start: int) -> Node | None:
        if self.take("?#"):
            end = self.pattern.find(")", self.position)
            if end < 0:
                raise self.invalid("missing ), unterminated comment", start)
            self.position = end + 1
            return None
        if self.take("?"):
            flags = self.group_kind(flags, start)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.unsupported("nesting deeper than 100 groups", start)
        body = self.alternation(flags)
        self.depth -= 1
        if not self.take(")"):
            raise self.invalid("missing ), unterminated subpattern", start)
        return body if isinstance(body, Alternation | Concatenation) else Concatenation((body,))

    def group_kind(self, flags: _Flags, start: int) -> _Flags:
        if self.take(":"):
            return flags
        for sign, name in _LOOKAROUND.items():
            if self.take(sign):
                raise self.unsupported(name, start)
        if self.take("P<") or self.take("<"):
            self.group_name(start)
            return flags
        for sign, name in ((">", "atomic group"), ("P=", "backreference"), ("(", "conditional group")):
            if self.take(sign):
                raise self.unsupported(name, start)
        if self.peek() in ("P", "&", "R") or self.peek().isdigit():
            raise self.unsupported("recursion", start)
        changed = self.flag_letters(flags, start)
        if not self.take(":"):
            if self.take(")"):
                raise self.unsupported("inline flags after the start of the pattern", start)
            raise self.invalid("unknown extension", start)
        return changed

    def group_name(self, start: int) -> None:
        end = self.pattern.find(">", self.position)
        name = self.pattern[self.position : end] if end >= 0 else ""
        if not name.isidentifier():
            raise self.invalid("bad group name", self.position)
        if name in self.names:
            raise self.invalid(f"redefinition of group name {name!r}", start)
        self.names.add(name)
        self.position = end + 1

    def leading_flags(self, flags: _Flags) -> _Flags:
        """Reads ``(?is)`` at the very start, which holds for the whole pattern."""
        while self.peek(2) == "(?" and self.pattern[self.position + 2 : self.position + 3] in tuple("aiLmsuxw"):
            start = self.position
            self.position += 2
            changed = self.flag_letters(flags, start)
            if not self.take(")"):
                self.position = start
                return flags
            flags = changed
        return flags

    def flag_letters(self, flags: _Flags, start: int) -> _Flags:
        value = True
        seen = 0
        while self.peek() and (self.peek().isalpha() or self.peek() == "-"):
            letter = self.next("unknown extension")
            seen += 1
            if letter == "-":
                value = False
            elif letter == "i":
                flags = replace(flags, ignore_case=value)
            elif letter == "s":
                flags = replace(flags, dot_all=value)
            elif letter == "u" and value:
                pass
            elif letter in "aLmxubefprwV":
                raise self.unsupported(f"inline flag {letter!r}", start)
            else:
                raise self.invalid("unknown extension", start)
        if not seen:
            raise self.invalid("unknown extension", start)
        return flags

    # Escapes and classes

    def escape(self, flags: _Flags, start: int) -> Node:
        letter = self.peek()
        if self.dialect == "python" and letter in _PYTHON_ANCHORS:
            self.position += 1
            return Anchor(_PYTHON_ANCHORS[letter], start)
        if letter in _UNSUPPORTED_ESCAPES:
            raise self.unsupported(_UNSUPPORTED_ESCAPES[letter], start)
        if letter.isdigit() and letter != "0":
            raise self.unsupported("backreference", start)
        found = self.escape_value(flags, start)
        return found if isinstance(found, CharacterSet) else self.literal(found, flags)

    def escape_value(self, flags: _Flags, start: int) -> CharacterSet | str:
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

    def character_class(self, flags: _Flags, start: int) -> CharacterSet:
        negated = self.take("^")
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

    def class_atom(self, flags: _Flags, start: int) -> CharacterSet | str:
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

"""Regular expressions as a syntax tree: one parser for two dialects.

``python`` reads what Python's :mod:`re` and the ``regex`` module (version 0) agree on; ``ecma`` reads JSON Schema's
`pattern`. What is malformed raises :class:`InvalidConstraint` with the position; what is well formed but has no
automaton (lookaround, backreferences, word boundaries, ...) raises :class:`UnsupportedConstraint` by name.

Only the set of matched texts matters here, so lazy and greedy quantifiers mean the same and groups capture nothing.
"""

from __future__ import annotations

from dataclasses import replace

from .regex_classes import CharacterSet
from .regex_nodes import Alternation, Anchor, Concatenation, Node, Repeat
from .regex_reader import Dialect, Flags, RegexReader

__all__ = ["parse_regex"]

_LOOKAROUND = {"=": "lookahead", "!": "negative lookahead", "<=": "lookbehind", "<!": "negative lookbehind"}
_PYTHON_ANCHORS = {"A": True, "Z": False}
_UNSUPPORTED_ESCAPES = {"b": "word boundary", "B": "word boundary", "k": "backreference", "g": "backreference"}
_MAX_REPEAT = 2**32 - 1
_MAX_DEPTH = 100


def parse_regex(
    pattern: str, dialect: Dialect, ignore_case: bool = False, dot_all: bool = False, *, place: str = ""
) -> Node:
    """The tree of `pattern`. `place` is prefixed to the position in errors (a JSON path, for schemas)."""
    return _Parser(pattern, dialect, place).parse(Flags(ignore_case, dot_all))


class _Parser(RegexReader):
    def __init__(self, pattern: str, dialect: Dialect, place: str) -> None:
        super().__init__(pattern, dialect, place)
        self.names: set[str] = set()
        self.depth = 0

    def parse(self, flags: Flags) -> Node:
        flags = self.leading_flags(flags)
        node = self.alternation(flags)
        if self.position < len(self.pattern):
            raise self.invalid("unbalanced parenthesis")
        return node

    # Structure

    def alternation(self, flags: Flags) -> Node:
        options = [self.concatenation(flags)]
        while self.take("|"):
            options.append(self.concatenation(flags))
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def concatenation(self, flags: Flags) -> Node:
        parts: list[Node] = []
        while self.position < len(self.pattern) and self.peek() not in "|)":
            if not self.comment():
                parts.append(self.quantified(self.atom(flags)))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def atom(self, flags: Flags) -> Node:
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

    def dot(self, flags: Flags) -> CharacterSet:
        newlines = "\n" if self.dialect == "python" else "\n\r\u2028\u2029"
        return CharacterSet.build([] if flags.dot_all else list(newlines), negated=True)

    def quantified(self, atom: Node) -> Node:
        while self.comment():
            pass
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

    def escape(self, flags: Flags, start: int) -> Node:
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

    # Groups

    def comment(self) -> bool:
        """Reads ``(?#...)``, which may stand anywhere in Python."""
        start = self.position
        if self.dialect != "python" or not self.take("(?#"):
            return False
        end = self.pattern.find(")", self.position)
        if end < 0:
            raise self.invalid("missing ), unterminated comment", start)
        self.position = end + 1
        return True

    def group(self, flags: Flags, start: int) -> Node:
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

    def group_kind(self, flags: Flags, start: int) -> Flags:
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

    def leading_flags(self, flags: Flags) -> Flags:
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

    def flag_letters(self, flags: Flags, start: int) -> Flags:
        if self.dialect == "ecma":
            raise self.unsupported("inline flags", start)
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

"""How deep a lowered schema nests. The engine walks it by recursion, through references too, without a limit of its
own on the way: a long chain of definitions would overflow the stack of its thread."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import CompileBudgetExceeded
from .json_schema import LoweredSchema, Schema

__all__ = ["check_depth", "check_text_depth", "parts"]

_MAX_DEPTH = 250  # schemas within schemas; 8 MiB of stack overflow at about 2,000
_MAX_TEXT_DEPTH = 110  # brackets in the lowered document; the engine's JSON reader stops at 128


def parts(node: Schema) -> Iterator[Schema]:
    """The schemas directly within a lowered one."""
    if isinstance(node, bool):
        return
    for keyword, value in node.items():
        if keyword in ("properties", "patternProperties"):
            yield from value.values()
        elif keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
            yield from value
        elif keyword in ("items", "additionalProperties"):
            yield value


def check_depth(lowered: LoweredSchema) -> None:
    """Raises CompileBudgetExceeded for a schema that the engine might not survive."""
    entered: set[str] = set()

    def visit(node: Schema, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise CompileBudgetExceeded("nesting", f"schemas nest deeper than {_MAX_DEPTH} levels, references included")
        for part in parts(node):
            visit(part, depth + 1)
        if isinstance(node, dict) and "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name not in entered:
                entered.add(name)
                visit(lowered.definitions[name], depth + 1)

    visit(lowered.root, 0)


def check_text_depth(text: str) -> None:
    depth = deepest = 0
    for bracket in re.findall(r'"(?:[^"\\]|\\.)*"|([\[{\]}])', text):
        depth += 1 if bracket in ("[", "{") else -1 if bracket else 0
        deepest = max(deepest, depth)
    if deepest > _MAX_TEXT_DEPTH:
        raise CompileBudgetExceeded("nesting", f"the lowered schema nests deeper than {_MAX_TEXT_DEPTH} brackets")

"""What happens to each keyword of a JSON Schema: the declared table that the tests hold against the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

__all__ = ["DRAFTS", "KEYWORDS", "Draft", "Keyword", "Treatment", "classify_unknown"]


class Treatment(Enum):
    """How a keyword is treated. The value is what the report says."""

    ENFORCED = "enforced"
    ANNOTATION = "annotation"
    STRUCTURE = "names a part of the schema"
    WITHOUT_EFFECT = "without effect here"
    UNSUPPORTED = "unsupported"


class Draft(Enum):
    """A draft of JSON Schema: its number, and the `$schema` by which the meta-schema is known."""

    DRAFT4 = (4, "http://json-schema.org/draft-04/schema#")
    DRAFT6 = (6, "http://json-schema.org/draft-06/schema#")
    DRAFT7 = (7, "http://json-schema.org/draft-07/schema#")
    DRAFT2019 = (2019, "https://json-schema.org/draft/2019-09/schema")
    DRAFT2020 = (2020, "https://json-schema.org/draft/2020-12/schema")

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def uri(self) -> str:
        return self.value[1]


DRAFTS: Mapping[str, Draft] = {draft.uri.rstrip("#"): draft for draft in Draft}


@dataclass(frozen=True)
class Keyword:
    """A keyword, and the first and last draft that know it."""

    treatment: Treatment
    first: int = 4
    last: int = 2020

    def known_to(self, draft: Draft) -> bool:
        return self.first <= draft.number <= self.last


def _table(treatment: Treatment, names: str, first: int = 4, last: int = 2020) -> dict[str, Keyword]:
    return {name: Keyword(treatment, first, last) for name in names.split()}


# In the drafts before 2019 `$defs` has no meaning of its own, but holds the targets of references all the same.
KEYWORDS: Mapping[str, Keyword] = {
    **_table(Treatment.ENFORCED, "type enum allOf anyOf oneOf $ref"),
    **_table(Treatment.ENFORCED, "properties required additionalProperties patternProperties"),
    **_table(Treatment.ENFORCED, "minProperties maxProperties items minItems maxItems"),
    **_table(Treatment.ENFORCED, "minLength maxLength pattern format"),
    **_table(Treatment.ENFORCED, "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
    **_table(Treatment.ENFORCED, "const", first=6),
    **_table(Treatment.ENFORCED, "prefixItems", first=2020),
    **_table(Treatment.ENFORCED, "additionalItems", last=2019),
    **_table(Treatment.STRUCTURE, "$schema $id id $anchor $dynamicAnchor $recursiveAnchor definitions $defs"),
    **_table(Treatment.ANNOTATION, "title description default examples deprecated readOnly writeOnly $comment"),
    **_table(Treatment.ANNOTATION, "contentEncoding contentMediaType contentSchema $vocabulary"),
    **_table(Treatment.UNSUPPORTED, "not uniqueItems"),
    **_table(Treatment.UNSUPPORTED, "dependencies", last=7),
    **_table(Treatment.UNSUPPORTED, "contains propertyNames", first=6),
    **_table(Treatment.UNSUPPORTED, "if then else", first=7),
    **_table(Treatment.UNSUPPORTED, "dependentRequired dependentSchemas minContains maxContains", first=2019),
    **_table(Treatment.UNSUPPORTED, "unevaluatedItems unevaluatedProperties", first=2019),
    **_table(Treatment.UNSUPPORTED, "$recursiveRef", first=2019, last=2019),
    **_table(Treatment.UNSUPPORTED, "$dynamicRef", first=2020),
}

# Assertions of older drafts, of OpenAPI 3.0 and of widespread extensions: never to be taken for annotations.
_FOREIGN_ASSERTIONS = frozenset(
    name.lower()
    for name in """
    divisibleBy disallow extends nullable x-guidance range exclusiveRange instanceof typeof regexp transform min max
    minValue maxValue minimumLength maximumLength uniqueItemProperties allRequired anyRequired oneRequired select
    patternRequired prohibited unique deepProperties deepRequired dynamicDefaults formatMinimum formatMaximum switch
    formatExclusiveMinimum formatExclusiveMaximum contentAssertion propertyDependencies
    maxlen minlen length regex values choices allowed optional props
    """.split()
)


@lru_cache(maxsize=1024)
def classify_unknown(name: str) -> Treatment:
    """The treatment of a keyword that no draft knows.

    The specification makes unknown keywords annotations. One that asserts something elsewhere, or that reads like
    a misspelt assertion, is refused nevertheless: to ignore it would give texts that its author never wanted.
    """
    if name.lower() in _FOREIGN_ASSERTIONS:
        return Treatment.UNSUPPORTED
    if name.startswith(("x-", "_", "$$")):
        return Treatment.ANNOTATION
    near = any(_reads_like(name, known) for known, keyword in KEYWORDS.items() if _asserts(keyword))
    return Treatment.UNSUPPORTED if near else Treatment.ANNOTATION


def _asserts(keyword: Keyword) -> bool:
    return keyword.treatment in (Treatment.ENFORCED, Treatment.UNSUPPORTED)


def _reads_like(name: str, known: str) -> bool:
    name, known = name.strip().lower(), known.lower()
    if name == known or name.strip("$@") == known.strip("$@"):
        return True
    if sorted(name) == sorted(known):
        return True
    allowed = 2 if len(known) >= 8 else 1 if len(known) >= 4 else 0
    return abs(len(name) - len(known)) <= allowed and _edits(name, known) <= allowed


def _edits(left: str, right: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(right) + 1))
    for count, char in enumerate(left, 1):
        previous, row[0] = row[0], count
        for index, other in enumerate(right, 1):
            previous, row[index] = row[index], min(row[index] + 1, row[index - 1] + 1, previous + (char != other))
    return row[-1]

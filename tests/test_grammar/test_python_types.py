"""Schemas of Python types, through Pydantic."""

import dataclasses
import datetime
import enum
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from drawloom.errors import InvalidConstraint, UnsupportedConstraint
from drawloom.grammar import CompiledGrammar, Constraint, JSONSchema

Compile = Callable[[Constraint], CompiledGrammar]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=5)
    count: int = Field(ge=1, description="how many")


class Invoice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    vendor: str
    total: float
    colour: Colour
    day: datetime.date | None = None
    lines: list[Line] = Field(default_factory=list, max_length=2)


class Card(BaseModel):
    kind: Literal["card"]
    number: Annotated[str, Field(pattern="^[0-9]{4}$")]


class Bank(BaseModel):
    kind: Literal["bank"]
    iban: str


class Payment(BaseModel):
    means: Card | Bank = Field(discriminator="kind")


@dataclasses.dataclass
class Point:
    x: int
    label: str = "p"


class Inner(typing.TypedDict):
    a: int


class Options(typing.TypedDict, total=False):
    inner: typing_extensions.Required[Inner]
    many: list[Inner]


class ExtendedOptions(typing_extensions.TypedDict):
    a: int


CASES: list[tuple[Any, str, list[str]]] = [
    (
        Invoice,
        '{"vendor": "v", "total": 1.5, "colour": "red", "day": "2024-02-29", "lines": [{"text": "a", "count": 1}]}',
        [
            '{"vendor": "v", "total": 1.5}',
            '{"vendor": "v", "total": 1.5, "colour": "green"}',
            '{"vendor": "v", "total": 1.5, "colour": "red", "lines": [{"text": "", "count": 1}]}',
            '{"vendor": "v", "total": 1.5, "colour": "red", "lines": [{"text": "a", "count": 0}]}',
            '{"vendor": "v", "total": 1.5, "colour": "red", "extra": 1}',
        ],
    ),
    (Payment, '{"means": {"kind": "bank", "iban": "x"}}', ['{"means": {"kind": "card", "number": "12"}}', "{}"]),
    (Point, '{"x": 1, "label": "q"}', ['{"x": "1"}', '{"label": "q"}']),
    (Options, '{"inner": {"a": 1}, "many": [{"a": 2}]}', ['{"many": []}', '{"inner": {"a": "x"}}']),
    (ExtendedOptions, '{"a": 1}', ["{}"]),
    (list[int], "[1, 2]", ["[true]", "1"]),
    (Literal["a", 1], '"a"', ['"b"', "2"]),
    (int | None, "null", ['"x"']),
    (dict[str, Point], '{"k": {"x": 1}}', ['{"k": 1}']),
]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_types(index: int, compile_: Compile) -> None:
    python_type, valid, invalid = CASES[index]
    constraint = JSONSchema(python_type)
    compiled = compile_(constraint)
    assert compiled.accepts(valid)
    TypeAdapter(constraint.python_type).validate_json(valid)
    for text in invalid:
        assert not compiled.accepts(text)


def test_the_type_is_kept_for_reading_results() -> None:
    assert JSONSchema(Invoice).python_type is Invoice and JSONSchema(Point).python_type is Point
    assert JSONSchema({}).python_type is None and JSONSchema("{}").python_type is None
    assert JSONSchema(Invoice) == JSONSchema(Invoice.model_json_schema())
    read = TypeAdapter(JSONSchema(Options).python_type).validate_json('{"inner": {"a": 1}}')
    assert read == {"inner": {"a": 1}}


@pytest.mark.parametrize("wrong", [object(), Callable[[int], int], "not json", 1.5])
def test_what_pydantic_cannot_describe(wrong: object) -> None:
    with pytest.raises(InvalidConstraint):
        JSONSchema(wrong)


def test_types_that_cannot_be_enforced_yet(compile_: Compile) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(JSONSchema(set[int]))
    assert refused.value.keyword == "uniqueItems"

"""The family of errors: one root, attributes that name the offender, messages that say it."""

import pytest

from drawloom import errors
from drawloom.errors import DrawloomError


def test_all_lists_every_error() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert set(errors.__all__) == defined
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_family_has_one_root(name: str) -> None:
    assert issubclass(getattr(errors, name), DrawloomError)
    assert getattr(errors, name).__doc__


@pytest.mark.parametrize(
    ("error", "parent"),
    [
        (errors.InvalidConstraint, errors.ConstraintError),
        (errors.UnsupportedConstraint, errors.ConstraintError),
        (errors.UnsatisfiableConstraint, errors.ConstraintError),
        (errors.CompileBudgetExceeded, errors.ConstraintError),
        (errors.PromptTooLong, errors.RequestError),
    ],
)
def test_branches(error: type[DrawloomError], parent: type[DrawloomError]) -> None:
    assert issubclass(error, parent)


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (errors.InvalidConstraint("$.a", "bad"), {"place": "$.a", "message": "bad"}),
        (errors.UnsupportedConstraint("$.a", "uniqueItems"), {"path": "$.a", "keyword": "uniqueItems"}),
        (errors.UnsatisfiableConstraint("$.a"), {"path": "$.a"}),
        (errors.CompileBudgetExceeded("states", "more than 10"), {"what": "states", "message": "more than 10"}),
        (errors.RequestError("top_p", 2.0, "must be at most 1"), {"field": "top_p", "value": 2.0}),
        (errors.PromptTooLong(9, 8), {"field": "prompt", "value": 9, "limit": 8}),
        (errors.ModelError("bad", tensor="w", file="f", shapes=([1], [2])), {"tensor": "w", "file": "f"}),
        (
            errors.ProgramError("0.1", "answer", "so far", "cut"),
            {"branch": "0.1", "variable": "answer", "text": "so far"},
        ),
    ],
)
def test_attributes_are_kept_and_told(error: DrawloomError, attributes: dict[str, object]) -> None:
    for name, value in attributes.items():
        assert getattr(error, name) == value
        assert str(value) in str(error)


def test_model_error_tells_both_shapes() -> None:
    message = str(errors.ModelError("wrong shape", tensor="w", shapes=([2, 3], None)))
    assert "[2, 3]" in message and "none" in message


def test_long_values_are_shortened_in_the_message() -> None:
    error = errors.RequestError("prompt", "x" * 10_000, "too long")
    assert len(str(error)) < 300
    assert error.value == "x" * 10_000

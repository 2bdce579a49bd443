"""The errors that Drawloom raises. Everything derives from :class:`DrawloomError`."""

from collections.abc import Sequence

__all__ = [
    "CompileBudgetExceeded",
    "ConstraintError",
    "DrawloomError",
    "EngineError",
    "InvalidConstraint",
    "ModelError",
    "ProgramError",
    "PromptTooLong",
    "RequestError",
    "UnsatisfiableConstraint",
    "UnsupportedConstraint",
]


class DrawloomError(Exception):
    """Root of the family."""


class ConstraintError(DrawloomError):
    """A constraint was refused; it never reaches the engine."""


class InvalidConstraint(ConstraintError):
    """The constraint is malformed. `place` is a JSON path (``$.properties.a``) or a position in the text."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place
        self.message = message


class UnsupportedConstraint(ConstraintError):
    """The constraint is well formed, but `keyword` at `path` can't be enforced exactly, so it is refused."""

    def __init__(self, path: str, keyword: str, message: str = "is not supported") -> None:
        super().__init__(f"{path}: {keyword!r} {message}")
        self.path = path
        self.keyword = keyword
        self.message = message


class UnsatisfiableConstraint(ConstraintError):
    """No text can satisfy the constraint at `path`."""

    def __init__(self, path: str, message: str = "no text can satisfy this") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class CompileBudgetExceeded(ConstraintError):
    """Compiling the constraint passed a limit on time, states or memory; `what` names what grew."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what
        self.message = message


class RequestError(DrawloomError):
    """A request or an option was refused: `field` names it and `value` is what was given."""

    def __init__(self, field: str, value: object, message: str) -> None:
        shown = repr(value)
        super().__init__(f"{field}={shown if len(shown) <= 200 else shown[:200] + '…'}: {message}")
        self.field = field
        self.value = value
        self.message = message


class PromptTooLong(RequestError):
    """The prompt leaves no room for a single new token. `value` is its length in tokens, `limit` the most that fits."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__("prompt", length, f"{length} prompt tokens, at most {limit} fit")
        self.limit = limit


class ModelError(DrawloomError):
    """A checkpoint can't be loaded: names the tensor, the file and the expected and found shapes where they apply."""

    def __init__(
        self,
        message: str,
        *,
        tensor: str | None = None,
        file: str | None = None,
        shapes: tuple[Sequence[int] | None, Sequence[int] | None] | None = None,
    ) -> None:
        parts = [message]
        if tensor is not None:
            parts.append(f"tensor {tensor}")
        if file is not None:
            parts.append(f"file {file}")
        if shapes is not None:
            expected, found = shapes
            parts.append(f"expected shape {_shown(expected)}, found {_shown(found)}")
        super().__init__("; ".join(parts))
        self.tensor = tensor
        self.file = file
        self.shapes = shapes


def _shown(shape: Sequence[int] | None) -> str:
    return "none" if shape is None else str(list(shape))


class ProgramError(DrawloomError):
    """A program's variable could not be produced. `text` is what its branch had written so far."""

    def __init__(self, branch: str, variable: str | None, text: str, message: str) -> None:
        where = f"branch {branch!r}" + (f", variable {variable!r}" if variable is not None else "")
        super().__init__(f"{where}: {message} (text so far: {text[-200:]!r})")
        self.branch = branch
        self.variable = variable
        self.text = text
        self.message = message


class EngineError(DrawloomError):
    """The engine itself failed, or was closed."""

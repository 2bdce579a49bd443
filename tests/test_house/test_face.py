"""The public face: what type checkers see is what Python finds, and nothing is loaded before it is asked for."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import drawloom
from drawloom import errors


@pytest.fixture(scope="module")
def face(checkout: Path) -> ast.Module:
    return ast.parse((checkout / "__init__.py").read_text("utf-8"))


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _seen_by_type_checkers(face: ast.Module) -> dict[str, str]:
    blocks = [node for node in face.body if isinstance(node, ast.If) and _is_name(node.test, "TYPE_CHECKING")]
    seen = {}
    for block in blocks:
        for node in block.body:
            assert isinstance(node, ast.ImportFrom)
            for alias in node.names:
                assert alias.asname == alias.name, (
                    f"write `import {alias.name} as {alias.name}`: strict mypy re-exports only that"
                )
                seen[alias.name] = "." * node.level + (node.module or "")
    return seen


def test_type_checkers_see_the_lazy_names(face: ast.Module) -> None:
    assert _seen_by_type_checkers(face) == drawloom._PLACES


def test_lazy_lookup_is_hidden_from_type_checkers(face: ast.Module) -> None:
    assert [node for node in face.body if isinstance(node, ast.FunctionDef)] == []
    hidden = [node for node in face.body if isinstance(node, ast.If) and isinstance(node.test, ast.UnaryOp)]
    assert len(hidden) == 1
    assert [node.name for node in hidden[0].body if isinstance(node, ast.FunctionDef)] == ["__getattr__", "__dir__"]


def test_all_is_the_lazy_names_the_errors_and_the_version() -> None:
    assert len(drawloom.__all__) == len(set(drawloom.__all__))
    assert set(drawloom.__all__) == {*drawloom._PLACES, *errors.__all__, "__version__"}
    assert drawloom.__all__ == sorted(drawloom.__all__)


@pytest.mark.parametrize("name", sorted(drawloom._PLACES))
def test_lazy_name_resolves_to_its_place(name: str) -> None:
    value = getattr(drawloom, name)
    assert value is getattr(importlib.import_module(drawloom._PLACES[name], "drawloom"), name)
    assert getattr(value, "__doc__", None), f"{name} is public and has no docstring"


def test_dir_lists_everything() -> None:
    assert set(drawloom.__all__) <= set(dir(drawloom))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Enigne"):
        getattr(drawloom, "Enigne")


def test_import_loads_the_errors_alone() -> None:
    program = """
import drawloom, sys
print(*sorted(name for name in sys.modules if name.startswith(("drawloom", "numpy", "torch"))))
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["drawloom", "drawloom.errors"]

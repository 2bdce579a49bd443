"""Our folder `kernels` must not break libraries that look for a distribution of that name."""

import ast
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PLACES = ["checkout", "elsewhere"]


def _run(program: str, folder: Path) -> str:
    # Without -P, so that the current folder is on the path as it is for a user at the prompt.
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, checkout: Path, tmp_path: Path) -> Path:
    return checkout if request.param == "checkout" else tmp_path


@pytest.mark.parametrize("library", ["transformers", "xgrammar", "sglang"])
def test_library_imports(library: str, place: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert _run(f"import {library}; print({library}.__name__)", place) == library


@pytest.fixture
def no_kernels_distribution() -> None:
    pytest.importorskip("transformers")
    try:
        importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return
    pytest.skip("a distribution named kernels is installed")


@pytest.mark.usefixtures("no_kernels_distribution")
def test_transformers_sees_no_kernels(place: Path) -> None:
    program = "from transformers.utils import is_kernels_available; print(is_kernels_available())"
    assert _run(program, place) == "False"


@pytest.mark.usefixtures("no_kernels_distribution")
def test_transformers_sees_no_kernels_in_this_process() -> None:
    from transformers.utils.import_utils import is_kernels_available

    assert not is_kernels_available()
    assert "kernels" not in sys.modules


def test_kernels_init_is_a_docstring_alone(checkout: Path) -> None:
    body = ast.parse((checkout / "kernels" / "__init__.py").read_text("utf-8")).body
    assert len(body) == 1
    assert (
        isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    )

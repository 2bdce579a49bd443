"""The contracts on imports hold, and each of them would be noticed if it were broken."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPTS = Path(sysconfig.get_path("scripts"))
FOLDERS = ("frontend", "grammar", "kernels", "runtime")
VIOLATIONS = {
    "grammar/uses_torch.py": "def lazily():\n    import torch\n",
    "grammar/looks_up.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from ..runtime import models\n",
    "kernels/looks_aside.py": "from .. import grammar\n",
    "runtime/uses_the_face.py": "from .. import looks_down\n",
    "looks_down.py": "from . import frontend\n",
    "frontend/launches.py": "from .. import kernels\n",
    "runtime/uses_triton.py": "import triton\n",
}


@pytest.fixture
def copy(checkout: Path, tmp_path: Path) -> Path:
    """The package and its configuration in a folder of its own, named `drawloom`."""
    root = tmp_path / "drawloom"
    for folder in FOLDERS:
        shutil.copytree(checkout / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py", "pyproject.toml"):
        shutil.copy(checkout / name, root / name)
    return root


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "lint-imports", "--no-cache"],
        cwd=root,
        env={"PYTHONPATH": str(root.parent), "PATH": str(SCRIPTS), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def test_arrows_hold(copy: Path) -> None:
    done = _lint_imports(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kept, 0 broken" in done.stdout


def test_broken_arrows_are_noticed(copy: Path) -> None:
    for name, text in VIOLATIONS.items():
        (copy / name).write_text(text, "utf-8")
    done = _lint_imports(copy)
    assert done.returncode == 1
    assert "0 kept, 4 broken" in done.stdout
    for name in VIOLATIONS:
        module = f"drawloom.{name.removesuffix('.py').replace('/', '.')}"
        assert module in done.stdout, f"{name} was not noticed:\n{done.stdout}"


@pytest.mark.parametrize("name", [*FOLDERS, "errors"])
@pytest.mark.parametrize("place", ["runtime/somewhere.py", "tests/test_runtime/test_somewhere.py"])
def test_absolute_imports_are_banned(checkout: Path, name: str, place: str) -> None:
    for source in (f"import {name}\n\nprint({name})\n", f"from {name} import anything\n\nprint(anything)\n"):
        done = _ruff(checkout, place, source)
        assert done.returncode == 1 and "TID251" in done.stdout, done.stdout + done.stderr


def test_relative_imports_between_folders_are_allowed(checkout: Path) -> None:
    done = _ruff(checkout, "runtime/somewhere.py", "from ..grammar import anything\n\nprint(anything)\n")
    assert done.returncode == 0, done.stdout + done.stderr


def _ruff(checkout: Path, place: str, source: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--stdin-filename",
        str(checkout / place),
        "-",
    ]
    return subprocess.run(command, cwd=checkout, input=source, capture_output=True, text=True)

"""No source file of ours is loaded under two names; the check itself runs after the last test (see conftest.py)."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import drawloom.errors

MisnamedFiles = Callable[[Mapping[str, ModuleType]], dict[Path, set[str]]]


def _module(name: str, file: str | None) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = file
    return module


def test_checkout_is_not_on_the_path(checkout: Path) -> None:
    assert [entry for entry in sys.path if Path(entry).resolve() == checkout] == []


def test_so_far_each_file_has_one_name(misnamed_files: MisnamedFiles) -> None:
    assert misnamed_files(sys.modules) == {}


def test_second_name_is_found(misnamed_files: MisnamedFiles) -> None:
    file = drawloom.errors.__file__
    modules = {"drawloom.errors": _module("drawloom.errors", file), "errors": _module("errors", file)}
    assert list(misnamed_files(modules).values()) == [{"drawloom.errors", "errors"}]


def test_single_wrong_name_is_found(misnamed_files: MisnamedFiles, checkout: Path) -> None:
    file = str(checkout / "kernels" / "__init__.py")
    assert list(misnamed_files({"kernels": _module("kernels", file)}).values()) == [{"kernels"}]


def test_strangers_are_left_alone(misnamed_files: MisnamedFiles) -> None:
    strangers = {
        "torch.ops": _module("torch.ops", "_ops.py"),
        "space": _module("space", None),
        "pytest": sys.modules["pytest"],
    }
    assert misnamed_files(strangers) == {}


def test_python_m_pytest_loads_nothing_twice(checkout: Path) -> None:
    # It puts the root on the path, where transformers would find our folder `kernels`; conftest.py takes it off again.
    tests = "tests/test_house/test_shadowing.py::test_transformers_sees_no_kernels_in_this_process"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

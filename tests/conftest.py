"""What all tests share: a clean import path, a fixed number of threads, the larger data sets, a check on names."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDERS = ("frontend", "runtime", "grammar", "kernels")

# `python -m pytest` puts the checkout on the path; then `import kernels` in another library would find our folder.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != CHECKOUT]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when torch is loaded


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The repository root, which is the package `drawloom`."""
    return CHECKOUT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the larger data sets, or a skip where `DRAWLOOM_TEST_DATA` is not set."""
    folder = os.environ.get("DRAWLOOM_TEST_DATA")
    if not folder:
        pytest.skip("DRAWLOOM_TEST_DATA is not set: it names the folder of the larger data sets")
    path = Path(folder).resolve()
    assert path.is_dir(), f"DRAWLOOM_TEST_DATA={folder} is not a folder"
    return path


def _misnamed_files(modules: Mapping[str, ModuleType]) -> dict[Path, set[str]]:
    import drawloom

    assert drawloom.__file__ is not None
    roots = {CHECKOUT, Path(drawloom.__file__).resolve().parent}
    names: dict[Path, set[str]] = defaultdict(set)
    for name, module in list(modules.items()):
        file = getattr(module, "__file__", None)
        # torch.ops says "_ops.py", which would resolve into the current folder.
        if not isinstance(file, str) or not Path(file).is_absolute():
            continue
        path = Path(file).resolve()
        if any(_is_ours(path, root) for root in roots):
            names[path].add(name)
    return {
        path: found
        for path, found in names.items()
        if len(found) > 1 or not all(name == "drawloom" or name.startswith("drawloom.") for name in found)
    }


def _is_ours(path: Path, root: Path) -> bool:
    if not path.is_relative_to(root):
        return False
    place = path.relative_to(root).parts
    return place[0] in FOLDERS or place in (("__init__.py",), ("errors.py",))


@pytest.fixture(scope="session")
def misnamed_files() -> Callable[[Mapping[str, ModuleType]], dict[Path, set[str]]]:
    """Of the given modules, our source files that are loaded twice or under a name outside `drawloom`."""
    return _misnamed_files


@pytest.fixture(scope="session", autouse=True)
def one_name_per_module() -> Iterator[None]:
    """After the last test: no source file of ours was loaded under a second name."""
    yield
    assert _misnamed_files(sys.modules) == {}

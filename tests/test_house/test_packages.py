"""The list of packages in pyproject.toml is the list of folders, and the version is said once."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

import drawloom

FOLDERS = ("frontend", "grammar", "kernels", "runtime")


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))


def _folders_with_sources(checkout: Path) -> list[Path]:
    found = []
    for folder in FOLDERS:
        for place, folders, files in os.walk(checkout / folder):
            folders[:] = [name for name in folders if name != "__pycache__"]
            if any(name.endswith(".py") for name in files):
                found.append(Path(place))
    return found


def test_packages_are_the_folders(checkout: Path, project: dict[str, Any]) -> None:
    folders = [
        "drawloom",
        *(f"drawloom.{'.'.join(f.relative_to(checkout).parts)}" for f in _folders_with_sources(checkout)),
    ]
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_every_folder_with_sources_is_a_package(checkout: Path) -> None:
    assert [folder for folder in _folders_with_sources(checkout) if not (folder / "__init__.py").exists()] == []


def test_only_the_four_folders_of_the_root_are_packages(checkout: Path) -> None:
    packages = {place.parent.name for place in checkout.glob("*/__init__.py")} - {"build", "dist"}
    assert packages == set(FOLDERS)


def test_no_test_folder_is_a_package_or_has_the_name_of_one(checkout: Path) -> None:
    assert list((checkout / "tests").rglob("__init__.py")) == []
    assert [name for name in FOLDERS if (checkout / "tests" / name).exists()] == []


def test_pytest_is_configured_in_the_test_folder_alone(checkout: Path, project: dict[str, Any]) -> None:
    assert (checkout / "tests" / "pytest.ini").is_file()
    assert "pytest" not in project["tool"]
    assert [name for name in ("pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg") if (checkout / name).exists()] == []


def test_the_link_for_type_checkers_leads_to_the_root(checkout: Path) -> None:
    assert os.readlink(checkout / ".dev" / "drawloom") == ".."


def test_types_ship(checkout: Path, project: dict[str, Any]) -> None:
    assert (checkout / "py.typed").is_file()
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["drawloom"]


def test_version_is_the_same_in_both_places(project: dict[str, Any]) -> None:
    assert drawloom.__version__ == project["project"]["version"]


def test_continuous_integration_pins_every_dependency(checkout: Path, project: dict[str, Any]) -> None:
    lines = (checkout / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {_canonical(name) for name in pins}
    extras = project["project"]["optional-dependencies"].values()
    required = [*project["project"]["dependencies"], *(line for extra in extras for line in extra)]
    names = {_canonical(_distribution(line)) for line in required} - {"drawloom"}
    assert names - pinned == set()
    assert pins["torch"] == "2.13.0"


def _distribution(requirement: str) -> str:
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), len(requirement))
    return requirement[:end]


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")

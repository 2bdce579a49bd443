"""What the README tells people to type is what continuous integration types, and its program is a real one."""

import ast
import re
from pathlib import Path

import pytest

import drawloom


@pytest.fixture(scope="module")
def readme(checkout: Path) -> str:
    return (checkout / "README.md").read_text("utf-8")


def _blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", readme, flags=re.DOTALL | re.MULTILINE)


def test_the_two_commands_are_run_word_for_word(readme: str, checkout: Path) -> None:
    commands = [line for block in _blocks(readme, "bash") for line in block.splitlines()][:2]
    run = [line.strip() for line in (checkout / ".ci" / "run").read_text("utf-8").splitlines()]
    first, second = commands
    assert "examples/extract_invoice.py" in first and first in run
    assert "pytest tests" in second and second in run
    assert "readme_first" in run and any(line.startswith("readme_second") and "()" not in line for line in run)


def test_programs_use_names_of_the_face(readme: str) -> None:
    programs = _blocks(readme, "python")
    assert programs
    for program in programs:
        tree = ast.parse(program)
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dl"
        }
        assert used
        assert used - set(drawloom.__all__) == set()


def test_links_lead_somewhere(readme: str, checkout: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", readme) if "://" not in link]
    assert links
    assert [link for link in links if not (checkout / link).exists()] == []

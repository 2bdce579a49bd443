"""The Triton kernels against their twins on the CPU, in Triton's interpreter."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("triton_cases.py")
NAMES = re.findall(r"^def case_(\w+)", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def failures() -> dict[str, str | None]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    run = subprocess.run([sys.executable, "-P", str(SCRIPT)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found: dict[str, str | None] = json.loads(run.stdout)
    assert sorted(found) == sorted(NAMES)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_twin(name: str, failures: dict[str, str | None]) -> None:
    assert failures[name] is None, failures[name]

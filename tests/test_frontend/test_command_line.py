"""The commands as processes of their own, on a tiny random model."""

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NUM_ROWS = 60
TEMPLATE = "{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}<bos>assistant: "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    spec = importlib.util.spec_from_file_location("tiny_models", checkout / "tests/test_runtime/conftest.py")
    assert spec is not None and spec.loader is not None
    tiny_models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny_models)
    folder = tmp_path_factory.mktemp("model")
    tiny_models.write_checkpoint(folder, "deepseek")
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "in.jsonl"
    lines = [json.dumps({"id": f"row {i}", "prompt": f"number {i}"}) for i in range(NUM_ROWS)]
    lines[7] = json.dumps({"id": "bad", "prompt": 7})
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path, rows: Path) -> bytes:
    """The output of a run that nothing interrupted."""
    output = tmp_path_factory.mktemp("whole") / "out.jsonl"
    done = drawloom(*batch(model, rows, output))
    assert done.returncode == 0, done.stderr
    assert f"rows={NUM_ROWS}/{NUM_ROWS}" in done.stderr and "errors=1" in done.stderr
    return output.read_bytes()


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "drawloom", *map(str, arguments)]


def drawloom(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), input=stdin, capture_output=True, encoding="utf-8", timeout=60)


def engine(model: Path) -> list[object]:
    return ["--model", model, "--dtype", "float32", "--threads", 1, "--kv-bytes", 8 << 20]


def batch(model: Path, rows: Path, output: Path, seed: int = 1) -> list[object]:
    return ["batch", rows, output, "--seed", seed, "--max-tokens", 24, "--in-flight", 4, *engine(model)]


def stop_midway(arguments: list[object], output: Path, num_rows: int, with_signal: int) -> tuple[int, str]:
    """Send the signal once `num_rows` rows are written."""
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, encoding="utf-8")
    deadline = time.monotonic() + 60
    while not output.exists() or output.read_bytes().count(b"\n") < num_rows:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, with_signal)
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def test_generate_prints_the_text_alone_and_a_seed_repeats_it(model: Path) -> None:
    first, second = (drawloom("generate", "hello", "--regex", "[a-z]{12}", "--seed", 3, *engine(model)) for _ in "ab")
    assert first.returncode == 0, first.stderr
    assert re.fullmatch("[a-z]{12}", first.stdout)
    assert "seed=3 " in first.stderr and "tokens/s=" in first.stderr
    assert second.stdout == first.stdout


def test_batch_keeps_the_order_and_a_bad_row_stops_nothing(whole: bytes) -> None:
    entries: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
    assert [entry["index"] for entry in entries] == list(range(NUM_ROWS))
    assert entries[7]["id"] == "bad" and entries[7]["error"]["field"] == "prompt"
    assert all("text" in entry and "error" not in entry for entry in entries if entry["index"] != 7)


def test_a_killed_batch_goes_on_to_the_same_bytes(model: Path, rows: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    moments = sorted(random.sample(range(1, NUM_ROWS * 2 // 3), 3))
    for num_rows in moments:
        status, _ = stop_midway(batch(model, rows, output), output, num_rows, signal.SIGKILL)
        assert status == -signal.SIGKILL
        left = output.read_bytes()
        assert left.count(b"\n") < NUM_ROWS, f"the kill came too late, moments {moments}"
        assert whole.startswith(left)
    output.write_bytes(whole[: len(left) + 12])  # torn within the next line
    assert not output.read_bytes().endswith(b"\n")
    done = drawloom(*batch(model, rows, output))
    assert done.returncode == 0, done.stderr
    assert output.read_bytes() == whole, f"killed at {moments}"

    other = drawloom(*batch(model, rows, output, seed=2))
    assert other.returncode == 2
    assert "seed was 1, now it is 2" in other.stderr
    assert output.read_bytes() == whole


def test_an_interrupted_batch_exits_quietly(model: Path, rows: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    status, stderr = stop_midway(batch(model, rows, output), output, 3, signal.SIGINT)
    assert status == 130, stderr
    assert "Traceback" not in stderr and "goes on from here" in stderr
    left = output.read_bytes()
    assert left.count(b"\n") < NUM_ROWS and whole.startswith(left)


def test_info_names_the_architecture_and_the_cache(model: Path) -> None:
    done = drawloom("info", model, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["architecture"] == "deepseek_v3"
    assert facts["float32: memory of the cache a token"] == 2 * (32 + 8) * 4  # layers, latent and rotary widths


def test_chat_answers_each_turn_from_what_it_has_seen(model: Path) -> None:
    stdin = "hello there, how are you today?\n\nand now?\n"  # the blank line is no message, and not the end
    done = drawloom("chat", "--seed", 1, "--max-tokens", 24, *engine(model), stdin=stdin)
    assert done.returncode == 0, done.stderr
    cached = [int(number) for number in re.findall(r"(\d+) of \d+ prompt tokens cached", done.stderr)]
    assert len(cached) == 2 and cached[0] == 0 < cached[1]


def test_help_loads_no_torch() -> None:
    program = (
        "import sys\nfrom drawloom.__main__ import main\ntry: main(['batch', '--help'])\nexcept SystemExit: pass\n"
    )
    program += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "IN.jsonl" in done.stdout and done.stdout.splitlines()[-1] == "False"


def test_a_mistake_of_the_user_is_one_line(tmp_path: Path) -> None:
    for arguments in (["info", tmp_path / "none"], ["generate", "--file", tmp_path / "none"]):
        done = drawloom(*arguments)
        assert done.returncode == 2 and not done.stdout
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("drawloom: ")

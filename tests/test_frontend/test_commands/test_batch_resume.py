"""Going on with a batch: from each place where a kill can leave its files, and only where nothing else has changed."""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drawloom.frontend.command_line.batch_flight import run_rows

Command = Callable[..., tuple[int, str, str]]
Run = Callable[..., tuple[int, str]]
ROWS = [{"prompt": f"row {row}", "id": row, "max_tokens": 2 + row * 7 % 11} for row in range(24)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def run(command: Command, engine_options: list[object], source: Path, output: Path) -> Run:
    """`run(*options)`: exit status and stderr of the batch."""

    def run(*options: object) -> tuple[int, str]:
        status, out, err = command("batch", source, output, *engine_options, *options)
        assert out == ""
        return status, err

    return run


def test_it_goes_on_from_every_kind_of_cut(run: Run, output: Path) -> None:
    """At a line's end, within a line (within a character too), within the first line, and before anything."""
    assert run("--seed", 3)[0] == 0
    whole = output.read_bytes()
    ends = [place + 1 for place in range(len(whole)) if whole[place : place + 1] == b"\n"]
    character = next(place for place in range(ends[5], len(whole)) if whole[place] >= 0x80) + 1
    for cut in (ends[9], ends[9] + 30, character, ends[-2], ends[-1] - 1, 7, 0, len(whole)):
        output.write_bytes(whole[:cut])
        status, err = run("--seed", 3)
        assert status == 0 and output.read_bytes() == whole, cut
        num_kept = sum(end <= cut for end in ends)
        assert f"rows=24/24 new={24 - num_kept} " in err


def test_a_drawn_seed_is_kept(run: Run, output: Path) -> None:
    assert run()[0] == 0
    whole = output.read_bytes()
    output.write_bytes(whole[: len(whole) // 2])
    assert run()[0] == 0
    assert output.read_bytes() == whole
    assert run("--overwrite")[0] == 0
    assert output.read_bytes() != whole


def test_rows_may_be_added(run: Run, source: Path, output: Path) -> None:
    assert run("--seed", 3)[0] == 0
    before = output.read_bytes()
    with source.open("a") as file:
        file.write(json.dumps({"prompt": "one more"}) + "\n")
    status, err = run("--seed", 3)
    assert status == 0 and "new=1 " in err
    after = output.read_bytes()
    assert after.startswith(before) and after.count(b"\n") == 25
    output.unlink()
    assert run("--seed", 3)[0] == 0
    assert output.read_bytes() == after


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seed", 4], "seed was 3, now it is 4"),
        (["--temperature", 0.5], "temperature was 1.0, now it is 0.5"),
        (["--stop", "x"], 'stop was [], now it is ["x"]'),
        (["--raw"], "raw was false, now it is true"),
        (["--regex", "[a-z]{3}"], "constraint was null, now it is"),
        (["--threads", 2], "fingerprint was"),
        (["--dtype", "bfloat16"], "fingerprint was"),
        (["--kv-bytes", 400_000], "most tokens of a row was 1024, now it is"),
    ],
)
def test_other_options_are_refused(run: Run, output: Path, options: list[object], said: str) -> None:
    num_threads = torch.get_num_threads()
    assert run("--seed", 3)[0] == 0
    whole, record = output.read_bytes(), output.with_name("out.jsonl.run").read_bytes()
    half = whole[: whole.rfind(b"\n", 0, len(whole) // 2) + 1]
    output.write_bytes(half)
    status, err = run(*options)
    torch.set_num_threads(num_threads)
    assert status == 2 and said in err and "--overwrite" in err and len(err.splitlines()) == 1
    assert output.read_bytes() == half and output.with_name("out.jsonl.run").read_bytes() == record
    assert run("--seed", 3)[0] == 0
    assert output.read_bytes() == whole


def test_another_input_is_refused(run: Run, source: Path, output: Path) -> None:
    assert run("--seed", 3)[0] == 0
    whole, text = output.read_bytes(), source.read_text()
    for changed in (text.replace("row 20", "row 99"), text[:300], text.rstrip("\n")[:-1] + ' , "top_k": 5}\n'):
        source.write_text(changed)
        status, err = run("--seed", 3)
        assert status == 2 and "in.jsonl has changed" in err
        assert output.read_bytes() == whole
    source.write_text(text)
    assert run("--seed", 3)[0] == 0


def test_another_tokenizer_is_refused(run: Run, model: Path) -> None:
    assert run("--seed", 3)[0] == 0
    template = model / "chat_template.jinja"
    template.write_text("{{ messages[0].content }}")
    try:
        status, err = run("--seed", 3)
    finally:
        template.unlink()
    assert status == 2 and "tokenizer was" in err


def test_what_no_run_has_written_is_left_alone(run: Run, output: Path) -> None:
    """Also a text without a newline, which is no torn line of a run."""
    for notes in ('{"my": "notes"}\n', "my notes"):
        output.write_text(notes)
        status, err = run()
        assert status == 2 and "out.jsonl.run" in err and "--overwrite" in err
        assert output.read_text() == notes


def test_what_was_edited_is_left_alone(run: Run, output: Path) -> None:
    assert run()[0] == 0
    lines = output.read_bytes().splitlines(keepends=True)
    for edited in (
        lines[:4] + lines[5:],
        [*lines, b"{}\n"],
        [*lines[:3], b"{\n"],
        [*lines[:3], b"my notes"],
        [b"my notes"],
        [lines[5][:30]],
    ):
        output.write_bytes(b"".join(edited))
        status, err = run()
        assert status == 2 and "is not the result of row" in err
        assert output.read_bytes() == b"".join(edited)
    output.with_name("out.jsonl.run").write_text("{")
    status, err = run()
    assert status == 2 and "is no record of a run" in err


@pytest.mark.parametrize("options", [["--max-tokens", 0], ["--regex", "(?=a)"], ["--kv-bytes", 1]])
def test_results_outlive_a_command_that_is_refused(run: Run, output: Path, options: list[object]) -> None:
    """Whatever refuses it, early or late: --overwrite takes nothing before a new run begins."""
    assert run("--seed", 3)[0] == 0
    whole, record = output.read_bytes(), output.with_name("out.jsonl.run").read_bytes()
    status, _ = run("--seed", 4, "--overwrite", *options)
    assert status == 2
    assert output.read_bytes() == whole and output.with_name("out.jsonl.run").read_bytes() == record


def test_one_process_at_a_time(run: Run, output: Path) -> None:
    with output.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status, err = run("--overwrite")
    assert status == 2 and "another process" in err
    assert run()[0] == 0


def test_the_input_may_not_be_the_output(command: Command, engine_options: list[object], source: Path) -> None:
    text = source.read_text()
    status, _, err = command("batch", source, source, "--overwrite", *engine_options)
    assert status == 2 and "is the input" in err
    assert source.read_text() == text


def test_an_input_that_changes_meanwhile_is_noticed(run: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(*arguments: Any, **options: Any) -> Any:
        source.write_text(source.read_text().replace("row 20", "row 99"))
        return run_rows(*arguments, **options)

    monkeypatch.setattr("drawloom.frontend.command_line.batch.run_rows", edit)
    status, err = run("--seed", 3)
    assert status == 2 and "changed while it was read" in err and "goes on" not in err


def test_an_empty_input(run: Run, source: Path, output: Path) -> None:
    source.write_text("")
    status, err = run()
    assert status == 0 and "rows=0/0" in err and output.read_bytes() == b""
    assert run()[0] == 0

"""Processes that are interrupted, or left by their readers."""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

Start = Callable[..., "subprocess.Popen[bytes]"]
# Flat enough that the end of the text is never drawn early.
ENDLESS = ("generate", "hello", "--raw", "--max-tokens", 1000, "--temperature", 5)


def end(process: "subprocess.Popen[bytes]") -> tuple[int, bytes, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err.decode()


def test_ctrl_c_while_a_text_is_written(start: Start, engine_options: list[object]) -> None:
    process = start(*ENDLESS, "--seed", 1, *engine_options)
    assert process.stdout is not None and process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    status, _, err = end(process)
    assert (status, err) == (130, "")


@pytest.mark.parametrize("moment", [0.1, 0.7, 1.5])
def test_ctrl_c_while_it_starts(start: Start, engine_options: list[object], moment: float) -> None:
    """Python itself may still be starting at the first moment, and then dies of the signal."""
    process = start("generate", "hello", *engine_options)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    status, out, err = end(process)
    assert status in (130, -signal.SIGINT) and out == b"" and (status < 0 or "Traceback" not in err), err


def test_a_reader_that_leaves(start: Start, engine_options: list[object]) -> None:
    process = start(*ENDLESS, "--seed", 1, *engine_options)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert process.stderr.read() == b""


def test_ctrl_c_in_a_chat(start: Start, engine_options: list[object]) -> None:
    """At a terminal: during an answer it stops the answer, at the prompt it leaves."""
    main, terminal = pty.openpty()
    process = start(
        "chat", "--max-tokens", 900, "--temperature", 5, "--seed", 1, *engine_options,
        stdin=terminal, stdout=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    seen = b""

    def wait_for(text: bytes, and_more: int = 0) -> None:
        nonlocal seen
        while text not in seen or len(seen) < seen.index(text) + len(text) + and_more:
            seen += os.read(main, 1000)
        seen = seen[seen.index(text) + len(text) :]

    wait_for(b"> ")
    os.write(main, b"hello\n")
    wait_for(b"hello\r\n", and_more=20)
    process.send_signal(signal.SIGINT)
    wait_for(b"\n> ")
    time.sleep(0.2)  # between writing the prompt and waiting for keys, readline hears no signal
    process.send_signal(signal.SIGINT)
    status = process.wait(timeout=60)
    os.close(main)
    assert process.stderr is not None
    err = process.stderr.read().decode()
    assert status == 130 and "[cancelled, " in err and "Traceback" not in err, err

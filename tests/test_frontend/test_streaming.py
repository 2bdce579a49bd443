"""Text arrives piece by piece, while the program runs on the reader's thread."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from drawloom import frontend as dl
from drawloom.errors import EngineError, ProgramError


@dl.function
def chat(s: dl.ProgramState) -> None:
    s += dl.user("Count.")
    s += dl.assistant(dl.gen("a") + ", " + dl.gen("b"))


def test_pieces_joined_are_the_text(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["one", " ", "two"]))
    state = chat.run(stream=True)
    pieces = list(state.text_iter())
    assert pieces == ["user: ", "Count.", "\nassistant: ", "one", " ", "two", ", ", "one", " ", "two"]
    assert "".join(pieces) == state.text()
    assert list(state.text_iter()) == pieces


def test_one_variable(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["one", " ", "two"]))
    state = chat.run(stream=True)
    assert list(state.text_iter("b")) == ["one", " ", "two"]
    assert state["a"] == "one two"
    assert "".join(chat.run().text_iter("a")) == "one two"


def test_nothing_runs_before_it_is_read(scripted: Any) -> None:
    backend = scripted("x")
    begun = []

    @dl.function
    def program(s: dl.ProgramState) -> None:
        begun.append(threading.current_thread())
        s += "p" + dl.gen("a")

    state = program.run(stream=True)
    assert not begun and not backend.calls
    assert state["a"] == "x"
    assert begun == [threading.current_thread()]


def test_each_piece_is_there_before_the_next_is_made(scripted: Any, reply: Any) -> None:
    """The model waits until its reader has seen the piece before."""
    seen = threading.Semaphore(0)
    paced = []

    def pieces() -> Iterator[str]:
        for piece in ("a", "b", "c"):
            yield piece
            paced.append(seen.acquire(timeout=30))

    scripted(lambda call: reply(pieces()))
    read = []

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.gen("x")

    for piece in program.run(stream=True).text_iter("x"):
        read.append(piece)
        seen.release()
    assert read == ["a", "b", "c"] and paced == [True, True, True]


def test_a_program_reads_its_own_stream(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["o", "n", "e"]))
    read: list[str] = []

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p: " + dl.gen("a")
        read.extend(s.text_iter("a"))
        read.extend(s.text_iter())

    program.run()
    assert "".join(read) == "onep: one"


def test_a_program_reads_the_stream_of_another(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["o", "n", "e"]))

    @dl.function
    def outer(s: dl.ProgramState) -> str:
        inner = chat.run(stream=True)
        return "|".join(inner.text_iter("b"))

    assert [state.ret_value for state in outer.run_batch([{}, {}])] == ["o|n|e"] * 2


def test_failure_comes_after_the_text_before_it(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["par", "tial"], error=EngineError("broken")))
    for var, expected in ((None, ["user: ", "Count.", "\nassistant: ", "par", "tial"]), ("a", ["par", "tial"])):
        read = []
        with pytest.raises(ProgramError, match="'a'"):
            for piece in chat.run(stream=True).text_iter(var):
                read.append(piece)
        assert read == expected
    with pytest.raises(ProgramError, match="not reached"):
        list(chat.run(stream=True).text_iter("b"))


def test_exception_of_a_streamed_program(scripted: Any) -> None:
    scripted("x")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p" + dl.gen("a")
        s["a"]
        raise ZeroDivisionError("mine")

    state = program.run(stream=True)
    assert state["a"] == "x"
    read = []
    with pytest.raises(ProgramError, match="mine"):
        for piece in state.text_iter():
            read.append(piece)
    assert read == ["p", "x"]
    assert isinstance(state.error(), ZeroDivisionError)


def test_cancel(scripted: Any, reply: Any) -> None:
    backend = scripted(lambda call: reply(["o", "n"], never=True))
    unwound = []

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p" + dl.gen("a")
        try:
            s["a"]
        finally:
            unwound.append(True)

    state = program.run(stream=True)
    assert next(pieces := state.text_iter("a")) == "o"
    state.cancel()
    assert backend.calls[0].cancelled and unwound == [True]
    with pytest.raises(ProgramError, match="cancelled"):
        list(pieces)
    with pytest.raises(ProgramError, match="cancelled"):
        state["a"]
    with pytest.raises(ProgramError, match="cancelled"):
        chat_state = chat.run(stream=True)
        chat_state.cancel()
        chat_state.text()
    assert len(backend.calls) == 1


def test_two_streams_side_by_side(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["one", "two"]))
    first, second = chat.run(stream=True).text_iter("b"), chat.run(stream=True).text_iter("b")
    assert [next(first), next(second), next(first), next(second)] == ["one", "one", "two", "two"]
    assert list(first) == list(second) == []


def test_a_stream_that_nobody_reads_on_is_cancelled(scripted: Any, reply: Any) -> None:
    backend = scripted(lambda call: reply(["o", "n"], never=True))
    unwound = []

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p" + dl.gen("a")
        try:
            s["a"]
        finally:
            unwound.append(True)

    for piece in program.run(stream=True).text_iter("a"):
        assert piece == "o"
        break
    assert backend.calls[0].cancelled and unwound == [True]
    state = program.run(stream=True)
    pieces = state.text_iter("a")
    del state
    assert next(pieces) == "o" and not backend.calls[1].cancelled
    del pieces
    assert backend.calls[1].cancelled


def test_an_unwound_program_does_not_disturb_the_others(scripted: Any, reply: Any) -> None:
    """Inner programs are cancelled while they wait, and others go on in the same hub, in the same greenlets."""
    backend = scripted(lambda call: reply(["o", "n"], never="slow" in call.prompt))

    @dl.function
    def slow(s: dl.ProgramState) -> None:
        s += "slow" + dl.gen("a")
        s["a"]

    @dl.function
    def waits(s: dl.ProgramState) -> None:
        slow.run()

    @dl.function
    def outer(s: dl.ProgramState) -> str:
        for inner in (slow, waits):
            state = inner.run(stream=True)
            if inner is slow:
                assert next(state.text_iter("a")) == "o"
            else:
                s += "quick" + dl.gen(inner.func.__name__)
                s[inner.func.__name__]
            state.cancel()
        s += "quick" + dl.gen("b")
        return str(s["b"]) + str(chat.run()["b"])

    states = outer.run_batch([{}] * 3)
    assert [state.ret_value for state in states] == ["onon"] * 3
    cancelled = [call.cancelled for call in backend.calls if "slow" in call.prompt]
    assert cancelled == [True] * 6


def test_another_thread_is_refused(scripted: Any) -> None:
    scripted("x")
    state = chat.run(stream=True)
    caught = []

    def read() -> None:
        with pytest.raises(EngineError, match="another thread"):
            state["a"]
        caught.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert caught == [True] and state["a"] == "x"


def test_programs_on_several_threads(scripted: Any) -> None:
    scripted("x")
    results: list[Any] = []

    def run() -> None:
        results.extend(state["a"] for state in chat.run_batch([{}] * 20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["x"] * 80

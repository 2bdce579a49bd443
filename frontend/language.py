"""The words of the language: `gen`, `select` and the roles of a chat."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypedDict, Unpack

from ..errors import RequestError
from ..grammar import EBNF, Choice, Regex
from ..runtime.sampling_params import SamplingParams
from .choice_scores import check_method
from .nodes import Expression, Gen, OpenRole, Role, RoleName, Select, Text, as_expression, steps
from .value_type import value_type

__all__ = ["SAMPLING_NAMES", "SamplingOptions", "assistant", "gen", "select", "system", "user"]


class SamplingOptions(TypedDict, total=False):
    """The sampling parameters of one gen, as in :class:`SamplingParams`."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: bool | Literal["model"]
    top_logprobs: int
    prompt_logprobs: bool


SAMPLING_NAMES = frozenset(SamplingOptions.__annotations__)
_SCALARS = frozenset((bool, int, float, str, type(None)))


def gen(
    name: str | None = None,
    *,
    regex: str | Regex | None = None,
    schema: Any = None,
    ebnf: str | EBNF | None = None,
    choices: Sequence[str] | Choice | None = None,
    **sampling: Unpack[SamplingOptions],
) -> Gen:
    """Text that the model writes here; `state[name]` reads it.

    At most one of these says what the text must be:

    regex: the whole text matches; the value is a string.
    schema: JSON. A Pydantic class, a TypedDict, a dataclass or another type that Pydantic knows gives a validated
        object of that type, and the model writes no keys that the type would ignore; a dict or JSON text gives what
        `json.loads` makes of the text. `JSONSchema(…)` is taken as it is, with its options.
    ebnf: a sentence of a grammar in the Lark dialect; the value is a string.
    choices: one of these strings, chosen token by token. :func:`select` weighs whole strings instead.

    The rest are the fields of :class:`SamplingParams`, each with its default there, unless `run` was given another:
    temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0,
    logit_bias={}, max_tokens=256, min_tokens=0, stop=(), stop_token_ids=(), ignore_eos=False, logprobs=True,
    top_logprobs=0, prompt_logprobs=False. `seed` is derived from the program's, the branch and the number of the gen
    in it, unless it is given.

    Raises `TypeError` for an unknown keyword, `RequestError` for a value out of range or two constraints at once, and
    `ConstraintError` for a constraint that is malformed.
    """
    for keyword in sampling:
        if keyword not in SAMPLING_NAMES:
            raise TypeError(f"gen() got an unexpected keyword argument {keyword!r}")
    params = _params(sampling)
    wanted = value_type(regex=regex, schema=schema, ebnf=ebnf, choices=choices)
    return Gen(_checked_name(name), wanted, sampling, params)


def _params(sampling: SamplingOptions) -> SamplingParams:
    """Checking costs more than all else in a gen, and a program writes the same one in every run."""
    items = tuple((name, value, type(value)) for name, value in sampling.items())
    if all(kind in _SCALARS for _, _, kind in items):
        return _scalar_params(items)
    # It takes any sequence where it says tuple, and refuses what is no value.
    return SamplingParams(**sampling)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _scalar_params(items: tuple[tuple[str, Any, type], ...]) -> SamplingParams:
    """The types are part of the key: True is refused where 1 is welcome."""
    return SamplingParams(**{name: value for name, value, _ in items})


def select(name: str | None = None, choices: Sequence[str] = (), *, method: str = "complete_text") -> Select:
    """The most probable of `choices` as a string; `state[name]` reads it. Ties go to the earlier choice.

    method: "complete_text" compares the log-probability of each choice as a whole text: the sum over its tokens and the
        first token of what follows it (the literal text after it, the end of the turn, or else EOS). What counts as
        following is what the program has appended before it next reads anything.
        "token_length_normalized" is SGLang's default, the mean over the choice's own tokens. It favours long choices
        with a predictable end.

    `state.get_meta_info(name)` has the scores and the log-probability of every token of every choice.
    """
    if (
        isinstance(choices, str)
        or not isinstance(choices, Sequence)
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise RequestError("choices", choices, "must be non-empty strings")
    if not choices or len(set(choices)) < len(choices):
        raise RequestError("choices", choices, "must be at least one string, and no string twice")
    return Select(_checked_name(name), tuple(choices), check_method(method))


def system(content: Expression | str) -> Role:
    """A system message of a chat, in the form of the checkpoint's template."""
    return _role("system", content)


def user(content: Expression | str) -> Role:
    """A user message of a chat. Its text never becomes markup, whatever it spells."""
    return _role("user", content)


def assistant(content: Expression | str) -> Role:
    """An assistant message of a chat: literal text, gens and selects, in any order."""
    return _role("assistant", content)


def _role(role: RoleName, content: Expression | str) -> Role:
    body = as_expression(content)
    for step in steps(body):
        if isinstance(step, OpenRole):
            raise RequestError(role, step.role, "a message can't hold another message")
        if role != "assistant" and not isinstance(step, Text):
            raise RequestError(role, step, "holds literal text alone: gen and select go into dl.assistant(…)")
    return Role(role, body)


def _checked_name(name: object) -> str | None:
    if name is not None and not (isinstance(name, str) and name):
        raise RequestError("name", name, "a variable's name is a non-empty string")
    return name

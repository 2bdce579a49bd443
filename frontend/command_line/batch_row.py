"""A line of a batch's input becomes a request, or an error that names the field; a result becomes a line of output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ConstraintError, DrawloomError, RequestError
from ...runtime.request import Result
from ...runtime.sampling_params import SamplingParams
from ...runtime.seeds import derive_seed
from ...runtime.tokenizer import Tokenizer
from ..value_type import ValueType, value_type
from .answer import is_whole
from .prompts import chat_ids, prompt_ids

__all__ = ["RowReader", "RowRequest", "error_entry", "output_line", "read_fields", "result_entry", "row_label"]

_CONSTRAINTS = ("schema", "regex", "ebnf", "choices")
_SAMPLING = frozenset(
    ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    + ("logit_bias", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs")
)
_KNOWN = _SAMPLING.union(_CONSTRAINTS, ("id", "prompt", "messages"))


@dataclass(frozen=True, slots=True)
class RowRequest:
    prompt_ids: list[int]
    sampling: SamplingParams
    wanted: ValueType | None


@dataclass(frozen=True, slots=True)
class RowReader:
    """`sampling`, `wanted` and `raw` are for rows that don't say otherwise; `seed` is that of the run."""

    tokenizer: Tokenizer
    sampling: SamplingParams
    wanted: ValueType | None
    raw: bool
    seed: int

    def request(self, index: int, fields: Mapping[str, Any]) -> RowRequest:
        """Row number `index`. `RequestError` or `ConstraintError` if it can't run."""
        for name, value in fields.items():
            if name not in _KNOWN:
                raise RequestError(name, value, "is no field of a row; drawloom batch --help lists them")
        return RowRequest(self._prompt_ids(fields), self._sampling(index, fields), self._wanted(fields))

    def _prompt_ids(self, fields: Mapping[str, Any]) -> list[int]:
        if ("prompt" in fields) == ("messages" in fields):
            raise RequestError("prompt", fields.get("prompt"), "a row has either a prompt or messages")
        try:
            if "messages" in fields:
                return chat_ids(self.tokenizer, _checked_messages(fields["messages"]))
            if not isinstance(fields["prompt"], str):
                raise RequestError("prompt", fields["prompt"], "must be text")
            return prompt_ids(self.tokenizer, fields["prompt"], raw=self.raw)
        except RequestError as error:
            if error.field != "text":
                raise
            field = "messages" if "messages" in fields else "prompt"  # a row has no field of the name `text`
            raise RequestError(field, error.value, error.message) from error

    def _sampling(self, index: int, fields: Mapping[str, Any]) -> SamplingParams:
        given = {name: value for name, value in fields.items() if name in _SAMPLING}
        if "logit_bias" in given:
            given["logit_bias"] = _with_integer_keys(given["logit_bias"])
        # As in `run_batch`: a row's draws depend on its index and not on the rows around it.
        return replace(self.sampling, **{"seed": derive_seed(self.seed, ("row", index)), **given})

    def _wanted(self, fields: Mapping[str, Any]) -> ValueType | None:
        given = {name: fields[name] for name in _CONSTRAINTS if name in fields}
        if not given:
            return self.wanted
        if len(given) > 1:
            first, second, *_ = given
            raise RequestError(second, given[second], f"a row has one constraint, and {first} is given too")
        if isinstance(given.get("schema"), str):
            raise RequestError("schema", given["schema"], "must be an object, not a text that holds one")
        return value_type(**given)


def read_fields(line: bytes) -> dict[str, Any]:
    """The fields of a row that are not null. A line that is no JSON object, or repeats a key: `RequestError`."""
    try:
        fields = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError("row", line[:100].decode("utf-8", "replace"), f"is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError("row", fields, "must be a JSON object")
    return {name: value for name, value in fields.items() if value is not None}


def row_label(index: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What begins the output line of a row."""
    label: dict[str, Any] = {"index": index}
    if "id" in fields:
        if isinstance(fields["id"], bool) or not isinstance(fields["id"], str | int | float):
            raise RequestError("id", fields["id"], "must be a string or a number")
        label["id"] = fields["id"]
    return label


def result_entry(request: RowRequest, result: Result) -> dict[str, Any]:
    """Nothing of it depends on the time, the other rows or the cache."""
    entry: dict[str, Any] = {
        "text": result.text,
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "seed": result.seed,
        "prompt_tokens": result.prompt_tokens,
        "tokens": len(result.token_ids),
    }
    if request.sampling.logprobs:
        entry |= {"token_ids": result.token_ids, "logprobs": result.logprobs}
    if not is_whole(result, request.wanted):
        message = "the text was cut before it was what the constraint asks"
        entry |= error_entry(RequestError("max_tokens", request.sampling.max_tokens, message), {})
    return entry


def error_entry(error: DrawloomError, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The kind is the name of a class in `drawloom.errors`."""
    field = getattr(error, "field", None)
    if isinstance(error, ConstraintError):
        field = next((name for name in _CONSTRAINTS if name in fields), None)
    return {"error": {"kind": type(error).__name__, "field": field, "message": str(error)}}


def output_line(entry: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair in an id or in the name of a field
        return json.dumps(entry).encode() + b"\n"


def _checked_messages(messages: Any) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages", messages, "must be a list of at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise RequestError(f"messages[{place}]", message, "a message has a role and a content, and nothing else")
        if not all(isinstance(value, str) for value in message.values()):
            raise RequestError(f"messages[{place}]", message, "its role and its content are strings")
    return messages


def _with_integer_keys(biases: Any) -> Any:
    """JSON has no other keys than strings. What is no token id is left for SamplingParams to refuse."""
    if not isinstance(biases, dict):
        return biases
    return {int(key) if key.isdecimal() and len(key) < 20 else key: bias for key, bias in biases.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

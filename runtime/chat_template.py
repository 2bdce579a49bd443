"""Messages to prompt tokens, by the Jinja template of the checkpoint.

A template is trusted, messages are not: only text of the template itself can become a special token. Before rendering,
each special token spelled inside a message is broken by a marker character; afterwards the rendered text is cut at the
special tokens that are left, and the marker is taken out again. The user's text comes through unchanged, and is encoded
as text.

A consequence: a template that searches a message for its own markup (``content.split("</think>")``) finds none. Give
such templates the answer without its thinking.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ModelError, RequestError
from .markup import Markup, Special
from .tokenizer import Tokenizer

__all__ = ["common_prefix", "render", "render_pieces", "render_text"]


def render(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **variables: Any
) -> list[int]:
    """The prompt ids of a conversation.

    `messages` hold ``role`` and ``content`` and whatever else the template reads (``tool_calls``, …); `variables` are
    further names for the template (``tools=[…]``, ``enable_thinking=False``). All of it plain JSON values.
    The template may add what was not asked for: SmolLM2's writes a default system message where the first message is
    not one; pass one, even an empty one, to replace it.

    `RequestError`: values that are not JSON, a special token the checkpoint lacks, or a conversation that the template
    refuses. `ModelError`: the checkpoint has no template, or a broken one.
    """
    pieces = render_pieces(tokenizer, messages, add_generation_prompt=add_generation_prompt, **variables)
    return tokenizer.encode_pieces(pieces)


def render_text(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **variables: Any
) -> str:
    """The rendered conversation for a reader. Encoded, it would not tell the template's markup from a user's text."""
    pieces = render_pieces(tokenizer, messages, add_generation_prompt=add_generation_prompt, **variables)
    return "".join(piece.name if isinstance(piece, Special) else piece for piece in pieces)


def render_pieces(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **variables: Any
) -> list[str | Special]:
    """The rendered conversation as text and special tokens, for `Tokenizer.encode_pieces`. Otherwise as `render`."""
    source = _template_source(tokenizer, variables)
    template = _compiled(source)
    _check_messages(messages)
    marker = _unused_character(source, messages, variables)
    names: dict[str, Any] = {**tokenizer.roles, **_broken(variables, tokenizer.markup, marker)}
    try:
        text = template.render(
            messages=_broken(messages, tokenizer.markup, marker), add_generation_prompt=add_generation_prompt, **names
        )
    except Exception as error:  # a template is a program: whatever it raises, it refused these messages
        raise RequestError("messages", messages, f"the chat template refused them: {error}") from error
    text = text.replace(json.dumps(marker)[1:-1], marker)  # where the template wrote JSON in ASCII
    pieces = tokenizer.markup.split(text)
    plain = [piece.replace(marker, "") if isinstance(piece, str) else piece for piece in pieces]
    return [piece for piece in plain if piece]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two prompts share from the start: all of the shorter one, if the longer extends it.

    A conversation's later turn extends the earlier one unless its template rewrites history, which some do.
    """
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))


def _template_source(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> str:
    templates = tokenizer.chat_templates
    name = "tool_use" if variables.get("tools") and "tool_use" in templates else "default"
    if name not in templates:
        raise ModelError("the checkpoint has no chat template: write the prompt with encode_pieces instead")
    return templates[name]


@lru_cache(maxsize=32)
def _compiled(source: str) -> jinja2.Template:
    # Checkpoints come from strangers: the sandbox keeps a template from anything but its own variables.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(f"the checkpoint's chat template is broken at line {error.lineno}: {error.message}") from error


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what the model wrote. Training uses it; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which is not what models were trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}]", message, "a message is a mapping with at least a role, a string")


def _unused_character(source: str, messages: object, variables: object) -> str:
    """A character of the private use area that occurs nowhere, nor does its number (JSON may spell it so)."""
    try:
        everything = source + json.dumps([messages, variables], ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise RequestError("messages", messages, f"messages and variables must be JSON values: {error}") from error
    lowered = everything.lower()
    return next(
        chr(code) for code in range(0xE000, 0xF900) if chr(code) not in everything and f"{code:x}" not in lowered
    )


def _broken(value: Any, markup: Markup, marker: str) -> Any:
    """`value` with every special token spelled in it broken after its first character, keys included.

    So is the beginning of one at the end of a text: the template may append another text that completes it.
    """
    if isinstance(value, str):
        places = markup.starts(value)
        cuts = [0, *(place + 1 for place in places), len(value)]
        return marker.join(value[start:end] for start, end in pairwise(cuts))
    if isinstance(value, Mapping):
        return {_broken(key, markup, marker): _broken(item, markup, marker) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_broken(item, markup, marker) for item in value]
    return value

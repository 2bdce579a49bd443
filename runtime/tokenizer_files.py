"""The settings that stand beside ``tokenizer.json`` in a checkpoint folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError

__all__ = ["TokenizerSettings", "read_json", "read_settings"]

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerSettings:
    """What the files beside ``tokenizer.json`` say. `roles` maps ``"bos_token"`` and the like to spellings."""

    roles: Mapping[str, str]
    declared: frozenset[str]  # spellings that tokenizer_config.json lists as added tokens
    add_bos: bool | None  # None: left to the post-processor of tokenizer.json
    eos_ids: tuple[int, ...]
    chat_templates: Mapping[str, str]


def read_settings(folder: Path) -> TokenizerSettings:
    """Read tokenizer_config.json, generation_config.json, config.json and chat_template.jinja, each where it exists."""
    settings = read_json(folder / "tokenizer_config.json")
    add_bos = settings.get("add_bos_token")
    return TokenizerSettings(
        roles={role: text for role in _ROLES if (text := _spelling(settings.get(role))) is not None},
        declared=_declared(settings),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        eos_ids=_eos_ids(folder),
        chat_templates=_chat_templates(folder, settings),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in the JSON file at `path`; empty where there is no such file. Malformed: `ModelError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"can't read the file: {error}", file=str(path)) from error
    if not isinstance(value, dict):
        raise ModelError(f"expected a JSON object, found {type(value).__name__}", file=str(path))
    return value


def _spelling(token: object) -> str | None:
    """A token is written as its text or as an object that holds it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _declared(settings: Mapping[str, Any]) -> frozenset[str]:
    decoder = settings.get("added_tokens_decoder")
    extra = settings.get("additional_special_tokens")
    tokens = [*(decoder.values() if isinstance(decoder, dict) else ()), *(extra if isinstance(extra, list) else ())]
    return frozenset(text for token in tokens if (text := _spelling(token)) is not None)


def _eos_ids(folder: Path) -> tuple[int, ...]:
    """generation_config.json has the last word; config.json speaks where it is silent."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(index, int) and not isinstance(index, bool) for index in ids):
            raise ModelError(
                f"eos_token_id must be a token id or a list of them, found {value!r}", file=str(folder / name)
            )
        return tuple(ids)
    return ()


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    value = settings.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        try:
            templates.update({entry["name"]: entry["template"] for entry in value})
        except (KeyError, TypeError) as error:
            file = str(folder / "tokenizer_config.json")
            raise ModelError("chat_template must be a text or a list of name and template", file=file) from error
    files = {"default": folder / "chat_template.jinja"}
    files.update({path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")})
    for name, path in files.items():
        if path.is_file():
            templates[name] = path.read_text(encoding="utf-8")
    return templates

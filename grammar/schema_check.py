"""Malformed schemas are found here, before anything is lowered."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from ..errors import InvalidConstraint, UnsupportedConstraint
from .json_path import Path, show_path
from .schema_references import subschemas
from .support import DRAFTS, Draft

__all__ = ["check_schema", "find_draft"]


def find_draft(root: Any) -> Draft:
    """The draft that `$schema` names; 2020-12 without one."""
    if not isinstance(root, dict) or "$schema" not in root:
        return Draft.DRAFT2020
    uri = root["$schema"]
    if not isinstance(uri, str):
        raise InvalidConstraint("$.$schema", f"must be a URI, not {uri!r}")
    plain = uri.rstrip("#")
    draft = (
        DRAFTS.get(plain)
        or DRAFTS.get(plain.replace("https:", "http:", 1))
        or DRAFTS.get(plain.replace("http:", "https:", 1))
    )
    if draft is None:
        raise UnsupportedConstraint("$", "$schema", f"names an unknown dialect: {uri!r}")
    return draft


def check_schema(schema: Any, draft: Draft, path: Path) -> None:
    """Holds `schema` against the meta-schema of `draft`."""
    if isinstance(schema, bool):
        if draft is Draft.DRAFT4:
            raise InvalidConstraint(show_path(path), "draft 4 knows no boolean schemas")
        return
    if not isinstance(schema, dict):
        raise InvalidConstraint(show_path(path), f"a schema is an object or a boolean, not {schema!r}")
    _check_dialects(schema, draft, path)
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": draft.uri})
    except jsonschema_rs.ValidationError as error:
        where = (*path, *error.instance_path)
        raise InvalidConstraint(show_path(where), error.message) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidConstraint(show_path(path), str(error)) from None


def _check_dialects(schema: dict[str, Any], draft: Draft, path: Path) -> None:
    """A schema within the schema may not change the dialect (nor make the meta-validation look for one)."""
    pending: list[tuple[Path, Any]] = [(path, schema)]
    while pending:
        where, node = pending.pop()
        if not isinstance(node, dict):
            continue
        if node is not schema and "$schema" in node and find_draft(node) is not draft:
            raise UnsupportedConstraint(show_path(where), "$schema", "changes the dialect within a schema")
        pending += [((*where, *below), child) for below, child in subschemas(node)]

"""The string formats that are asserted, as patterns in JSON Schema's regular expressions.

Sources: RFC 3339 (dates and times, with leap years; no leap seconds, which most readers refuse) and its appendix A
(durations), RFC 5321 (mailboxes without quoting), RFC 1123 (host names; no A-labels, which need IDNA's tables),
RFC 3986, 3987 and 6570 (URIs, IRIs and templates), RFC 4291 (IPv6), RFC 9562 (UUIDs), RFC 6901 (JSON pointers).
Where a pattern takes less than its format, it takes only texts that the format allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ASSERTED_FORMATS", "AssertedFormat"]


@dataclass(frozen=True)
class AssertedFormat:
    """A text has the format if it matches every one of `patterns` and is at most `max_length` long."""

    patterns: tuple[str, ...]
    max_length: int | None = None


def _any(*options: str) -> str:
    return f"(?:{'|'.join(options)})"


_LEAP = _any("[0-9]{2}(?:0[48]|[2468][048]|[13579][26])", "(?:[02468][048]|[13579][26])00")
_DATE = _any(
    "[0-9]{4}-(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "[0-9]{4}-(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "[0-9]{4}-02-(?:0[1-9]|1[0-9]|2[0-8])",
    f"{_LEAP}-02-29",
)
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR_MINUTE})"

_CLOCK = _any("[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?", "[0-9]+M(?:[0-9]+S)?", "[0-9]+S")
_CALENDAR = _any("[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?", "[0-9]+M(?:[0-9]+D)?", "[0-9]+D")
_DURATION = f"P{_any(f'{_CALENDAR}(?:T{_CLOCK})?', f'T{_CLOCK}', '[0-9]+W')}"

# A label without hyphens in both the third and the fourth place: those are IDNA's own.
_EDGE, _INNER = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
_LABEL = _any(
    f"{_EDGE}(?:{_INNER}{{0,2}}{_EDGE})?",
    f"{_EDGE}{_INNER}(?:{_EDGE}{_INNER}|-{_EDGE}){_INNER}{{0,58}}{_EDGE}",
)
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_MAILBOX_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = "[0-9a-fA-F]{1,4}"
_LAST32 = _any(f"{_GROUP}:{_GROUP}", _IPV4)
_IPV6 = _any(
    f"(?:{_GROUP}:){{6}}{_LAST32}",
    f"::(?:{_GROUP}:){{5}}{_LAST32}",
    f"(?:{_GROUP})?::(?:{_GROUP}:){{4}}{_LAST32}",
    f"(?:(?:{_GROUP}:){{0,1}}{_GROUP})?::(?:{_GROUP}:){{3}}{_LAST32}",
    f"(?:(?:{_GROUP}:){{0,2}}{_GROUP})?::(?:{_GROUP}:){{2}}{_LAST32}",
    f"(?:(?:{_GROUP}:){{0,3}}{_GROUP})?::{_GROUP}:{_LAST32}",
    f"(?:(?:{_GROUP}:){{0,4}}{_GROUP})?::{_LAST32}",
    f"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
    f"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
)

_UNRESERVED = r"a-zA-Z0-9._~!$&'()*+,;=\-"  # with the sub-delims
_ESCAPED = "%[0-9a-fA-F]{2}"
_PATH_CHAR = f"(?:[{_UNRESERVED}:@]|{_ESCAPED})"
_USER = f"(?:(?:[{_UNRESERVED}:]|{_ESCAPED})*@)?"
_URI_HOST = _any(rf"\[{_IPV6}\]", rf"\[v[0-9a-fA-F]+\.[{_UNRESERVED}:]+\]", f"(?:[{_UNRESERVED}]|{_ESCAPED})*")
_AUTHORITY = f"//{_USER}{_URI_HOST}(?::[0-9]*)?(?:/{_PATH_CHAR}*)*"
_ABSOLUTE = f"/(?:{_PATH_CHAR}+(?:/{_PATH_CHAR}*)*)?"
_ROOTLESS = f"{_PATH_CHAR}+(?:/{_PATH_CHAR}*)*"
_NO_SCHEME = f"(?:[{_UNRESERVED}@]|{_ESCAPED})+(?:/{_PATH_CHAR}*)*"
_TAIL = rf"(?:\?(?:{_PATH_CHAR}|[/?])*)?(?:#(?:{_PATH_CHAR}|[/?])*)?"
_URI = f"[a-zA-Z][a-zA-Z0-9+.-]*:{_any(_AUTHORITY, _ABSOLUTE, _ROOTLESS, '')}{_TAIL}"
_RELATIVE = f"{_any(_AUTHORITY, _ABSOLUTE, _NO_SCHEME, '')}{_TAIL}"

# RFC 3987: the same with characters beyond ASCII.
_BEYOND = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}"
_IRI, _IRI_RELATIVE = (part.replace(_UNRESERVED, _BEYOND + _UNRESERVED) for part in (_URI, _RELATIVE))

# RFC 6570: literals, and expressions in braces.
_TEMPLATE_LITERAL = rf"(?:[!#$&(-;=?-\[\]_a-z~{_BEYOND}]|{_ESCAPED})"
_VARIABLE_CHAR = f"(?:[a-zA-Z0-9_]|{_ESCAPED})"
_VARIABLE = rf"{_VARIABLE_CHAR}(?:\.?{_VARIABLE_CHAR})*(?:\*|:[1-9][0-9]{{0,3}})?"
_TEMPLATE = rf"(?:{_TEMPLATE_LITERAL}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"

_POINTER = "(?:/(?:[^~/]|~[01])*)*"


def _whole(*patterns: str) -> tuple[str, ...]:
    return tuple(f"^(?:{pattern})$" for pattern in patterns)


ASSERTED_FORMATS: Mapping[str, AssertedFormat] = {
    "date": AssertedFormat(_whole(_DATE)),
    "time": AssertedFormat(_whole(_TIME)),
    "date-time": AssertedFormat(_whole(f"{_DATE}[tT]{_TIME}")),
    "duration": AssertedFormat(_whole(_DURATION)),
    "email": AssertedFormat(
        _whole(rf"{_MAILBOX_ATOM}(?:\.{_MAILBOX_ATOM})*@{_HOST}", "[^@]{1,64}@[^@]{1,253}"),
    ),
    "hostname": AssertedFormat(_whole(_HOST), max_length=253),
    "ipv4": AssertedFormat(_whole(_IPV4)),
    "ipv6": AssertedFormat(_whole(_IPV6)),
    "uri": AssertedFormat(_whole(_URI)),
    "uri-reference": AssertedFormat(_whole(_any(_URI, _RELATIVE))),
    "iri": AssertedFormat(_whole(_IRI)),
    "iri-reference": AssertedFormat(_whole(_any(_IRI, _IRI_RELATIVE))),
    "uri-template": AssertedFormat(_whole(_TEMPLATE)),
    "uuid": AssertedFormat(_whole("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")),
    "json-pointer": AssertedFormat(_whole(_POINTER)),
    "relative-json-pointer": AssertedFormat(_whole(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})")),
}

"""From an automaton to EBNF as xgrammar reads it: a rule for each state, which ends with the next one.

Nothing ever follows a rule. Where something does, xgrammar prepares its masks by looking ahead, and they then allow
tokens that it bars (``.{1,3}.x`` and a token that ends with a newline); where a rule stands in the middle of itself,
they bar tokens that it allows.
"""

from __future__ import annotations

from collections.abc import Sequence

from .regular_states import State

__all__ = ["write_ebnf"]


def write_ebnf(states: Sequence[State]) -> str:
    """The grammar, whose first rule is `root`."""
    return "".join(f"{_name(number)} ::= {' | '.join(_options(state))}\n" for number, state in enumerate(states))


def _options(state: State) -> list[str]:
    ends = ['""'] if state.accepting else []
    return [
        f"[{''.join(_range(*pair) for pair in ranges)}] {_name(target)}" for target, ranges in state.moves.items()
    ] + ends


def _name(number: int) -> str:
    return f"s{number}" if number else "root"


def _range(low: int, high: int) -> str:
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


def _character(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\U{code:08x}"

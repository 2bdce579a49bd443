"""Stop strings in a stream: nothing of one is let through, nothing else is kept back for good."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drawloom.runtime.stop_strings import StopStrings

SEEDED = settings(derandomize=True, deadline=None)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4)
TEXT = st.text("ab\n", max_size=16)
CUTS = st.lists(st.integers(0, 99), max_size=6)


def whole(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: of all matches the one that ends first, of those the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def streamed(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopStrings(stops)
    out = []
    for piece in pieces:
        emitted, hit = matcher.push(piece)
        out.append(emitted)
        if hit is not None:
            assert matcher.finish() == "", "nothing is held behind a stop string"
            return out, hit
    return [*out, matcher.finish()], None


@SEEDED
@given(TEXT, STOPS, CUTS)
@example("aab", ["ab", "aab"], [])
@example("aabab", ["abab", "ba"], [1, 2, 3, 4])
@example("ab\nab", ["b\nb", "\na"], [2])
def test_any_cut_gives_the_text_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    expected = whole(text, stops)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]
    for cut in ([text], pieces, list(text)):
        out, hit = streamed(cut, stops)
        assert ("".join(out), hit) == expected


@SEEDED
@given(TEXT, STOPS)
def test_no_more_is_held_back_than_must_be(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    emitted = ""
    for end, character in enumerate(text, start=1):
        piece, hit = matcher.push(character)
        if hit is not None:
            return
        emitted += piece
        held = text[len(emitted) : end]
        beginnings = [n for n in range(1, end + 1) if any(stop.startswith(text[end - n : end]) for stop in stops)]
        assert len(held) == max(beginnings, default=0)


def test_text_behind_a_stop_is_dropped_and_no_more_is_taken() -> None:
    matcher = StopStrings(["END", "\n\n"])
    assert matcher.push("one\n") == ("one", None)
    assert matcher.push("two E") == ("\ntwo ", None)
    assert matcher.push("ND three END") == ("", "END")
    with pytest.raises(AssertionError):
        matcher.push("more")


def test_the_longest_of_two_that_end_together_wins_even_when_it_began_long_ago() -> None:
    matcher = StopStrings(["c", "abc"])
    assert [matcher.push(piece) for piece in ("xa", "b", "c")] == [("x", None), ("", None), ("", "abc")]


def test_without_stops_text_passes_at_once() -> None:
    matcher = StopStrings([])
    assert matcher.push("anything\n") == ("anything\n", None)
    assert matcher.finish() == ""


def test_thousands_of_stops_and_a_long_text() -> None:
    choose = random.Random(4)
    stops = ["".join(choose.choices("abcdef", k=choose.randint(6, 9))) for _ in range(3000)]
    text = "".join(choose.choices("abcdef", k=3000)) + stops[7]
    expected = whole(text, stops)
    assert expected[1] is not None and len(expected[0]) > 100
    out, hit = streamed(list(text), stops)
    assert ("".join(out), hit) == expected

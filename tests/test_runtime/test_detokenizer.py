"""Text comes out character by character, the same however the ids are cut."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from drawloom.runtime.detokenizer import Detokenizer

SEEDED = settings(derandomize=True, deadline=None)


class Bytes:
    """Ids 0 to 255 are the bytes, 256 on are these tokens; the last is special, without text."""

    longer = ["é".encode(), "😀".encode()[:2], "😀".encode()[2:], b"hello", b""]

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else self.longer[token_id - 256]


VOCABULARY = Bytes()
SPECIAL = 260
INTERESTING = [
    0x20,
    0x41,
    0x7F,
    0x80,
    0xBF,
    0xC0,
    0xC2,
    0xE0,
    0xE2,
    0x82,
    0xAC,
    0xED,
    0xA0,
    0xF0,
    0x9F,
    0x98,
    0xF4,
    0xFF,
]
IDS = st.lists(st.one_of(st.sampled_from(INTERESTING), st.integers(0, 260)), max_size=24)


def text_of(ids: list[int], cuts: list[int]) -> str:
    detokenizer = Detokenizer(VOCABULARY)
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [detokenizer.push(ids[start:end]) for start, end in zip(bounds, bounds[1:], strict=False)]
    return "".join(pieces) + detokenizer.finish()


@SEEDED
@given(IDS, st.lists(st.integers(0, 99), max_size=8))
@example([0xF0, 0x9F, 0x41, 0xE2, 0x82], [1, 2, 3, 4])
@example([0xED, 0xA0, 0x80, 0xF4, 0x90, 0x80, 0x80], [1, 2, 3, 4, 5, 6])
def test_any_cut_gives_the_text_of_the_whole(ids: list[int], cuts: list[int]) -> None:
    whole = b"".join(VOCABULARY.token_bytes(token_id) for token_id in ids)
    assert text_of(ids, cuts) == whole.decode("utf-8", errors="replace")
    assert text_of(ids, list(range(len(ids)))) == whole.decode("utf-8", errors="replace")


@SEEDED
@given(st.text(max_size=12))
def test_valid_text_never_shows_a_part_of_a_character(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    detokenizer = Detokenizer(VOCABULARY)
    pieces = [detokenizer.push([byte]) for byte in text.encode()]
    assert [piece for piece in pieces if piece] == list(text), "a character comes out whole, with its last byte"
    assert detokenizer.finish() == ""


def test_a_character_waits_for_its_last_token_also_across_a_special_one() -> None:
    detokenizer = Detokenizer(VOCABULARY)
    assert detokenizer.push([259, 257]) == "hello"
    assert detokenizer.push([SPECIAL]) == ""
    assert detokenizer.push([258, 256]) == "😀é"
    assert detokenizer.finish() == ""


def test_what_is_left_at_the_end_is_one_replacement_character() -> None:
    detokenizer = Detokenizer(VOCABULARY)
    assert detokenizer.push([0x41, 257]) == "A"
    assert detokenizer.finish() == "\ufffd" == "😀".encode()[:2].decode(errors="replace")

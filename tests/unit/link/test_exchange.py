"""JSON from the other side of a link."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.codec import MAX_NUMBER
from commonage.link.exchange import parse_json

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(st.text(), NUMBERS)))
def test_all_numbers_are_bounded_and_others_unchanged(values: list[tuple[str, float]]) -> None:
    read = parse_json(json.dumps(values).encode())
    for (_, sent), (_, received) in zip(values, read, strict=True):
        assert type(received) is type(sent)
        assert received == max(-MAX_NUMBER, min(sent, MAX_NUMBER))


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc", "So"])))
def test_all_text_can_be_stored_and_other_text_is_unchanged(text: str) -> None:
    read = parse_json(json.dumps({text: text}).encode())
    whole = json.loads(json.dumps(text))  # two halves of a pair are one character
    wanted = "".join("\ufffd" if c == "\0" or 0xD800 <= ord(c) < 0xE000 else c for c in whole)
    assert read == {wanted: wanted}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400, "-" + "9" * 400, "1E+400", "123456789012345678.5"])
def test_number_that_no_float_holds(number: str) -> None:
    (read,) = parse_json(f"[{number}]".encode())
    assert math.isclose(abs(read), MAX_NUMBER) and (read < 0) == number.startswith("-")


@pytest.mark.parametrize("data", [b"[NaN]", b"[Infinity]", b"[-Infinity]", b'"\xed\xa0\x80"', b"[1"])
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(data)

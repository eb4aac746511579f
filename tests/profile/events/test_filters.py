"""Numbers in filters."""

from __future__ import annotations

import pytest

from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.filters import parse_filter


@pytest.mark.parametrize(
    ("text", "number"), [("012", 12), ("-012", -12), ("0", 0), ("00", 0), ("0x1F", 31), ("-0X1f", -31), (str(2**64 - 1), 2**64 - 1)]
)
def test_numbers(text: str, number: int) -> None:
    [term] = parse_filter(f"(int)arg1 == {text}")
    assert term.number == number


@pytest.mark.parametrize("text", ["9" * 5000, str(2**64), "0x" + "f" * 17, "\N{ARABIC-INDIC DIGIT ONE}", "1_0", ""])
def test_what_is_no_number_of_64_bits(text: str) -> None:
    with pytest.raises(EventError, match=r"not a condition|more than 64 bits"):
        parse_filter(f"arg1 == {text}")

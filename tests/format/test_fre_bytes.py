"""What rows are in bytes is stated for Python and beside it for compiled loops: both say the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sframegen.format import fre_bytes
from sframegen.format.layouts import DATAWORD_WIDTHS
from sframegen.format.model import FdeType
from tests.support.loops import for_each

INLINE = re.compile(r"^cdef inline \w+ (\w+)\([\w ]+ (\w+)\) noexcept:\n    return (.+)$", re.MULTILINE)
COMPILED = {
    name: (parameter, body)
    for name, parameter, body in INLINE.findall((Path(__file__).parents[2] / "sframegen/format/fre_bytes.pxd").read_text())
}
NUMBERS = [*range(0x200), 0xFFFF, 0x10000, 0xFFFFFFFF]


def test_all_functions_are_there_for_loops() -> None:
    assert set(COMPILED) == {name for name, value in vars(fre_bytes).items() if callable(value)}


@for_each("name", COMPILED)
def test_a_function_is_the_same_for_loops(name: str) -> None:
    parameter, body = COMPILED[name]
    function: Callable[[int], int] = getattr(fre_bytes, name)
    numbers = NUMBERS if parameter == "start" else range(0x100)  # others are bytes
    assert [eval(body, {parameter: number}) for number in numbers] == [function(number) for number in numbers]


def test_last_types_are_those_of_the_tables() -> None:
    assert max(FdeType) == fre_bytes.LAST_FDE_TYPE
    assert [number for number in range(4) if fre_bytes.word_size_known(number << 5)] == list(range(len(DATAWORD_WIDTHS)))
    assert [fre_bytes.start_width(number) for number in range(16) if fre_bytes.fre_type_known(number)] == [1, 2, 4]

"""The search of the kernel program finds what that in Python finds, and reads nothing outside the table, whatever its bytes are."""

from __future__ import annotations

import random
import re
import struct
import subprocess
from array import array
from typing import TYPE_CHECKING

import pytest

from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.profile.tables.decoded_table import (
    PAGE_BITS,
    ROW_RULE_SHIFT,
    RULE_BYTES,
    RULE_ELEMENTS,
    DecodedTable,
    make_decoded_table,
)
from sframegen.stack.walking.step import RuleFlag
from tests import ROOT
from tests.support.decoded_tables import DecodedRule, find_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.peers import Compiler

    LookUp = Callable[[Iterable[tuple[DecodedTable, list[int]]]], list[tuple[int, DecodedRule]]]

INCLUDED = ROOT / "sframegen/profile/bpf/table.h"
PROGRAM = ROOT / "tests/profile/bpf/look_up.c"
PLACES = struct.Struct("<Q4IQ")  # base, pages, where the parts begin; the size of all
ANSWER = struct.Struct("<q16s")
FOUND, NO_RULE, DAMAGED = 0, 1, 2


@pytest.fixture(scope="module")
def look_up(compile_c: Compiler) -> LookUp:
    flags = ("-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = compile_c(PROGRAM.read_text(), *flags, "-I", str(INCLUDED.parent), name="look_up")

    def run(asked: Iterable[tuple[DecodedTable, list[int]]]) -> list[tuple[int, DecodedRule]]:
        parts = [
            PLACES.pack(*table[:5], len(table.data)) + table.data + array("Q", [len(addresses), *addresses]).tobytes()
            for table, addresses in asked
        ]
        done = subprocess.run([program], input=b"".join(parts), capture_output=True, check=True)
        answers = ANSWER.iter_unpack(done.stdout)
        return [(outcome, DecodedRule(*RULE_BYTES.unpack(rule))) for outcome, rule in answers]

    return run


def table_with_gaps() -> DecodedTable:
    rules = [*(Rule(Where(7, 8 * n), Where(None, -8, deref=True)) for n in range(1, 9)), OUTERMOST]
    table = FunctionTable(kinds=[Kind()], rules=rules)
    table.append(0x401001, 0x2F0, 0, [(0, 0), (1, 3), (0xFE, 4), (0x100, 8), (0x2EF, 7)])
    table.append(0x401500, 1, 0, [(0, 1)])
    return make_decoded_table(table)


def test_each_address(look_up: LookUp) -> None:
    table, addresses = table_with_gaps(), [*range(0x400F00, 0x401700), 0, (1 << 64) - 1]
    answers = look_up([(table, addresses)])
    wanted = [find_rule(table, address) for address in addresses]
    assert [rule._replace(flags=RuleFlag(rule.flags)) if outcome == FOUND else None for outcome, rule in answers] == wanted
    assert {outcome for outcome, _ in answers} == {FOUND, NO_RULE}
    assert sum(rule is not None for rule in wanted) > 0x2F0


def test_damaged_bytes(look_up: LookUp) -> None:
    good = table_with_gaps()
    seeded = random.Random(33)
    addresses = [0, 0x401001, 0x401100, 0x401500, (1 << 64) - 1]
    asked = [(good._replace(data=good.data[:size]), addresses) for size in range(len(good.data))]
    for _ in range(3000):
        data = bytearray(good.data)
        for _ in range(seeded.randint(1, 3)):
            data[seeded.randrange(len(data))] = seeded.randrange(256)
        places = {name: seeded.choice([getattr(good, name), seeded.getrandbits(32)]) for name in good._fields[1:5]}
        asked.append((good._replace(data=bytes(data), **places), addresses))
    answers = look_up(asked)
    assert len(answers) == len(asked) * len(addresses)
    assert {outcome for outcome, _ in answers} == {FOUND, NO_RULE, DAMAGED}


def test_the_header_has_the_same_numbers() -> None:
    text = INCLUDED.read_text()
    numbers = {name: int(value, 0) for name, value in re.findall(r"\bTABLE_([A-Z_]+) = (0x[0-9a-f]+|\d+)\b", text)}
    assert (numbers.pop("PAGE_BITS"), numbers.pop("ROW_RULE_SHIFT")) == (PAGE_BITS, ROW_RULE_SHIFT)
    assert numbers.pop("RULE_ELEMENTS") == RULE_ELEMENTS
    assert numbers.pop("SEARCH_STEPS") == (1 << PAGE_BITS).bit_length()
    assert [numbers.pop(name) for name in ("FOUND", "NO_RULE", "DAMAGED")] == [0, 1, 2]
    assert numbers == {flag.name: flag.value for flag in RuleFlag}

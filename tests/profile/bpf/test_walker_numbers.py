"""Headers and Python modules have the same numbers; the kernel program's search is that in Python; when it cannot be used."""

from __future__ import annotations

import random
import re
import struct
import subprocess
from array import array
from typing import TYPE_CHECKING

import pytest

from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.profile.bpf import extents, kernel_needs, kernel_records, kernel_walker, libbpf, object_files
from sframegen.profile.bpf.extents import Extents
from sframegen.profile.bpf.kernel_needs import DEADLOCKING, MINIMUM, check_kernel
from sframegen.profile.bpf.kernel_records import Statistic
from sframegen.profile.bpf.kernel_walker import MIB, choose_ring_size
from sframegen.profile.bpf.libbpf import LoadError
from sframegen.profile.limits import MAX_DEPTH, MAX_FILES
from sframegen.profile.machines import BPF_TARGETS
from sframegen.profile.packed_frames import (
    FILE_SHIFT,
    GUESSED,
    KERNEL_FILE,
    NO_FILE,
    OFF_CPU_FILE,
    OFF_CPU_HASH_FACTOR,
    OffCpu,
    off_cpu_label,
)
from sframegen.profile.tables.decoded_table import (
    PAGE_BITS,
    ROW_RULE_SHIFT,
    RULE_BYTES,
    RULE_ELEMENTS,
    DecodedTable,
    make_decoded_table,
)
from sframegen.stack.walking.frames import End
from sframegen.stack.walking.step import GUESS_REACH, REGISTERS, RuleFlag
from tests import ROOT
from tests.support.decoded_tables import DecodedRule, find_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.support.peers import Compiler

    LookUp = Callable[[Iterable[tuple[DecodedTable, list[int]]]], list[tuple[int, DecodedRule]]]

HEADER = (ROOT / "sframegen/profile/bpf/walker.h").read_text()
NUMBERS = {name: int(value, 0) for name, value in re.findall(r"\b([A-Z_0-9]+) = (0x[0-9a-f]+|\d+)\b", HEADER)}


def test_ends_and_frames_have_the_same_numbers() -> None:
    first = {end.name: end.value for end in End if end < Statistic.SAMPLES}
    ends = {name: value for name, value in first.items() if name != "COPY_TOO_SHORT"}  # only copies can be too short
    assert {name.removeprefix("END_"): value for name, value in NUMBERS.items() if name.startswith("END_")} == ends
    assert NUMBERS["ENDS"] == max(ends.values()) + 1
    said = {name: NUMBERS[name] for name in ("FILE_SHIFT", "NO_FILE", "KERNEL_FILE", "MAX_DEPTH")}
    assert said == {"FILE_SHIFT": FILE_SHIFT, "NO_FILE": NO_FILE, "KERNEL_FILE": KERNEL_FILE, "MAX_DEPTH": MAX_DEPTH}
    assert "#define GUESSED (1ull << 63)" in HEADER
    assert GUESSED == 1 << 63
    assert NUMBERS["GUESS_REACH"] == GUESS_REACH


def test_records_and_statistics_have_the_same_numbers() -> None:
    records = ("STACK", "UNFINISHED", "AREA")
    assert [NUMBERS[f"RECORD_{name}"] for name in records] == [getattr(kernel_records, f"RECORD_{name}") for name in records]
    assert (NUMBERS["STOPPED_EXACT"], NUMBERS["STOPPED_GUESSED"]) == (kernel_records.STOPPED_EXACT, kernel_records.STOPPED_GUESSED)
    assert NUMBERS["REGISTERS"] == REGISTERS
    reasons = {name.removeprefix("OFF_"): value for name, value in NUMBERS.items() if name.startswith("OFF_")}
    assert reasons.pop("CPU_FILE") == OFF_CPU_FILE == MAX_FILES + 1
    assert reasons == {reason.name: reason.value for reason in OffCpu}
    labels = {off_cpu_label(reason) for reason in OffCpu}
    assert "[off CPU: waiting for a CPU]" in labels
    assert len(labels) == len(OffCpu)
    assert f"#define OFF_CPU_HASH_FACTOR {OFF_CPU_HASH_FACTOR:#x}ull" in HEADER
    statistics = {name.removeprefix("STAT_"): value for name, value in NUMBERS.items() if name.startswith("STAT_")}
    assert statistics == {statistic.name: statistic.value for statistic in Statistic}
    assert NUMBERS["STATS"] == max(Statistic) + 1
    states = [NUMBERS[f"FILE_{name}"] for name in ("PENDING", "WITHOUT", "READY")]
    assert states == [kernel_walker.PENDING, kernel_walker.WITHOUT, kernel_walker.READY]


def test_an_older_kernel_is_refused() -> None:
    with pytest.raises(LoadError, match=r"the kernel is 5\.10\.0-33-amd64, and the kernel program needs 5\.15"):
        check_kernel("5.10.0-33-amd64")
    with pytest.raises(LoadError, match="this one lacks the user registers of a task"):
        check_kernel("5.14.21")
    assert MINIMUM == (5, 15)


def test_the_page_names_the_kernels() -> None:
    page = " ".join((ROOT / "docs/profile.md").read_text().split())
    assert f"Linux {MINIMUM[0]}.{MINIMUM[1]} or newer" in page
    exceptions = (f"{a}.{b} before {a}.{b}.{stable}" if stable else f"{a}.{b}" for (a, b), stable in DEADLOCKING.items())
    assert f"that may lock up: {', '.join(exceptions)}" in page


def test_an_installation_without_the_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libbpf, "HERE", tmp_path)
    with pytest.raises(LoadError, match=r"no kernel program for \w+: install clang, then sframegen again"):
        libbpf.read_object()


def test_without_clang_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert object_files.compile_objects(object_files.HERE, tmp_path, BPF_TARGETS) == "there is no clang"
    assert not list(tmp_path.iterdir())


def test_the_size_of_the_ring_buffer_follows_what_is_sampled() -> None:
    """62.4 MiB are needed of the first; then there are the most, the least, and page faults."""
    sizes = {(999, 2): 64 * MIB, (99, 2): 8 * MIB, (999, 64): 64 * MIB, (1, 1): MIB, (0, 1): 8 * MIB}
    assert {asked: choose_ring_size(*asked) for asked in sizes} == sizes


def test_a_kernel_that_may_lock_up_is_refused_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_needs, "BTF", tmp_path)
    monkeypatch.setattr(kernel_needs, "PID_NAMESPACE", tmp_path / "no proc")
    cases = [
        ("6.0.19-generic", "#1 SMP", "6.4"),
        ("5.19.0-50-generic", "#50-Ubuntu SMP", "6.4"),
        ("6.1.35", "#1 SMP", "6.1.36"),
        ("6.3.9-200.fc38.x86_64", "#1 SMP", "6.3.10"),
        ("6.1.0-9-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.27-1 (2023-05-08)", "6.1.36"),
        ("6.1.0-1036-oem", "#36-Ubuntu SMP", "6.1.36"),  # which stable release it has is not said
        ("5.15.0-100-generic", "#110-Ubuntu SMP", ""),
        ("6.1.36", "#1 SMP", ""),
        ("6.1.127-135.201.amzn2023.x86_64", "#1 SMP", ""),
        ("6.1.0-50-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-01)", ""),
        ("6.4.0", "#1 SMP", ""),
        ("7.2.13+deb14-arm64", "#1 SMP Debian 7.2.13-1", ""),
    ]
    wrong = {}
    for release, version, corrected in cases:
        said = ""
        try:
            check_kernel(release, version)
        except LoadError as error:
            said = error.message
        expected = rf"the kernel is {re.escape(release)}: it may lock up .*; {corrected} and newer do not" if corrected else ""
        if not re.fullmatch(expected, said):
            wrong[release, version] = said
    assert wrong == {}


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
    assert (numbers.pop("RULE_ELEMENTS"), numbers.pop("SEARCH_STEPS")) == (RULE_ELEMENTS, (1 << PAGE_BITS).bit_length())
    assert [numbers.pop(name) for name in ("FOUND", "NO_RULE", "DAMAGED")] == [0, 1, 2]
    assert numbers == {flag.name: flag.value for flag in RuleFlag}


def test_an_extent_is_used_again_only_when_no_process_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()
    now = [0.0]
    monkeypatch.setattr(extents, "monotonic", lambda: now[0])
    parts = Extents(10, lambda: used)
    first, second = parts.allocate(6), parts.allocate(4)
    assert (first, second, parts.allocate(1)) == (0, 6, None)
    parts.retire(0)
    assert parts.allocate(6) is None  # a run of the program may still read it
    now[0] = 2
    used.add(0)
    assert parts.allocate(6) is None  # a child has it
    used.clear()
    now[0] = 4
    assert (parts.allocate(2), parts.allocate(4)) == (0, 2)
    parts.retire(6)
    parts.retire(2)
    now[0] = 6
    assert parts.allocate(8) == 2

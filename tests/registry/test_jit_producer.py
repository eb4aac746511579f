"""Programs that make code: the C header, and a producer whose tables are read while it works."""

from __future__ import annotations

import re
import struct
import subprocess
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sframegen.base.errors import FormatError
from sframegen.elf.file import open_elf
from sframegen.format.abi import AMD64
from sframegen.format.model import Rule, Where
from sframegen.registry.jit_list import JitRegions, find_list_address
from sframegen.registry.jit_tables import JitTables
from sframegen.registry.regions import Registry
from sframegen.registry.structures import JitEntry, JitList, encode
from tests.registry.jit_walks import FLAGS, INCLUDE, SOURCE, walk_producer
from tests.support.inputs.jit_writer import JitWriter
from tests.support.processes.memories import Running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = pytest.mark.sampled

SAVED_RA = Where(None, -8, deref=True)

MAGIC, TEXT_BYTES = b"!TIJ", 1 << 17


class Code(NamedTuple):
    """What stands before each function that the producer makes, and so its rules."""

    kind: int
    frame: int
    size: int

    def rule_at(self, offset: int) -> Rule:
        sp, saved_fp = AMD64.sp, Where(None, -16, deref=True)
        if self.kind == 0:
            steps = [(7, Rule(Where(sp, 8), SAVED_RA)), (self.size - 1, Rule(Where(sp, 8 + self.frame), SAVED_RA))]
        elif self.kind == 1:
            steps = [(1, Rule(Where(sp, 8), SAVED_RA)), (4, Rule(Where(sp, 16), SAVED_RA, saved_fp))]
            steps.append((self.size - 1, Rule(Where(AMD64.fp, 16), SAVED_RA, saved_fp)))
        else:
            steps = [(1, Rule(Where(sp, 8), SAVED_RA)), (8, Rule(Where(sp, 16), SAVED_RA, saved_fp))]
            steps.append((self.size - 2, Rule(Where(sp, 16 + self.frame), SAVED_RA, saved_fp)))
            steps.append((self.size - 1, Rule(Where(sp, 16), SAVED_RA, saved_fp)))
        return next((rule for end, rule in steps if offset < end), Rule(Where(sp, 8), SAVED_RA))


@pytest.fixture(scope="module")
def producer(compile_c: Compiler) -> Path:
    return compile_c(SOURCE.read_text(), *FLAGS)


def test_tables_of_a_running_program(producer: Path) -> None:
    """Read while it makes and removes functions and whole ranges: what is answered is what the code there needs."""
    with subprocess.Popen([producer, "20"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = int(process.stdout.readline().split()[1], 16)
        memory = Running(process.pid)
        random, registry = Random(1), Registry()
        regions = JitRegions(memory, address, AMD64)
        covered = 0
        while covered < 3_000:
            regions.update(registry)
            for region in list(registry):
                text = memory.read(region.start, TEXT_BYTES)
                idents = [found.start() for found in re.finditer(MAGIC, text)]
                for at in random.sample(idents, min(len(idents), 100)):
                    ident = text[at : at + 16]
                    code = Code(*struct.unpack_from("<3I", ident, 4))
                    offset = random.randrange(code.size + 2)
                    assert isinstance(region.rule_source, JitTables)
                    try:
                        region.rule_source.refresh()
                        found = region.rule_source.look_up(region.start + at + 16 + offset)
                    except FormatError:
                        regions.update(registry)
                        assert region not in list(registry), "the range was given up meanwhile"
                        break
                    if found is not None and memory.read(region.start + at, 16) == ident:
                        covered += 1
                        assert offset < code.size
                        assert found.rule == code.rule_at(offset)
        process.stdin.close()
    assert process.returncode == 0


def test_list_is_found_in_the_file(producer: Path) -> None:
    elf = open_elf(producer)
    address = find_list_address(elf)
    assert address is not None
    assert bytes(elf.at(address, 16)) == encode(JitList(1, 0, 0))
    assert find_list_address(open_elf("/bin/sh")) is None


# Reads calls from stdin, does them to a chain of tables of three entries each, prints what came back and then the tables' bytes.
WRITER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "sframegen_jit.h"
#ifdef __cplusplus
#define ALIGNED alignas(8)
#else
#define ALIGNED _Alignas(8)
#endif
ALIGNED static unsigned char memory[8][32 + 3 * 24];
int main(void) {
    char what;
    long a, b, c, d, e, f;
    int count = 0;
    while (scanf(" %c %ld %ld %ld %ld %ld %ld", &what, &a, &b, &c, &d, &e, &f) == 7) {
        struct sframegen_jit_table *last = count ? (struct sframegen_jit_table *)(void *)memory[count - 1] : NULL;
        struct sframegen_jit_table *first = (struct sframegen_jit_table *)(void *)memory[0];
        struct sframegen_jit_fre entry = {(uint32_t)a, (uint32_t)b, (int32_t)c, (int32_t)d, (int32_t)e, (uint8_t)f, {1, 2, 3}};
        int result = 0;
        if (what == 'a') result = sframegen_jit_append(last, entry);
        if (what == 'r') result = sframegen_jit_remove(first, (uint32_t)a);
        if (what == 't') {
            struct sframegen_jit_table *table = sframegen_jit_init(memory[count++], sizeof memory[0]);
            if (last) result = sframegen_jit_extend(last, table);
        }
        printf("%d ", result);
    }
    printf("\n%p\n", (void *)memory);
    for (int table = 0; table < count; table++)
        for (size_t at = 0; at < sizeof memory[0]; at++) printf("%02x", memory[table][at]);
    return 0;
}
"""
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Wshadow", "-Werror")
LANGUAGES = {"c11": (), "c17": (), "c++11": ("-x", "c++", "-lstdc++"), "c++17": ("-x", "c++", "-lstdc++")}


@pytest.mark.parametrize("standard", LANGUAGES)
def test_header_writes_what_python_writes(compile_c: Compiler, standard: str) -> None:
    program = compile_c(WRITER, f"-std={standard}", *LANGUAGES[standard], *WARNINGS, f"-I{INCLUDE}")
    random, calls, results = Random(standard), [], []
    tables: list[tuple[bytearray, JitWriter]] = []
    end = 0

    def call(what: str, *numbers: int) -> bool:
        calls.append(" ".join(map(str, (what, *numbers, *[0] * (6 - len(numbers))))))
        try:
            if what == "t":
                buffer = bytearray(32 + 3 * 24)
                tables.append((buffer, JitWriter(buffer, 104 * len(tables))))
                if len(tables) > 1:
                    tables[-2][1].extend(tables[-1][1])
            elif what == "a":
                tables[-1][1].append(JitEntry(*numbers))
            else:
                covering = (writer for _, writer in tables if writer.covers(numbers[0]))
                next(covering, tables[0][1]).remove(numbers[0])
        except ValueError:
            results.append("-1")
            return False
        results.append("0")
        return True

    call("t")
    while len(tables) < 7 or not tables[-1][1].is_full:
        start = end + random.randrange(-1 if len(tables[-1][1]) else 0, 3)
        entry = JitEntry(random.randrange(5), start, random.randrange(-99, 99), -8, -(2**31), random.randrange(256))
        if call("a", *entry):
            end = entry.ip_off + entry.size
        elif tables[-1][1].is_full:
            call("t")
        call("r", random.randrange(end + 5))
    call("t")
    call("a", 1, 2**32 - 1, 0, 0, 0, 8)
    output = subprocess.run([program], input="\n".join(calls), check=True, capture_output=True, text=True).stdout
    answers, address, data = output.split("\n")
    assert answers.split() == results
    assert {"0", "-1"} <= set(results)
    for buffer, writer in tables:  # addresses are the program's
        following = int.from_bytes(buffer[16:24], "little")
        buffer[16:24] = (following and following + int(address, 16)).to_bytes(8, "little")
        assert data[: 2 * len(buffer)] == buffer.hex(), writer.address
        data = data[2 * len(buffer) :]
    assert not data


# --- Walks ------------------------------------------------------------------------------------------------------------------------


def test_walks_through_code_that_is_made_meanwhile(producer: Path) -> None:
    counts = walk_producer(producer, 300)
    assert counts.frames > 1000
    assert counts.removed > 100
    assert len(counts.tops) > 5


@pytest.mark.parametrize("change", [("ROW(16, SP_FP)", "ROW(24, SP_FP)"), ("ROW(16, FP_FP)", "ROW(16, SP_FP)")])
def test_wrong_rules_are_noticed(compile_c: Compiler, change: tuple[str, str]) -> None:
    assert change[0] in SOURCE.read_text()
    program = compile_c(SOURCE.read_text().replace(*change), *FLAGS)
    with pytest.raises(AssertionError):
        walk_producer(program, 300)

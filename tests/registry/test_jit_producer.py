"""Programs that make code: the C header, and a producer whose stacks are walked while it works."""

from __future__ import annotations

import subprocess
from random import Random
from typing import TYPE_CHECKING

import pytest

from sframegen.registry.structures import JitEntry
from tests.registry.jit_walks import FLAGS, INCLUDE, SOURCE, walk_producer
from tests.support.inputs.jit_writer import JitWriter

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = pytest.mark.sampled


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
                next((writer for _, writer in tables if writer.covers(numbers[0])), tables[0][1]).remove(numbers[0])
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


def test_walks_through_code_that_is_made_meanwhile(compile_c: Compiler) -> None:
    counts = walk_producer(compile_c(SOURCE.read_text(), *FLAGS), 300)
    assert counts.frames > 1000
    assert counts.removed > 100
    assert len(counts.tops) > 5

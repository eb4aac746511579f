"""A program that makes code and describes it with the C header: its tables become functions, and spans of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import sframegen
from sframegen.format.abi import AMD64
from sframegen.format.model import Rule, Where
from sframegen.profile.following.files import Files, Span
from sframegen.profile.following.jit import NAME, MadeCode
from sframegen.profile.following.processes import Processes
from tests.support.processes.live import Program, compiled

if TYPE_CHECKING:
    from sframegen.profile.events.event_records import MmapRecord
    from tests.support.peers import Compiler

INCLUDE = Path(sframegen.__file__).parent / "integration/include"
SOURCE = """#include <sys/mman.h>
#include "sframegen_jit.h"
static char tables[4096] __attribute__((aligned(8)));
int main(void) {
    char *code = mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%p\\n", (void *) code);
    fflush(stdout);
    struct sframegen_jit_table *table = sframegen_jit_init(tables, sizeof tables);
    static struct sframegen_jit_region region;
    sframegen_jit_register(&region, code + 4096, code + 8192, table);
    struct sframegen_jit_fre entry = {.size = 7, .ip_off = 16, .cfa_off = 8, .ra_off = -8,
                                      .info = SFRAMEGEN_JIT_CFA_SP | SFRAMEGEN_JIT_RA_SAVED};
    sframegen_jit_append(table, entry);
    hold();
    entry.ip_off = 32;
    sframegen_jit_append(table, entry);
    sframegen_jit_remove(table, 16);
    hold();
    sframegen_jit_unregister(&region);
    hold();
    puts("done");
}"""


class NoFiles:
    def spans_of(self, record: MmapRecord, time: int) -> list[Span]:
        raise AssertionError((record, time))


def test_code_that_a_process_describes(compile_c: Compiler, tmp_path: Path) -> None:
    path = compiled(compile_c, tmp_path, SOURCE, f"-I{INCLUDE}", section=False)
    program = Program(path)
    assert program.process.stdout
    code = int(program.process.stdout.readline(), 16)
    files, processes = Files(), Processes(NoFiles())
    made = MadeCode(files, processes)
    pid, first, last = program.pid, Span(100, 200, 0, 4), Span(code, code + 8192, 0, 0)

    def refreshed() -> list[tuple[int, list[int]]]:
        return [(one.file.number, list(one.functions.start)) for one in made.refresh(pid, time.monotonic_ns())]

    with program:
        assert refreshed() == [], "its mappings are not known"
        processes.set_scanned(pid, [first, last], "p", 1)
        text = code + 4096
        [described] = made.refresh(pid, 2)
        assert list(described.functions.start) == [text + 16]
        assert described.functions.rows(0) == [(0, Rule(Where(AMD64.sp, 8), Where(None, -8, deref=True)))]
        number = described.file.number
        mapped = (first, Span(code, text, 0, 0), Span(text, text + 4096, 0, number))
        assert (described.file.path, processes.spans(pid)) == (NAME, mapped)
        assert refreshed() == []

        processes.set_scanned(pid, [first, last], "p", time.monotonic_ns())  # without what /proc cannot know
        assert refreshed() == []
        assert processes.spans(pid) == mapped

        program.go_on()
        program.wait()
        assert refreshed() == [(number, [text + 32])], "the first function was removed"
        program.go_on()
        program.wait()
        processes.changed.clear()
        assert refreshed() == []
        assert [span.file for span in processes.spans(pid) or ()] == [4, 0, 0]
        assert processes.changed == {pid}
    made.close()


def test_processes_without_made_code_are_not_read() -> None:
    files, processes = Files(), Processes(NoFiles())
    made = MadeCode(files, processes)
    processes.set_scanned(os.getpid(), [Span(100, 200, 0, 4)], "p", 1)
    assert made.refresh(os.getpid(), 2) == []
    processes.set_scanned(4_194_303, [Span(100, 200, 0, 0)], "gone", 1)
    assert made.refresh(4_194_303, 2) == []

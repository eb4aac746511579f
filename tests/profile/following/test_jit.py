"""A program that makes code and describes it with the C header: its tables become functions, and spans of their own."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import sframegen
from sframegen.format.abi import AMD64
from sframegen.format.model import Rule, Where
from sframegen.profile.following.files import CodeSpan, TracedFiles
from sframegen.profile.following.follower import Follower, read_memory
from sframegen.profile.following.jit import NAME, MadeCode
from sframegen.profile.following.processes import Processes
from tests.support.kernel_events import needs_perf_events_of_the_kernel
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
    def spans_of(self, record: MmapRecord, time: int) -> list[CodeSpan]:
        raise AssertionError((record, time))


@needs_perf_events_of_the_kernel
def test_code_that_a_process_describes(compile_c: Compiler, tmp_path: Path) -> None:
    path = compiled(compile_c, tmp_path, SOURCE, f"-I{INCLUDE}", section=False)
    program = Program(path)
    assert program.process.stdout
    code = int(program.process.stdout.readline(), 16)
    follower = Follower([program.pid])
    made, pid, text = MadeCode(follower.files, follower.processes), program.pid, code + 4096

    def refreshed() -> list[tuple[int, list[int], int]]:
        found = made.refresh(pid)
        while made.at(pid, spans(), asked) is None:  # it rests
            found += made.refresh(pid)
        return [(one.file.number, list(one.functions.start) if one.functions else [], one.serial) for one in found]

    def spans() -> tuple[CodeSpan, ...]:
        return follower.spans(pid) or ()

    def files(found: tuple[CodeSpan, ...] | None) -> list[int]:
        return [span.file for span in found or () if code <= span.start < code + 8192]

    with program, closing(follower):
        asked = time.monotonic_ns()
        assert refreshed() == [], "its mappings are not known"
        follower.scan(pid)
        early = time.monotonic_ns()
        [described] = made.refresh(pid)
        assert described.functions
        assert list(described.functions.start) == [text + 16]
        assert described.functions.rows(0) == [(0, Rule(Where(AMD64.sp, 8), Where(None, -8, deref=True)))]
        assert read_memory(pid, described.check, 8) == described.serial.to_bytes(8, "little")
        number = described.file.number
        assert (described.file.path, described.file.made, made.follows(pid)) == (NAME, True, True)
        assert files(made.published(pid, spans())) == [made.unknown, number]
        asked = time.monotonic_ns()
        assert made.at(pid, spans(), asked) is None
        assert refreshed() == []
        assert files(made.at(pid, spans(), early)) == [made.unknown, made.unknown], "nobody knows what was there"
        assert files(made.at(pid, spans(), asked)) == [0, number]
        made.observe(pid, number, described.serial, early)
        assert files(made.at(pid, spans(), early)) == [made.unknown, number]

        program.go_on()
        program.wait()
        asked = time.monotonic_ns()
        assert refreshed() == [(number, [text + 32], described.serial)], "the first function was removed"
        late = time.monotonic_ns()
        program.go_on()
        program.wait()
        follower.processes.changed.clear()
        asked = time.monotonic_ns()
        assert refreshed() == []
        assert follower.processes.changed == {pid}
        assert files(made.at(pid, spans(), late)) == [made.unknown]
        asked = time.monotonic_ns()
        assert refreshed() == []
        assert files(made.at(pid, spans(), asked)) == [0]
        assert files(made.published(pid, spans())) == [made.unknown]
    made.forget(pid)
    assert made.dropped == [number]


def test_processes_without_made_code_are_not_read() -> None:
    files, processes = TracedFiles(), Processes(NoFiles())
    made = MadeCode(files, processes)
    processes.set_scanned(os.getpid(), [CodeSpan(100, 200, 0, 4)], "p", 1)
    assert made.refresh(os.getpid()) == []
    processes.set_scanned(4_194_303, [CodeSpan(100, 200, 0, 0)], "gone", 1)
    assert made.refresh(4_194_303) == []
    assert not made.follows(os.getpid())

"""usage: python -m corpus.assembly FILE...

Calls the functions of x86-64 libraries that call frame information is silent on, those of assembly, each in a process of its own,
and steps through them: at every instruction that a synthesized rule describes, is the frame that it gives that of the caller, as
the steps know it? The files are mapped, not loaded: nothing of what they need has to be there. Arguments are buffers and small
numbers; what crashes with them is judged up to there.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sframegen.code.whole_file.synthesize import synthesize
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT_LOAD
from sframegen.elf.symbols import functions_of
from sframegen.format.abi import AMD64
from tests.support.processes.single_step import Step, Traced

if TYPE_CHECKING:
    from sframegen.format.model import Rule

BASE = 0x2000000000  # where files are mapped
MAX_STEPS = 3000
# Maps the segments (address, offset, size, protection) given as arguments, then calls the last one with buffers and small numbers.
HOST = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
__attribute__((aligned(4096))) static char buffers[8][1 << 20];
__attribute__((noinline, noclone)) void begin(long (*function)()) {
    __asm__("" : : "r"(function));
}
int main(int count, char **words) {
    int file = open(words[1], O_RDONLY);
    for (int i = 2; i + 4 < count; i += 4) {
        unsigned long at = strtoul(words[i], 0, 0), offset = strtoul(words[i + 1], 0, 0), size = strtoul(words[i + 2], 0, 0);
        unsigned long skip = at & 4095;
        void *want = (void *)(at - skip);
        int all = PROT_READ | PROT_WRITE | PROT_EXEC;
        if (mmap(want, size + skip, all, MAP_PRIVATE | MAP_FIXED, file, offset - skip) == MAP_FAILED) return 2;
    }
    long (*function)() = (long (*)())strtoul(words[count - 1], 0, 0);
    for (int i = 0; i < 8; i++) memset(buffers[i], i * 37, sizeof buffers[i]);
    begin(function);
    function(buffers[0] + 65536, buffers[1] + 65536, 64L, buffers[2] + 65536, 64L, buffers[3] + 65536, 16L, 16L, 16L, 16L);
    return 0;
}
"""


def judge(file: Path, host: Path) -> None:
    elf = open_elf(file)
    converted = synthesize(elf, convert_sources(find_sources(elf), elf.executable_ranges(), AMD64))
    table = converted.table
    ranges = [one for ranges in converted.coverage.synthesized[2:] for one in ranges]
    rules: dict[int, Rule] = {}
    places = {start: number for number, start in enumerate(table.start)}
    for start, end in ranges:
        here = start
        while here < end:
            number = places[here]
            rows = table.rows(number)
            ends = [offset for offset, _ in rows[1:]] + [table.size[number]]
            for (offset, rule), limit in zip(rows, ends, strict=True):
                rules.update(dict.fromkeys(range(here + offset, here + limit), rule))
            here += table.size[number]
    loads = [load for load in elf.segments if load.p_type == PT_LOAD and load.p_filesz]
    words = [str(word) for load in loads for word in (BASE + load.p_vaddr, load.p_offset, load.p_filesz, load.p_flags)]
    begin = next(symbol.address for symbol in functions_of(open_elf(host)) if symbol.name == "begin")
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    for start, _ in ranges:
        traced = Traced(host, begin, arguments=[str(file), *words, hex(BASE + start)])
        wrong: list[tuple[Step, Rule]] = []

        def look(step: Step, traced: Traced = traced, wrong: list[tuple[Step, Rule]] = wrong) -> None:
            rule = rules.get(step.pc - BASE)
            if rule is not None:
                counts["steps"] += 1
                seen.add(step.pc - BASE)
                if traced.frame(rule, step) != step.caller:
                    wrong.append((step, rule))

        traced.run(look, MAX_STEPS)
        traced.end()
        counts["functions"] += 1
        counts["wrong steps"] += len(wrong)
        counts["wrong functions"] += bool(wrong)
        for step, rule in wrong[:1]:
            print(f"  wrong: {start:#x}, at {step.pc - BASE:#x}: {rule}")
    print(f"{file.name}: {counts['functions']:,} functions of {len(rules):,} bytes")
    print(f"  {counts['steps']:,} steps at {len(seen):,} addresses")
    print(f"  wrong at {counts['wrong steps']:,} of them, in {counts['wrong functions']:,} functions")


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with TemporaryDirectory() as directory:
        source, host = Path(directory) / "host.c", Path(directory) / "host"
        source.write_text(HOST)
        subprocess.run(["gcc", "-O1", "-w", "-no-pie", "-o", host, source], check=True)
        for name in sys.argv[1:]:
            judge(Path(name), host)


main()

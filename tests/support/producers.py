"""Everyone within reach who writes SFrame sections, by version; and the sources that they are given."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from sframegen.format.layouts import F_FDE_FUNC_START_PCREL, F_FDE_SORTED
from tests.support.peers import Peers, cache_directory


class Producer(NamedTuple):
    """An assembler and a linker. `suite`: of tools/get-old-binutils, "" for the peers. `flags` are those of the section."""

    name: str
    version: int
    flags: int
    suite: str = "bookworm"
    assembler: tuple[str, ...] = ("as", "--gsframe")
    linker: tuple[str, ...] = ("ld",)
    prefix: str = ""

    def tool(self, name: str, peers: Peers) -> str:
        """Path of one of its tools; skips the test without it."""
        if not self.suite:
            return peers.tool(self.prefix + name)
        program = cache_directory() / "old-binutils" / self.suite / "bin" / (self.prefix + name)
        if not program.exists():
            pytest.skip(f"no {program}: run tools/get-old-binutils")
        return str(program)

    def assemble(self, source: str, output: Path, peers: Peers) -> Path:
        made = output.with_suffix(".o")
        program, *options = self.assembler
        subprocess.run([self.tool(program, peers), *options, "-o", made], input=source, text=True, check=True)
        return made

    def link(self, source: str, output: Path, peers: Peers) -> Path:
        made = self.assemble(source, output, peers)
        program, *options = self.linker
        subprocess.run([self.tool(program, peers), *options, "-shared", "-o", output, made], check=True)
        return output


SORTED, PCREL = F_FDE_SORTED, F_FDE_FUNC_START_PCREL
GNU = (Producer("GNU 2.40", 1, SORTED), Producer("GNU 2.44", 2, SORTED, "trixie"), Producer("GNU 2.47", 3, SORTED | PCREL, ""))
LLVM = Producer(
    "LLVM", 2, PCREL, "", ("llvm-mc", "--gsframe", "--filetype=obj", "--triple=x86_64-linux-gnu"), ("ld.lld",)
)  # fmt: skip
X86_64 = (*GNU, LLVM)
AARCH64 = tuple(p._replace(prefix="aarch64-linux-gnu-") for p in GNU)
AARCH64_BE = tuple(p._replace(assembler=(*p.assembler, "-EB"), linker=(*p.linker, "-EB")) for p in AARCH64)

FUNCTION = "\t.p2align 4\n\t.globl {0}\n\t.type {0}, %function\n{0}:\n\t.cfi_startproc\n{1}\t.cfi_endproc\n\t.size {0}, . - {0}\n"


def functions(**bodies: str) -> str:
    """Assembler source; in a body, `;` ends a line, and a `.` begins a CFI directive: `nop; .def_cfa_offset 16; nop`."""
    source = "\t.text\n"
    for name, body in bodies.items():
        lines = [line.strip() for line in body.split(";")]
        source += FUNCTION.format(
            name, "".join(f"\t{line.replace('.', '.cfi_', 1) if line[0] == '.' else line}\n" for line in lines)
        )
    return source


ROWS_X86_64 = functions(
    one="ret",
    saves="nop; .def_cfa_offset 16; .offset 6, -16; nop; .def_cfa_register 6; nop; .def_cfa 7, 8; ret",
    # GNU 2.40 remembers the state as it was before a change at the same address: so there is a nop between them.
    remembers="nop; .def_cfa_offset 16; nop; .remember_state; nop; .def_cfa_offset 8; ret; .restore_state; nop",
    restores="nop; .def_cfa_offset 16; .offset 6, -16; nop; .def_cfa_offset 8; .restore 6; nop",
    deep="nop; .def_cfa_offset 40000; .offset 6, -40000; nop; .def_cfa_offset 8000000; nop; .adjust_cfa_offset -7999992; nop",
    long="nop; .def_cfa_offset 24; fill 300, 1, 0x90; .def_cfa_offset 32; fill 66000, 1, 0x90; .def_cfa_offset 8; ret",
).replace("\tfill", "\t.fill")
ROWS_AARCH64 = functions(
    leaf="ret",
    frame="nop; .def_cfa_offset 32; .offset 29, -32; .offset 30, -24; nop; .def_cfa 29, 32; nop; .def_cfa 31, 0; .restore 30; "
    ".restore 29; ret",
    signs="nop; .negate_ra_state; nop; .def_cfa_offset 16; .offset 29, -16; .offset 30, -8; nop; .def_cfa_offset 0; .restore 29; "
    ".restore 30; .negate_ra_state; ret",
    key_b=".b_key_frame; nop; .negate_ra_state; nop; .def_cfa_offset 8192; .offset 30, -8192; nop",
)
PROGRAM = r"""
#include <alloca.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
static jmp_buf place;
int on_stack(int n) { char *p = alloca(n); sprintf(p, "%d", n); puts(p); return p[0]; }
int large_frame(int n) { volatile char b[100000]; b[n] = n; return b[n / 2] + on_stack(n); }
int many(int a, int b, int c, int d, int e, int f) {
  for (int i = 0; i < a; i++) b += on_stack(c + i) * large_frame(d * i) + atoi((char *) &e) * rand() % (f + 1);
  return b + printf("%d %d %d\n", c, d, e);
}
int cold(int n) { if (__builtin_expect(n > 100, 0)) { puts("large"); abort(); } return n + rand(); }
int back(int n) { if (!setjmp(place)) longjmp(place, n); return n; }
int choose(int n) {
  switch (n) {
    case 0: return 5;
    case 1: return rand();
    case 2: return cold(n);
    case 3: return many(n, n, n, n, n, n);
    case 4: return on_stack(n);
    default: return back(n);
  }
}
"""
C_FLAGS = {
    "O2": ("-O2",),
    "O0": ("-O0",),
    "frame-pointer": ("-O2", "-fno-omit-frame-pointer"),
    "Os": ("-Os", "-fcf-protection=none"),
}

"""The judge of the other tests sees what is wrong: a section that GNU as wrote is true, and each change of it is found."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import with_checkout
from tests.support.loops import for_each
from tests.support.oracles import compare, files
from tests.support.oracles.compare import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler, Peers

pytestmark = pytest.mark.once

ASSEMBLY = ("-x", "assembler", "-nostdlib", "-no-pie", "-Wl,-Ttext=0x401000")

# Every row is one `nop` long; what its SFrame rule is stands beside it.
EXPRESSIBLE = """
        .globl _start
_start: .cfi_startproc
        .cfi_undefined rip
        nop                                                             # outermost
        .cfi_endproc
frame:  .cfi_startproc
        nop                                                             # sp+8 same c-8
        .cfi_def_cfa_offset 16
        .cfi_offset rbp, -16
        nop                                                             # sp+16 c-16 c-8
        .cfi_def_cfa_register rbp
        nop                                                             # fp+16 c-16 c-8
        .cfi_remember_state
        .cfi_def_cfa rsp, 8
        .cfi_restore rbp
        nop                                                             # sp+8 same c-8
        .cfi_restore_state
        nop                                                             # fp+16 c-16 c-8
        .cfi_offset rbx, -100000
        nop                                                             # fp+16 c-16 c-8
        .cfi_endproc
large:  .cfi_startproc
        .cfi_signal_frame
        .cfi_def_cfa_offset 800
        .cfi_offset rbp, -128
        nop                                                             # sp+800 c-128 c-8 signal
        .cfi_def_cfa_offset 800000
        nop                                                             # sp+800000 c-128 c-8 signal
        .cfi_same_value rbp
        nop                                                             # sp+800000 same c-8 signal
        .cfi_endproc
"""

C_WITH_PLT = """
#include <alloca.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
typedef double wide __attribute__((vector_size(32)));
__attribute__((noinline)) double realigned(int n) {
    volatile wide x = {1, 2, 3, n};
    char *p = alloca(n);
    memset(p, n, n);
    memset((void *)&x, n, 8);
    return x[3] + p[0];
}
int main(int argc, char **argv) {
    char *p = alloca(argc * 10);
    memset(p, argc, argc * 10);
    printf("%d %f %f\\n", p[0], realigned(argc), sin(argc));
    puts(argv[0]);
    return 0;
}
"""

CXX_WITH_EXCEPTIONS = """
#include <stdexcept>
#include <string>
#include <vector>
__attribute__((noinline)) int thrower(int n) {
    char *p = (char *)__builtin_alloca(n * 16 + 1);
    __builtin_memset(p, n, n * 16 + 1);
    std::vector<std::string> v;
    for (int i = 0; i < n; i++) v.push_back(std::string(p, i));
    if (n > 3) throw std::runtime_error(v[0] + "x");
    return p[0] + v.size();
}
int main(int argc, char **) {
    int sum = 0;
    for (int i = 0; i < 6; i++)
        try { sum += thrower(i + argc); } catch (const std::exception &e) { sum += e.what()[0]; }
    return sum == 0;
}
"""


@for_each(
    ("source", "flags"),
    [
        (C_WITH_PLT, ("-O2", "-lm", "-Wl,-z,lazy")),
        (C_WITH_PLT, ("-O2", "-lm", "-Wl,-z,lazy", "-fcf-protection=none")),
        (C_WITH_PLT, ("-O2", "-lm", "-static")),
        (C_WITH_PLT, ("-O2", "-lm", "-Wl,-z,ibtplt", "-fcf-protection=full")),
        (C_WITH_PLT, ("-O2", "-lm", "-mavx2", "-shared", "-fPIC")),
        (CXX_WITH_EXCEPTIONS, ("-x", "c++", "-O2", "-lstdc++")),
        (CXX_WITH_EXCEPTIONS, ("-x", "c++", "-O0", "-lstdc++")),
    ],
)
def test_what_gnu_as_and_ld_write_for_main_is_true(peers: Peers, compile_c: Compiler, source: str, flags: tuple[str, ...]) -> None:
    file = compile_c(source, *flags, "-Wa,--gsframe", peer_binutils=True)
    report = compare.compare(file, file, peers)
    symbols = subprocess.run([peers.tool("readelf"), "-sW", file], check=True, capture_output=True, text=True).stdout
    main = next(line.split() for line in symbols.splitlines() if line.endswith(" main"))
    begin, size = int(main[1], 16), int(main[2], 0)
    assert report.bytes[Verdict.EQUAL] >= size
    assert report.rows[Verdict.COVERED] == report.rows[Verdict.AMBIGUOUS] == 0
    for difference in report.differences:
        start = int(difference.partition("..")[0], 16)
        assert not begin <= start < begin + size, difference


def function_of(whole: bytearray, section: int, number: int) -> tuple[int, int]:
    """Where in a file, with its .sframe at `section`, function `number` has its index entry, and its attributes."""
    (freoff,) = struct.unpack_from("<I", whole, section + 24)
    index = section + 28 + 16 * number
    (fre,) = struct.unpack_from("<I", whole, index + 12)
    return index, section + 28 + freoff + fre


# name: function, its index entry or its attributes, byte there, value there and what it becomes, what the judge says.
# The attributes take 5 bytes. The rows of function 1: (start, info, CFA), (start, info, CFA, FP) ..., each a byte.
FAULTS = {
    "CFA offset": (1, 1, 7, 8, 16, "0x401001..0x401002 wrong: CFI: cfa=sp+8 .* cfa=sp+16 "),
    "CFA base register": (1, 1, 6, 3, 2, "0x401001..0x401002 wrong: CFI: cfa=sp+8 .* cfa=fp+8 "),
    "FP offset": (1, 1, 11, 0xF0, 0xF8, "0x401002..0x401003 wrong: CFI: cfa=sp+16 .* fp=c-8 "),
    "two rows at one address": (1, 1, 8, 1, 2, "not in the order"),
    "signal frame": (1, 1, 2, 0, 0x80, "0x401001..0x401002 wrong: .* signal"),
    "too few rows": (1, 1, 0, 6, 4, "0x401005..0x401006 wrong: CFI: cfa=fp+16 .* cfa=sp+8 "),
    "RA not undefined": (0, 1, 6, 0, 3, "0x401000..0x401001 wrong: CFI: .* ra=undefined; .* cfa=sp"),
    "too short": (1, 0, 8, 6, 5, "0x401006..0x401007 missing: CFI: cfa=fp+16 .* no rule"),
    "over the next function": (1, 0, 8, 6, 8, "0x401007..0x401008 wrong: .*overlapping FDEs"),
}


def run_compare(original: Path, injected: Path) -> tuple[int, str]:
    """In a process of its own: libsframe trusts its input."""
    command = [sys.executable, "-m", compare.__name__, str(original), str(injected)]
    done = subprocess.run(command, env=with_checkout(), check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@for_each("fault", FAULTS)
def test_a_fault_is_seen(compile_c: Compiler, tmp_path: Path, fault: str) -> None:
    file = compile_c(EXPRESSIBLE, *ASSEMBLY, "-Wa,--gsframe", peer_binutils=True)
    number, part, at, before, after, message = FAULTS[fault]
    whole = bytearray(file.read_bytes())
    at += function_of(whole, files.elf_facts(file).sframe().offset, number)[part]
    assert whole[at] == before
    whole[at] = after
    (tmp_path / "faulty").write_bytes(whole)
    status, text = run_compare(file, tmp_path / "faulty")
    assert status == 1
    assert re.search(message.replace("p+", "p[+]"), text), text


def test_the_command_is_content_with_a_true_section(compile_c: Compiler) -> None:
    file = compile_c(EXPRESSIBLE, *ASSEMBLY, "-Wa,--gsframe", peer_binutils=True)
    status, text = run_compare(file, file)
    assert status == 0, text
    assert "coverage of bytes with CFI 100.0000%" in text


def test_a_rule_where_cfi_says_nothing_is_seen(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    """The original without its CFI: whatever its section says is too much."""
    file = compile_c(EXPRESSIBLE, *ASSEMBLY, "-Wa,--gsframe", peer_binutils=True)
    silent = tmp_path / "silent"
    subprocess.run([peers.tool("objcopy"), "-R", ".eh_frame", file, silent], check=True)
    report = compare.compare(silent, file, peers)
    assert not report.ok
    assert report.bytes == {Verdict.COVERED: EXPRESSIBLE.count(" nop ")}
    assert len(report.differences) == report.rows[Verdict.COVERED]

from __future__ import annotations

import re
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import with_checkout
from tests.support.inputs.cfi_programs import TARGETS
from tests.support.oracles import cfi_text, compare, files, libsframe, rules, sframe_text
from tests.support.oracles.compare import Verdict
from tests.support.oracles.rules import NOTHING, OUTERMOST, Interner, OracleError, Rule

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.oracles.cfi_text import CfiRow
    from tests.support.peers import Compiler, Peers

pytestmark = pytest.mark.once

AMD64 = rules.ABIS[62]
ASSEMBLY = ("-x", "assembler", "-nostdlib", "-no-pie", "-Wl,-Ttext=0x401000")
PLAIN = Rule("sp+8", "same", "c-8", signal=False)

# Every row is one `nop` long; what the SFrame rule must be stands beside it.
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

FLEXIBLE = """
        .globl _start
_start: .cfi_startproc
        .cfi_def_cfa r10, 0
        nop                                                             # r10+0 same c-8
        .cfi_escape 0x10, 6, 2, 0x76, 0                                 # rbp is saved at breg6+0
        nop                                                             # r10+0 (fp+0) c-8
        .cfi_escape 0x0f, 3, 0x76, 0x70, 6                              # CFA is breg6-16, deref
        nop                                                             # (fp-16) (fp+0) c-8
        .cfi_def_cfa rsp, 8
        .cfi_register rbp, rbx
        .cfi_register rip, rdx
        nop                                                             # sp+8 r3+0 r1+0
        .cfi_offset rbp, -32
        .cfi_offset rip, -24
        nop                                                             # sp+8 c-32 c-24
        .cfi_endproc
"""

# No SFrame rule is true of these, whatever the FDE's type.
INEXPRESSIBLE = """
        .globl _start
_start: .cfi_startproc
        nop                                                             # sp+8 same c-8
        .cfi_undefined rbp
        nop                                                             # FP rule
        .cfi_remember_state
        .cfi_restore rbp
        nop                                                             # sp+8 same c-8
        .cfi_restore_state
        nop                                                             # FP rule
        .cfi_offset rbp, -16
        nop                                                             # sp+8 c-16 c-8
        .cfi_val_offset rsp, 0
        nop                                                             # sp+8 c-16 c-8
        .cfi_val_offset rsp, 8
        nop                                                             # SP rule
        .cfi_same_value rsp
        nop                                                             # SP rule
        .cfi_undefined rip
        nop                                                             # outermost
        .cfi_endproc
other:  .cfi_startproc
        .cfi_escape 0x0f, 5, 0x77, 8, 6, 0x23, 8                        # CFA is breg7+8, deref, plus_uconst 8
        nop                                                             # CFA expression
        .cfi_def_cfa rsp, 8
        .cfi_escape 0x16, 7, 2, 0x77, 0                                 # rsp is the value of breg7+0
        nop                                                             # SP rule
        .cfi_escape 0x16, 7, 2, 0x77, 8                                 # rsp is the value of breg7+8
        nop                                                             # sp+8 same c-8
        .cfi_val_offset rbp, 8
        nop                                                             # FP rule
        .cfi_restore rbp
        .cfi_val_offset rip, 8
        nop                                                             # RA rule
        .cfi_same_value rip
        nop                                                             # RA rule
        .cfi_window_save
        .cfi_offset rip, -8
        nop                                                             # RA signature
        .cfi_endproc
third:  .cfi_startproc
        .cfi_return_column rbx
        nop                                                             # RA column
        .cfi_endproc
"""


AARCH64 = """
first:  .cfi_startproc
        nop                                                             # sp+0 same same
        .cfi_def_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        nop                                                             # sp+32 c-32 c-24
        .cfi_negate_ra_state
        nop                                                             # sp+32 c-32 c-24 key A
        .cfi_remember_state
        .cfi_def_cfa x29, 32
        nop                                                             # fp+32 c-32 c-24 key A
        .cfi_negate_ra_state
        .cfi_restore x30
        .cfi_restore x29
        .cfi_def_cfa sp, 0
        nop                                                             # sp+0 same same
        .cfi_undefined x30
        nop                                                             # outermost
        .cfi_restore_state
        nop                                                             # sp+32 c-32 c-24 key A
        .cfi_endproc
second: .cfi_startproc
        .cfi_b_key_frame
        .cfi_signal_frame
        nop                                                             # sp+0 same same signal
        .cfi_negate_ra_state
        nop                                                             # sp+0 same same signal key B
        .cfi_offset x30, -8
        nop                                                             # sp+0 same c-8 signal key B
        .cfi_endproc
"""
AARCH64_FLEXIBLE = """
first:  .cfi_startproc
        .cfi_offset x29, -16
        nop                                                             # FP without RA
        .cfi_register x30, x9
        nop                                                             # RA in a register or elsewhere
        .cfi_offset x30, 0
        nop                                                             # RA in a register or elsewhere
        .cfi_offset x30, -8
        .cfi_register x29, x3
        nop                                                             # FP in a register or elsewhere
        .cfi_def_cfa x5, 8
        nop                                                             # CFA base
        .cfi_register x29, 70
        nop                                                             # base register
        .cfi_def_cfa 99, 8
        nop                                                             # base register
        .cfi_def_cfa x5, 8
        .cfi_undefined x29
        nop                                                             # FP rule
        .cfi_restore x29
        .cfi_negate_ra_state_with_pc
        nop                                                             # RA signature
        .cfi_negate_ra_state
        nop                                                             # RA signature
        .cfi_negate_ra_state_with_pc
        .cfi_def_cfa sp, 8
        nop                                                             # sp+8 c-16 c-8 key A
        .cfi_endproc
"""
S390X = """
first:  .cfi_startproc
        nop                                                             # sp+160 same same
        .cfi_offset %r15, -40
        .cfi_offset %r11, -72
        nop                                                             # sp+160 c-72 same
        .cfi_offset %r14, -48
        nop                                                             # sp+160 c-72 c-48
        .cfi_def_cfa %r11, 4000
        nop                                                             # fp+4000 c-72 c-48
        .cfi_register %r14, %f0
        .cfi_register %r11, %f1
        .cfi_register %r15, %f4
        nop                                                             # fp+4000 r20+0 r16+0
        .cfi_undefined %r14
        nop                                                             # outermost
        .cfi_endproc
second: .cfi_startproc
        .cfi_signal_frame
        .cfi_val_offset %r15, -160
        nop                                                             # sp+160 same same signal
        .cfi_def_cfa %r5, 8
        nop                                                             # r5+8 same same signal
        .cfi_endproc
"""
S390X_INEXPRESSIBLE = """
first:  .cfi_startproc
        .cfi_def_cfa_offset 164
        nop                                                             # CFA offset
        .cfi_def_cfa_offset 168
        .cfi_val_offset %r15, -152
        nop                                                             # SP rule
        .cfi_same_value %r15
        nop                                                             # SP rule
        .cfi_def_cfa_offset 160
        nop                                                             # sp+160 same same
        .cfi_endproc
"""
CROSS = {"AArch64": (AARCH64, "arm64"), "AArch64 big-endian": (AARCH64, "arm64-be"), "s390x": (S390X, "s390x")}
CROSS_REASONS = {"AArch64": (AARCH64_FLEXIBLE, "arm64"), "s390x": (S390X_INEXPRESSIBLE, "s390x")}


def told(source: str) -> list[Rule | str]:
    """The rules, or reasons, in the comments of an assembly source, one for every `nop`."""
    out: list[Rule | str] = []
    for line in source.splitlines():
        code, _, comment = line.partition("#")
        if code.split()[-1:] == ["nop"]:
            words = comment.split()
            named = {"outermost": OUTERMOST}.get(comment.strip())
            key = words[words.index("key") + 1] if "key" in words else ""
            is_rule = words[0][0] in "sfr("
            out.append(named or (Rule(words[0], words[1], words[2], "signal" in words, key) if is_rule else comment.strip()))
    return out


def read_cfi(peers: Peers, file: Path) -> cfi_text.CfiText:
    facts = files.elf_facts(file)
    return cfi_text.read(peers.tool("readelf"), str(file), rules.ABIS[facts.machine], facts.executable())


def cfi_by_byte(peers: Peers, file: Path) -> list[CfiRow]:
    cfi = read_cfi(peers, file)
    return [cfi.rows.values[row] for _, row in sorted(rules.by_byte(cfi.table).items())]


def open_section(peers: Peers, file: Path, readable: Interner[Rule | None]) -> libsframe.Decoder:
    segment = files.elf_facts(file).sframe()
    section = file.read_bytes()[segment.offset : segment.offset + segment.filesz]
    return libsframe.Decoder(peers.libsframe(), section, segment.address, rules.ABIS[files.elf_facts(file).machine], readable)


@pytest.mark.parametrize("source", [EXPRESSIBLE, FLEXIBLE], ids=["default", "flexible"])
def test_three_readers_read_what_was_written(peers: Peers, compile_c: Compiler, source: str) -> None:
    file = compile_c(source, *ASSEMBLY, "-Wa,--gsframe", peer_binutils=True)
    expected = dict(enumerate(told(source), 0x401000))
    readable: Interner[Rule | None] = Interner(None, compare.OVERLAP)
    decoder = open_section(peers, file, readable)
    sframe = sframe_text.read(peers.tool("readelf"), str(file), readable, decoder.block_sizes)

    assert [row.rule for row in cfi_by_byte(peers, file)] == list(expected.values())
    assert {at: readable.values[rule] for at, rule in rules.by_byte(sframe.table).items()} == expected
    assert {at: readable.values[decoder.find(at)] for at in expected} == expected
    assert decoder.find(0x400FFF) == decoder.find(0x401000 + len(expected)) == NOTHING
    decoder.close()


@pytest.mark.parametrize("abi", CROSS)
def test_three_readers_read_foreign_files(peers: Peers, tmp_path: Path, abi: str) -> None:
    source, target = CROSS[abi]
    file = TARGETS[target].link(peers, source, tmp_path, "--gsframe")
    readable: Interner[Rule | None] = Interner(None, compare.OVERLAP)
    decoder = open_section(peers, file, readable)
    sframe = sframe_text.read(peers.tool("readelf"), str(file), readable, decoder.block_sizes)
    found = rules.by_byte(sframe.table)

    assert [row.rule for row in cfi_by_byte(peers, file)[::4]] == told(source)
    assert [readable.values[rule] for rule in list(found.values())[::4]] == told(source)
    assert [readable.values[decoder.find(at)] for at in list(found)[::4]] == told(source)
    decoder.close()
    assert compare.compare(file, file, peers).rows == {Verdict.EQUAL: len(told(source))}


@pytest.mark.parametrize("abi", CROSS_REASONS)
def test_reasons_of_foreign_rows(peers: Peers, tmp_path: Path, abi: str) -> None:
    source, target = CROSS_REASONS[abi]
    file = TARGETS[target].link(peers, source, tmp_path)
    assert [row.reason or row.rule for row in cfi_by_byte(peers, file)[::4]] == told(source)


def test_rows_that_only_a_flexible_fde_can_say_have_a_reason(peers: Peers, compile_c: Compiler) -> None:
    file = compile_c(FLEXIBLE, *ASSEMBLY, peer_binutils=True)
    assert [row.reason for row in cfi_by_byte(peers, file)] == [
        "CFA base",
        "CFA base",
        "CFA base",
        "RA in a register or elsewhere",
        "RA in a register or elsewhere",
    ]


def test_rows_that_no_rule_can_say(peers: Peers, compile_c: Compiler) -> None:
    file = compile_c(INEXPRESSIBLE, *ASSEMBLY, peer_binutils=True)
    found = [row.reason or row.rule for row in cfi_by_byte(peers, file)]
    assert found == told(INEXPRESSIBLE)
    assert all(row.rule is None for row in cfi_by_byte(peers, file) if row.reason)


def test_the_last_of_several_rows_at_one_address_counts_and_rows_at_the_end_do_not(peers: Peers, compile_c: Compiler) -> None:
    source = """
        .globl _start
    _start: .cfi_startproc
        nop
        .cfi_def_cfa_offset 24
        .cfi_escape 0x40                                                # advance by 0
        .cfi_def_cfa_offset 32
        nop
        .cfi_def_cfa_offset 40
        .cfi_endproc
    """
    file = compile_c(source, *ASSEMBLY, peer_binutils=True)
    assert [row.rule and row.rule.cfa for row in cfi_by_byte(peers, file)] == ["sp+8", "sp+32"]


def test_debug_frame_counts_where_eh_frame_is_silent(peers: Peers, compile_c: Compiler) -> None:
    source = """
        .globl _start
        .cfi_sections .debug_frame
    _start: .cfi_startproc
        .cfi_def_cfa_offset 24
        nop
        nop
        .cfi_endproc
        .section .eh_frame, "a", @progbits
    cie:    .long 1f - 0f
    0:      .long 0
        .byte 1
        .string "zR"
        .byte 1, 0x78, 16, 1, 0x1b                                      # code 1, data -8, rip, pcrel sdata4
        .byte 0x0c, 7, 8, 0x90, 1                                       # CFA is rsp+8, rip at -8
        .balign 8, 0
    1:      .long 3f - 2f
    2:      .long 2b - cie
        .long _start - .
        .long 1, 0
        .byte 0, 0, 0
        .balign 8, 0
    3:      .long 0
    """
    file = compile_c(source, *ASSEMBLY, peer_binutils=True)
    assert [row.rule and row.rule.cfa for row in cfi_by_byte(peers, file)] == ["sp+8", "sp+24"]


def test_fdes_outside_executable_segments_are_counted_not_read(peers: Peers, compile_c: Compiler) -> None:
    file = compile_c(EXPRESSIBLE, *ASSEMBLY, peer_binutils=True)
    cfi = cfi_text.read(peers.tool("readelf"), str(file), AMD64, [(0x401001, 0x402000)])
    assert (cfi.fdes, cfi.outside) == (3, 1)
    assert 0x401000 not in rules.by_byte(cfi.table)


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


def test_every_byte_of_a_plt_has_the_rule_of_its_place(peers: Peers, compile_c: Compiler) -> None:
    file = compile_c(C_WITH_PLT, "-O2", "-Wl,-z,lazy", "-lm", peer_binutils=True)
    lines = subprocess.run([peers.tool("readelf"), "-SW", file], check=True, capture_output=True, text=True).stdout.splitlines()
    words = next(line for line in lines if " .plt " in line).partition("PROGBITS")[2].split()
    begin, size = int(words[0], 16), int(words[2], 16)
    raw = subprocess.run([peers.tool("readelf"), "-wf", file], check=True, capture_output=True, text=True).stdout
    pushed_at = int(raw.partition("DW_OP_and; DW_OP_lit")[2].partition(";")[0])
    assert size >= 4 * 16
    cfi = read_cfi(peers, file)
    found = {at: cfi.rows.values[row].rule for at, row in rules.by_byte(cfi.table).items()}
    for at in range(begin + 16, begin + size):
        assert found[at] == PLAIN._replace(cfa="sp+16" if at % 16 >= pushed_at else "sp+8"), hex(at)


@pytest.mark.parametrize(
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


def test_a_true_section_has_no_findings(peers: Peers, compile_c: Compiler) -> None:
    for source in (EXPRESSIBLE, FLEXIBLE):
        file = compile_c(source, *ASSEMBLY, "-Wa,--gsframe", peer_binutils=True)
        report = compare.compare(file, file, peers)
        size = len(told(source))
        assert report.ok
        assert report.bytes == report.rows == {Verdict.EQUAL: size}
        assert report.coverage == 1
        assert not report.differences


def function_of(whole: bytearray, section: int, number: int) -> tuple[int, int]:
    """Where in a file, with its .sframe at `section`, function `number` has its index entry, and its attributes."""
    (freoff,) = struct.unpack_from("<I", whole, section + 24)
    index = section + 28 + 16 * number
    (fre,) = struct.unpack_from("<I", whole, index + 12)
    return index, section + 28 + freoff + fre


# name: function, byte after its attributes' begin, value there and what it becomes, what the judge says.
# The attributes take 5 bytes. The rows of function 1: (start, info, CFA), (start, info, CFA, FP) ..., each a byte.
FAULTS = {
    "CFA offset": (1, 7, 8, 16, "0x401001..0x401002 wrong: CFI: cfa=sp+8 .* cfa=sp+16 "),
    "CFA base register": (1, 6, 3, 2, "0x401001..0x401002 wrong: CFI: cfa=sp+8 .* cfa=fp+8 "),
    "FP offset": (1, 11, 0xF0, 0xF8, "0x401002..0x401003 wrong: CFI: cfa=sp+16 .* fp=c-8 "),
    "two rows at one address": (1, 8, 1, 2, "not in the order"),
    "signal frame": (1, 2, 0, 0x80, "0x401001..0x401002 wrong: .* signal"),
    "too few rows": (1, 0, 6, 4, "0x401005..0x401006 wrong: CFI: cfa=fp+16 .* cfa=sp+8 "),
    "RA not undefined": (0, 6, 0, 3, "0x401000..0x401001 wrong: CFI: .* ra=undefined; .* cfa=sp"),
}
# name: byte of function 1's index entry, value there and what it becomes, what the judge says
INDEX_FAULTS = {
    "too short": (8, 6, 5, "0x401006..0x401007 missing: CFI: cfa=fp+16 .* no rule"),
    "over the next function": (8, 6, 8, "0x401007..0x401008 wrong: .*overlapping FDEs"),
}


def run_compare(original: Path, injected: Path) -> tuple[int, str]:
    """In a process of its own: libsframe trusts its input."""
    command = [sys.executable, "-m", compare.__name__, str(original), str(injected)]
    done = subprocess.run(command, env=with_checkout(), check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def judged_after(file: Path, faulty: Path, number: int, at: int, change: tuple[int, int], *, index: bool) -> tuple[int, str]:
    whole = bytearray(file.read_bytes())
    at += function_of(whole, files.elf_facts(file).sframe().offset, number)[0 if index else 1]
    assert whole[at] == change[0]
    whole[at] = change[1]
    faulty.write_bytes(whole)
    return run_compare(file, faulty)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_function_is_seen(compile_c: Compiler, tmp_path: Path, fault: str) -> None:
    file = compile_c(EXPRESSIBLE, *ASSEMBLY, "-Wa,--gsframe", peer_binutils=True)
    number, at, *change, message = FAULTS[fault]
    status, text = judged_after(file, tmp_path / "faulty", number, at, (change[0], change[1]), index=False)
    assert status == 1
    assert re.search(message.replace("p+", "p[+]"), text), text


@pytest.mark.parametrize("fault", INDEX_FAULTS)
def test_a_fault_in_the_index_is_seen(compile_c: Compiler, tmp_path: Path, fault: str) -> None:
    file = compile_c(EXPRESSIBLE, *ASSEMBLY, "-Wa,--gsframe", peer_binutils=True)
    at, before, after, message = INDEX_FAULTS[fault]
    status, text = judged_after(file, tmp_path / "faulty", 1, at, (before, after), index=True)
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
    assert report.bytes == {Verdict.COVERED: len(told(EXPRESSIBLE))}
    assert len(report.differences) == report.rows[Verdict.COVERED]


def test_a_file_without_the_segment_or_for_another_machine_is_refused(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    file = compile_c(EXPRESSIBLE, *ASSEMBLY, peer_binutils=True)
    with pytest.raises(OracleError, match="0 PT_GNU_SFRAME"):
        compare.compare(file, file, peers)
    whole = bytearray(file.read_bytes())
    struct.pack_into("<H", whole, 18, 0xF3)
    (tmp_path / "foreign").write_bytes(whole)
    with pytest.raises(OracleError, match="machine 243"):
        compare.compare(tmp_path / "foreign", file, peers)
    (tmp_path / "text").write_bytes(b"#!/bin/sh\n")
    with pytest.raises(OracleError, match="not a 64-bit ELF"):
        compare.compare(tmp_path / "text", file, peers)


def test_what_a_tool_says_on_its_standard_error_is_a_failure() -> None:
    with pytest.raises(OracleError, match="beware"), files.running("sh", "-c", "echo x; echo beware >&2") as out:
        assert out.read() == b"x\n"
    with pytest.raises(OracleError, match="exit status 3"), files.running("sh", "-c", "exit 3"):
        pass

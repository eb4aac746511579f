"""Rows for code without CFI, by CFI that is hidden, by single steps, byte by byte, and for code that has to have none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import sframegen
from sframegen.cli.commands import cli
from sframegen.code.context.function_starts import find_relocated_pointers
from sframegen.code.context.plt import Plt
from sframegen.code.decoding.decoded_code import decode
from sframegen.code.isa.effects import DIRECT, Flow
from sframegen.code.isa.machines import isa_of
from sframegen.code.whole_file.boundaries import WINDOW, find_call_targets
from sframegen.code.whole_file.passes import survey_without_cfi
from sframegen.code.whole_file.synthesize import synthesize
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import read_functions
from sframegen.format.abi import AMD64, abi_of
from sframegen.format.model import OUTERMOST, FunctionTable, Rule
from tests.support.cross import ARM64
from tests.support.inputs.map_inputs import MAKERS
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.processes.single_step import Step, Traced

pytestmark = pytest.mark.once

LINKED = (".plt", ".plt.got", ".plt.sec", ".iplt", ".init", ".fini")
LAZY, NOW, IBT, RETPOLINE = "-Wl,-z,lazy", "-Wl,-z,now", "-Wl,-z,ibtplt", "-Wl,-z,retpolineplt"
# Functions without CFI, one of each shape that hand-written ones have, and a program that calls them.
ASSEMBLY = r"""
#include <stdio.h>
#include <stdlib.h>
__asm__(
    ".text\n.balign 16\nleaf:\n lea 1(%rdi), %rax\n ret\n"
    ".balign 16\npushes:\n push %rbp\n push %rbx\n sub $24, %rsp\n mov %rdi, %rbx\n mov $3, %ebp\n"
    "1: mov %rbx, %rdi\n call leaf\n mov %rax, %rbx\n dec %ebp\n jnz 1b\n add $24, %rsp\n pop %rbx\n pop %rbp\n ret\n"
    ".balign 16\nframed:\n push %rbp\n mov %rsp, %rbp\n and $-64, %rsp\n sub $128, %rsp\n call pushes\n leave\n ret\n"
    ".balign 16\ntwo_ends:\n test %rdi, %rdi\n js 2f\n push %rdi\n call framed\n pop %rdi\n ret\n2: xor %eax, %eax\n ret\n"
    ".balign 16\n.globl last\n.type last, @function\nlast:\n sub $8, %rsp\n call two_ends\n add $8, %rsp\n jmp leaf\n"
    ".balign 16\nswapped:\n lea -2048(%rsp), %rax\n mov %rsp, %r11\n mov %rax, %rsp\n call leaf\n mov %r11, %rsp\n ret\n"
);
long last(long);
int main(void) {
    char *text = malloc(100);
    snprintf(text, 100, "%ld %ld", last(5), last(-5));
    puts(text);
    free(text);
    return 0;
}
"""
START = r"""
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");
void begin(void) { __asm__("syscall" : : "a"(60), "D"(0)); }
"""


def test_calls_at_the_edge_of_a_window_are_found() -> None:
    """Decoding that begins amid these constants, 32 bytes before the edge, reads on in step with itself and past the call."""
    isa = isa_of(AMD64)
    constants = bytes.fromhex("48b8 000000000000 48b8") * 4
    code = b"\x90" * (WINDOW - len(constants)) + constants + b"\xe8\xfb\xff\xff\xff" + b"\x90" * 64
    around = SimpleNamespace(decode=lambda start, end: decode(code[start:end], start, isa))
    assert find_call_targets(around, 0, len(code)) == {WINDOW}  # type: ignore[arg-type]
    window = decode(code[WINDOW - 32 :], WINDOW - 32, isa)
    assert list(window.point_numbers(Flow.CALL | DIRECT)) == []


def added(file: Path, directory: Path) -> Path:
    """A copy with a section."""
    out = directory / "out"
    sframegen.add_section(file, output=out, synthesize=True, verify=False)
    return out


def described(file: Path) -> FunctionTable:
    """What its section would say."""
    elf = open_elf(file)
    return synthesize(elf, convert_sources(find_sources(elf), elf.executable_ranges(), abi_of(elf))).table


def covered(table: FunctionTable) -> set[int]:
    return {at for start, size in zip(table.start, table.size, strict=True) for at in range(start, start + size)}


def bytes_of(file: Path, *names: str) -> dict[str, range]:
    found = {section.name: section.header for section in open_elf(file).sections if section.name in names}
    return {name: range(header.sh_addr, header.sh_addr + header.sh_size) for name, header in found.items()}


FORMS = [
    *((maker.name, flags) for maker in MAKERS for flags in (f"-pie {LAZY}", f"-no-pie {NOW}")),
    *((maker, "-static") for maker in ("GNU", "lld", "mold")),
    *(("GNU 2.47", flags) for flags in (f"-pie {IBT}", f"-static-pie {IBT}", "-static-pie", f"-static {IBT}")),
    ("lld", "-pie -fcf-protection=full -Wl,-z,force-ibt"),
    ("lld", f"-pie {NOW} {RETPOLINE}"),
    ("lld", f"-static {NOW} {RETPOLINE}"),
]


@pytest.mark.parametrize(("linker", "flags"), FORMS)
def test_all_that_linkers_make_is_covered(linker: str, flags: str, peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    (maker,) = (maker for maker in MAKERS if maker.name == linker)
    file = compile_c(ASSEMBLY, "-O1", *maker.flags(peers), *flags.split())
    places = bytes_of(file, *LINKED)
    assert {".init", ".fini"} <= places.keys()
    assert len(places) > 2
    table = covered(described(file))
    assert {name: set(place) - table for name, place in places.items()} == {name: set() for name in places}
    if "-static" in flags.split():  # there, sections cannot be added to all of them
        return
    out = added(file, tmp_path)
    report = sframegen.check(out)
    assert report.worst() == sframegen.Severity.NOTE
    assert [finding.rule for finding in report.findings if finding.rule.startswith("cfi")] == ["cfi-silent"]


@for_each("flags", ["-pie", "-static"])
def test_return_for_which_no_rule_is_right(flags: str, peers: Peers, compile_c: Compiler) -> None:
    """That of the lazy retpoline PLT's function, which the first entry calls with two words more on the stack than others do."""
    (maker,) = (maker for maker in MAKERS if maker.name == "lld")
    file = compile_c(ASSEMBLY, "-O1", *maker.flags(peers), flags, LAZY, RETPOLINE)
    places = bytes_of(file, *LINKED)
    table = covered(described(file))
    plt = places[".plt"].start
    assert open_elf(file).at(plt + 0x24, 12) == b"\xc3" + b"\xcc" * 11
    assert {at for place in places.values() for at in place} - table - set(range(plt + 0x20, plt + 0x24)) == set(
        range(plt + 0x24, plt + 0x30)
    )


def places_of(file: Path) -> dict[str, int]:
    """The address of each symbol, also of those that are no functions."""
    with file.open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        return {symbol.name: symbol["st_value"] for symbol in symbols.iter_symbols()}


def rules_at(table: FunctionTable, where: set[int]) -> dict[int, Rule]:
    found = {}
    for number, (start, size, kind) in enumerate(zip(table.start, table.size, table.kind, strict=True)):
        period = table.kinds[kind].rep_size or size
        for at in where.intersection(range(start, start + size)):
            found[at] = next(rule for offset, rule in reversed(table.rows(number)) if offset <= (at - start) % period)
    return found


# For their PLTs.
WITHOUT_CFI = {("mold", ""), ("GNU", "-static"), ("lld", LAZY), ("lld", f"{LAZY} {RETPOLINE}"), ("lld", f"{NOW} {RETPOLINE}")}


@pytest.mark.dear
@pytest.mark.parametrize(
    ("linker", "flags"), [("GNU", LAZY), ("GNU", f"{LAZY} {IBT}"), ("GNU", NOW), ("gold", ""), *sorted(WITHOUT_CFI)]
)
def test_every_step_of_a_program(linker: str, flags: str, peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    """At each instruction that a synthesized rule describes, it gives the frame of the caller."""
    (maker,) = (maker for maker in MAKERS if maker.name == linker)
    file = compile_c(ASSEMBLY, "-O1", "-no-pie", *maker.flags(peers), *flags.split())
    section = sframegen.read(added(file, tmp_path))
    elf = open_elf(file)
    known = convert_sources(find_sources(elf), elf.executable_ranges(), abi_of(elf)).table
    ours = covered(described(file)) - covered(known)
    traced = Traced(file, elf.header.e_entry)
    wrong: list[tuple[Step, Rule]] = []
    seen: set[int] = set()

    def look(step: Step) -> None:
        if step.pc in ours:
            rule = section.rule_at(step.pc)
            assert rule is not None
            seen.add(step.pc)
            if traced.frame(rule, step) != step.caller:
                wrong.append((step, rule))

    traced.run(look)
    traced.end()
    assert wrong == []
    last = places_of(file)["last"]
    assert last in seen
    assert len(seen & set(range(last - 128, last + 16))) > 25
    visited = {name for name, place in bytes_of(file, *LINKED).items() if seen & set(place)}
    assert {".init", ".fini"} <= visited
    if (linker, flags) in WITHOUT_CFI:
        assert visited & {".plt", ".plt.got"}


def test_program_entry(compile_c: Compiler, tmp_path: Path) -> None:
    file = compile_c(START, "-O1", "-nostdlib", "-static")
    summary = sframegen.add_section(file, output=tmp_path / "out", synthesize=True)
    section = sframegen.read(tmp_path / "out")
    start = open_elf(file).header.e_entry
    end = start + 15
    assert summary.fates["synthesized"] == {"program entry": end - start}
    assert [section.rule_at(at) for at in range(start, end)] == [OUTERMOST] * (end - start)
    traced = Traced(file, start)
    steps: list[Step] = []
    traced.run(steps.append)
    traced.end()
    assert [step.caller for step in steps if start <= step.pc < end] == [None] * 4


ENTERED_TWICE = r"""
__asm__(".globl _start, inner\n_start:\n xor %ebp, %ebp\n .type inner, @function\ninner:\n jmp begin\n .size inner, .-inner\n");
void begin(void) { __asm__("syscall" : : "a"(60), "D"(0)); }
"""


@for_each("source", [START, ENTERED_TWICE], ids=["usual", "entered twice"])
def test_program_entry_in_version_2(source: str, compile_c: Compiler, tmp_path: Path) -> None:
    """Which has no words for it: it stays without a rule, also where it could be taken for a function that has a caller."""
    file = compile_c(source, "-O1", "-nostdlib", "-static")
    start = open_elf(file).header.e_entry
    size = sframegen.add_section(file, output=tmp_path / "three", synthesize=True).fates["synthesized"]["program entry"]
    summary = sframegen.add_section(file, output=tmp_path / "two", version=2, synthesize=True)
    assert "synthesized" not in summary.fates
    section = sframegen.read(tmp_path / "two")
    assert [section.rule_at(at) for at in range(start, start + size)] == [None] * size


# Assembly of one function, and how many of its bytes may have rows.
SHAPES = {
    "push %rbx; pop %rbx; ret": "all",
    "sub $40, %rsp; call 1f; 1: add $48, %rsp; ret": "none",  # what the call pushed is not taken back
    "push %rbx; ret": "none",  # returns to somewhere else
    "mov %rdi, (%rsp); ret": "none",
    "pop %rax; jmp *%rax": "none",  # returns, but not as a function does
    "sub %rdi, %rsp; add %rdi, %rsp; ret": "none",  # how much is not known
    "push %rbp; mov %rsp, %rbp; sub %rdi, %rsp; leave; ret": "all",
    "push %rbp; mov %rsp, %rbp; xor %ebp, %ebp; leave; ret": "none",
    "mov $15, %eax; syscall": "none",  # a signal trampoline
    "test %edi, %edi; jz 1f; push %rbx; 1: ret": "none",  # paths disagree
    "xor %eax, %eax; 1: hlt; jmp 1b": "none",  # never returns
    "mov %rbx, %rax; pop %rbx; ret": "none",  # the middle of a function
    '.ascii "no code at all"': "none",
    "push %rbx; call 1f; nop; nop; .balign 16; 1: pop %rax; jmp *%rax": "none",
    "add %eax, %ebx; ret $8": "none",  # no caller expects that
    ".byte 6; ret": "none",  # after what is no instruction
    "jmp *%rdi": "none",
    "push %rbx; lea 1f(%rip), %r8; test %edi, %edi; jz 2f; lea 3f(%rip), %r8; 2: jmp *%r8; 1: nop; 3: pop %rbx; ret": "all",
    "push %rbx; lea 1f(%rip), %r8; test %edi, %edi; jz 2f; mov (%rsi), %r8; 2: jmp *%r8; 1: nop; pop %rbx; ret": "none",
    "push %rbx; lea 1f(%rip), %r8; mulx %rax, %r8, %rcx; jmp *%r8; 1: nop; pop %rbx; ret": "none",
    "push %rbx; lea 1f(%rip), %r8; xchg %rax, %r8; jmp *%r8; 1: nop; pop %rbx; ret": "none",
    "push %rbx; lea 1f(%rip), %rcx; rep movsb; jmp *%rcx; 1: nop; pop %rbx; ret": "none",
}  # fmt: skip


@for_each("code", SHAPES)
def test_only_what_is_proven(code: str, compile_c: Compiler, tmp_path: Path) -> None:
    """Nothing says that a function begins there, but that code without CFI does."""
    lines = code.replace("; ", "\\n").replace('"', '\\"')
    source = f'__asm__(".text\\n.balign 64\\n{lines}\\n.balign 64, 0xcc"); int main(void) {{ return 0; }}'
    file = compile_c(source, "-O1", "-nostdlib", "-Wl,-e,0", "-static")
    out = tmp_path / "out"
    sframegen.add_section(file, output=out, synthesize=True, verify=False, optimize="none")
    begin = bytes_of(file, ".text")[".text"].start
    code_bytes = bytes(open_elf(file).at(begin, 64)).rstrip(b"\xcc")
    found = covered(sframegen.read(out).table) & set(range(begin, begin + 64))
    assert found == (set(range(begin, begin + len(code_bytes))) if SHAPES[code] == "all" else set())


TABLE = r"""__asm__(".section .data.rel.ro,\"aw\"\n table: .long 1f - table, 2f - table, 3f - table, 4f - table, 0\n"
    ".text\n.globl f\n.type f, @function\nf: push %rbx\n and $1, %eax\n"
    " lea 2(%rax), %rcx\n cmp $3, %edx\n cmovg %rcx, %rax\n"
    " lea table(%rip), %rdx\n movslq (%rdx,%rax,4), %rax\n add %rdx, %rax\n jmp *%rax\n"
    "1: nop\n2: pop %rbx\n ret\n3: nop\n4: pop %rbx\n ret\n.size f, .-f\n");"""


@for_each("flags", [("-Wl,-z,relro",), ("-Wl,-z,norelro",)], ids=["relro", "norelro"])
def test_a_jump_table_that_is_read_only_once_the_file_is_loaded(flags: tuple[str, ...], compile_c: Compiler) -> None:
    """Its index is one of two values: `and` bounds the first one only."""
    file = compile_c(TABLE, "-shared", "-nostdlib", *flags)
    function = next(symbol for symbol in read_functions(open_elf(file)) if symbol.name == "f")
    found = covered(described(file)) & set(range(function.address, function.address + function.size))
    assert len(found) == (function.size if flags == ("-Wl,-z,relro",) else 0)


# dav1d's: entries of 2 bytes that count from the table of another function, without a bound; two before the first are never used.
NARROW_TABLE = r"""__asm__(".section .rodata\n .balign 4\n before: .short 1, 2, 2f - from, 3f - from, 4f - from, 1, 1\n"
    ".text\n .balign 16\n .globl jumps\n .type jumps, @function\n"
    "jumps: push %rbx\n lea from(%rip), %r10\n tzcnt %edi, %edi\n WRITES\n"
    "from: movzwl before - from(%r10,%rdi,2), %edi\n add %r10, %rdi\n lea (%rsi,%rsi,2), %rax\n jmp *%rdi\n"
    "2: pop %rbx\n ret\n 3: push %rcx\n nop\n pop %rcx\n 4: xor %eax, %eax\n pop %rbx\n ret\n .size jumps, .-jumps\n");
int jumps(int); int main(int n, char **v) { return jumps(n); }
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is x86-64's")
@pytest.mark.parametrize(
    ("writes", "unused", "is_known"), [("nop", "1, 2", True), ("mov %rsi, %r10", "1, 2", False), ("nop", "1, 2, 1, 2", False)]
)
def test_a_jump_table_of_narrow_entries(writes: str, unused: str, is_known: bool, compile_c: Compiler) -> None:
    """It is followed if all instructions before the jump show where it is, and not many entries come before the used ones."""
    source = NARROW_TABLE.replace("WRITES", writes).replace("1, 2, 2f", f"{unused}, 2f")
    file = compile_c(source, "-O1", "-fno-asynchronous-unwind-tables")
    jumps = next(symbol for symbol in read_functions(open_elf(file)) if symbol.name == "jumps")
    end = jumps.address + jumps.size
    assert covered(described(file)) & set(range(end - 9, end)) == (set(range(end - 9, end)) if is_known else set())


def test_no_function_begins_within_an_instruction(compile_c: Compiler) -> None:
    """Whatever points there: what is left of the instruction may look like a function, and even return."""
    source = r"""__asm__(".text\n.globl f\n.type f, @function\nf: push %rbx\n mov $0xffffffffffffffc3, %rax\n"
        "pop %rbx\n ret\n .size f, .-f\n"
        ".data\n.quad f + 4\n"); int main(void) { return 0; }"""
    file = compile_c(source, "-O1", "-pie")
    start = places_of(file)["f"]
    assert bytes(open_elf(file).at(start + 4, 1)) == b"\xc3"
    assert start + 4 not in covered(described(file))


def test_a_jump_to_a_piece_is_no_function(compile_c: Compiler) -> None:
    """As linkers' veneers, which have symbols, stand between the pieces of a function: they run in its frame."""
    source = r"""__asm__(".text\n.globl main\n.type main, @function\nmain: .cfi_startproc\n push %rbx\n .cfi_def_cfa_offset 16\n"
        ".cfi_offset 3, -16\n test %edi, %edi\n jz near\n pop %rbx\n .cfi_def_cfa_offset 8\n ret\n .cfi_endproc\n"
        ".type main.cold, @function\nmain.cold: .cfi_startproc\n .cfi_def_cfa_offset 16\n .cfi_offset 3, -16\n pop %rbx\n"
        ".cfi_def_cfa_offset 8\n ret\n .cfi_endproc\n"
        ".type near, @function\nnear: jmp main.cold\n .size near, .-near\n .balign 16\n"
        ".type tail, @function\ntail: jmp main\n .size tail, .-tail\n");"""
    file = compile_c(source, "-O1")
    places, found = places_of(file), covered(described(file))
    assert (places["near"] in found, places["tail"] in found) == (False, True)


# Assembly, and from which labels to which it has rows.
FUNCTIONS = {
    # labels that only a jump leads to, which shows no table
    "walker: push %rbx; lea table(%rip), %rbx; jmp *(%rbx,%rdi,8); one: inc %edi; jmp *(%rbx,%rdi,8); two: pop %rbx; ret;"
    ".data; table: .quad one, two": (),
    # a function by its symbol, with a stack of its own: nobody calls it, and nothing in it returns
    ".type f, @function; f: mov %r14, %rsi; jmp *slot(%rip); .data; slot: .quad 0": (),
    ".type f, @function; f: mov %r14, %rsi; jmp g; .type g, @function; g: jmp *slot(%rip); end: .data; slot: .quad 0": (),
    ".type f, @function; f: test %edi, %edi; jz g; jmp *%rax; .type g, @function; g: test %esi, %esi; jz f; jmp *%rax": (),
    ".type f, @function; f: call g; ret; g: mov %r14, %rsi; jmp *slot(%rip); end: .data; slot: .quad 0": (("f", "end"),),
    ".type f, @function; f: mov %r14, %rsi; jmp g; g: ret; end:": (("f", "end"),),
    # after what never returns there is a part of another function, and after that a function that nothing leads to
    ".type f, @function; f: sub $24, %rsp; test %edi, %edi; js part; add $24, %rsp; ret;"
    "die: push %rax; call last; pad: nop; part: call die; fill: nop; hidden: push %rax; call die; last: hlt": (
        ("f", "pad"),
        ("part", "fill"),
    ),
    # what is called and never returns, with the stack that the ABI has, and with another one
    ".type f, @function; f: push %rax; test %edi, %edi; jz 1f; call die; 1: pop %rax; ret; die: push %rax; call *%rdi; call last;"
    "pad: nop; last: hlt": (("f", "pad"),),
    ".type f, @function; f: push %rax; test %edi, %edi; jz 1f; call die; 1: pop %rax; ret; die: call *%rdi; call last;"
    "pad: nop; last: hlt": (("f", "die"),),
    ".type f, @function; f: sub $24, %rsp; test %edi, %edi; js 1f; add $24, %rsp; ret; 1: call *%rdi; hidden: push %rax;"
    "call *%rdi; end:": (),
    ".type f, @function; f: sub $24, %rsp; test %edi, %edi; js 1f; add $24, %rsp; ret; 1: call *%rdi; fill: nop; hidden: push %rax;"
    "call *%rdi; end:": (("f", "fill"),),
    # a landing pad, and after it a function that nothing leads to
    "mov %rax, %rbx; call *%rdx; nop; push %rbx; pop %rbx; ret": (),
}  # fmt: skip


@for_each("code", FUNCTIONS)
def test_only_what_is_proven_of_several(code: str, compile_c: Compiler) -> None:
    lines = code.replace("; ", "\\n").replace(";", "\\n")
    source = f'__asm__(".text\\n.balign 64\\n{lines}\\n.text\\n.balign 64, 0xcc"); int main(void) {{ return 0; }}'
    file = compile_c(source, "-O1", "-nostdlib", "-Wl,-e,0", "-static")
    places = places_of(file)
    found = covered(described(file)) & set(range(bytes_of(file, ".text")[".text"].start, places["main"]))
    expected = {at for begin, end in FUNCTIONS[code] for at in range(places[begin], places[end])}
    assert found == expected


def test_code_with_cfi_shows_where_functions_begin(compile_c: Compiler) -> None:
    """SP has another alignment at their calls than compilers give it, which counts only where something leads to a function."""
    source = r"""__asm__(".text\n.balign 16\nleft: call 1f\n ret\n"
        ".balign 16\nother: call 1f\n ret\n.balign 16\n1: ret\n.balign 16\n");
        extern char left[]; void *take(void) { return left; } int main(void) { return 0; }"""
    file = compile_c(source, "-O1", "-pie", "-fPIE")
    places, found = places_of(file), covered(described(file))
    assert (places["left"] in found, places["other"] in found) == (True, False)


def test_callees_of_callees(compile_c: Compiler) -> None:
    """Code that calls with SP aligned otherwise than compilers do has rows where calls lead to it, from however deep."""
    depth = 12
    code = ".type f0, @function\nf0: " + "".join(f"call .Lf{n}; ret; .balign 16; .Lf{n}: " for n in range(1, depth)) + "ret; end:"
    file = compile_c(f'__asm__(".text; .balign 16; {code}");'.replace("\n", "; "), "-shared", "-fPIC", "-nostdlib")
    first = places_of(file)["f0"]
    assert {first + 16 * number for number in range(depth)} <= covered(described(file))


def test_code_is_not_looked_at_for_each_function_that_never_returns(compile_c: Compiler) -> None:
    """As Go's: nearly all functions end in a call of one that calls one, and so on, that never returns."""
    depth, callers = 3, 2000
    last = ".Lp0: ud2; .balign 16; "
    chain = "".join(
        f".Lp{n}: sub $8, %rsp; call .Lp{n - 1}; mov %rax, (%rax); add $8, %rsp; ret; .balign 16; " for n in range(1, depth)
    )
    caller = "sub $8, %rsp; test %rdi, %rdi; jz 2f; call 1f; add $8, %rsp; ret; 2: call .Lp2; call .Lp2; nop; .balign 16; 1: "
    code = f".type f, @function; f: {caller * callers} ret; .balign 16; {chain}{last}"
    file = compile_c(f'__asm__(".text; .balign 16; {code}");', "-shared", "-fPIC", "-nostdlib")
    (text,) = bytes_of(file, ".text").values()
    survey = survey_without_cfi(open_elf(file), [(text.start, text.stop)], {text.start}, Plt(AMD64, []))
    assert {text.start + 32 * callers + 16, text.start + 32 * callers + 48} <= survey.never_returning
    assert survey.decoded_bytes < 2.5 * len(text)  # once for where calls lead, and once for all else


def test_cfi_comes_first(compile_c: Compiler, tmp_path: Path) -> None:
    """Where it speaks nothing changes, even where it is wrong; and all is counted apart."""
    file = compile_c(ASSEMBLY, "-O1", "-no-pie")
    plain, both = (tmp_path / name for name in ("plain", "both"))
    before = sframegen.add_section(file, output=plain, optimize="none")
    after = sframegen.add_section(file, output=both, optimize="none", synthesize=True)
    assert (before.synthesized_functions, before.synthesized_bytes, "synthesized" in before.fates) == (0, 0, False)
    assert after.synthesized_bytes == sum(after.fates["synthesized"].values()) > 100
    assert (after.functions, after.code_bytes, after.covered_bytes) == (before.functions, before.code_bytes, before.covered_bytes)
    assert sum(sum(counts.values()) for counts in after.fates.values()) == sum(
        sum(counts.values()) for counts in before.fates.values()
    )
    old, new = (sframegen.read(out).table for out in (plain, both))
    where = covered(old)
    assert rules_at(new, where) == rules_at(old, where)
    assert len(covered(new)) == len(where) + after.synthesized_bytes
    assert f" of {after.synthesized_bytes:,} bytes synthesized" in after.one_line()
    assert any("synthesized: instructions" in line for line in after.details())
    again = sframegen.add_section(both, optimize="none", synthesize=True)
    assert again.note == "has it already"


def test_processes_find_the_same(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are; and all are reported as they go on."""
    monkeypatch.setattr("sframegen.code.whole_file.parallel_tasks.TASK_BYTES", 64)
    file = compile_c(ASSEMBLY, "-O1", "-fno-asynchronous-unwind-tables")
    told: list[tuple[int, int]] = []
    outputs = [tmp_path / name for name in "ab"]
    for jobs, output in enumerate(outputs, 1):
        sframegen.add_section(file, output=output, synthesize=True, jobs=jobs, progress=lambda *where: told.append(where))
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert len(told) > 10
    assert all(0 < done <= length for done, length in told)
    assert told[-1][0] == told[-1][1]


def test_a_process_that_dies_is_one_line(compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sframegen.code.whole_file.parallel_tasks.TASK_BYTES", 64)
    this = os.getpid()

    def die(_context: object, _ranges: object) -> set[int]:
        if os.getpid() != this:
            os.kill(os.getpid(), signal.SIGKILL)
        return set()

    monkeypatch.setattr("sframegen.code.whole_file.passes._find_call_targets", die)
    file = compile_c(ASSEMBLY, "-O1", "-fno-asynchronous-unwind-tables")
    before = file.read_bytes()
    result = CliRunner().invoke(cli, ["add-section", "-j2", "--synthesize", str(file)])
    assert (result.exit_code, result.output) == (1, f"sframegen: {file}: the worker process was killed by signal 9 (Killed)\n")
    assert file.read_bytes() == before


@for_each("flags", ["-pie", "-shared", "-static", "-pie -Wl,-z,force-bti", "-pie -Wl,-z,pac-plt"])
def test_aarch64(flags: str, peers: Peers, tmp_path: Path) -> None:
    source = '#include <stdio.h>\nint main(void) { return puts("x"); }'
    file = ARM64.compiler(peers, tmp_path)(source, "-O1", "-fPIC", "-mbranch-protection=standard", *flags.split())
    places = bytes_of(file, *LINKED)
    table = covered(described(file))
    assert {name: len(set(place) - table) for name, place in places.items()} == dict.fromkeys(places, 0)
    if flags != "-static":
        assert sframegen.check(added(file, tmp_path)).worst() == sframegen.Severity.NOTE


def test_offsets_of_threads_variables_are_no_pointers(compile_c: Compiler) -> None:
    source = "static __thread char before[0x1020], at; char *f(void) { return &at + before[3]; } void *p = &p;"
    file = compile_c(source, "-shared", "-fPIC", "-ftls-model=initial-exec", "-nostdlib", "-Wl,-Bsymbolic")
    found = find_relocated_pointers(open_elf(file))
    assert found
    assert 0x1020 not in found

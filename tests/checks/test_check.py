"""`sframegen check`: each byte of code has the verdict that its definition gives it, and what is wrong is found where it is."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sframegen
from sframegen.checks import against_cfi
from sframegen.checks.against_cfi import CfiComparison, compare_with_cfi
from sframegen.checks.finding import Verdict
from sframegen.cli.commands import cli
from sframegen.conversion.cfi_sections import Sources
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PT, RECORDS, SHDR_SIZE, SHT, Phdr, Shdr
from sframegen.elf.symbols import find_functions_named
from sframegen.format.abi import AARCH64, AMD64, Abi
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import HEADER_SIZE, V2, V3, FormatVersion, Layout
from sframegen.format.locate import read_sframe
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.tables.levels import LevelName
from tests.support.inputs.cfi_writer import Frames
from tests.support.inputs.linker_inputs import Writer
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.producers import C_FLAGS, PROGRAM, ROWS_X86_64
from tests.support.producers import X86_64 as X86_64_PRODUCERS
from tests.support.tables import find

SIZE = 64
ADDRESS = 0x200000  # of the section
RA = Where(None, -8, deref=True)
ENTRY, PUSHED = Rule(Where(7, 8), RA), Rule(Where(7, 16), RA, Where(None, -16, deref=True))
DRAP = Rule(Where(10, 0), RA)

# One byte of CFI each, or a few: what it says.
CFI = {
    "entry": (b"", ENTRY),
    "pushed": (b"\x0e\x10\x86\x02", PUSHED),
    "drap": (b"\x0c\x0a\x00", DRAP),
    "outermost": (b"\x07\x10", OUTERMOST),
    "fp lost": (b"\x07\x06", None),
    "sp elsewhere": (b"\x87\x02", None),
}
RULES = [ENTRY, PUSHED, DRAP, OUTERMOST]


class Fde(NamedTuple):
    start: int
    size: int
    says: str
    signal: bool


class Function(NamedTuple):
    start: int
    size: int
    rules: tuple[int, ...]  # of rows, a byte apart; none: a function without rows
    period: int
    signal: bool


def code_of() -> tuple[ElfFile, int]:
    """A file with SIZE bytes of code, and its address."""
    writer = Writer("little", 1)
    base = writer.put(".text", SHT.PROGBITS, 6, bytes(SIZE), 0x100).sh_addr
    return ElfFile(memoryview(writer.finish([Phdr(PT.LOAD, 5, base, base, base, SIZE, SIZE, 0x100)]))), base


def frames_of(fdes: list[Fde], base: int) -> Sources:
    frames = Frames()
    cies = {signal: frames.cie(augmentation="zRS" if signal else "zR", data=b"\0") for signal in (False, True)}
    for fde in fdes:
        frames.plain_fde(cies[fde.signal], base + fde.start, fde.size, CFI[fde.says][0])
    return Sources([frames.section()], 0, 1, [])


def table_of(functions: list[Function], base: int) -> FunctionTable:
    table = FunctionTable(rules=RULES)
    for function in functions:
        flex = any(RULES[rule] == DRAP for rule in function.rules)
        kind = Kind(FdeType(flex), function.period, mask=bool(function.period), signal=function.signal)
        table.kinds.append(kind)
        rows = function.rules[: min(function.size, function.period or function.size)]
        table.append(base + function.start, function.size, len(table.kinds) - 1, enumerate(rows))
    return table


def judged(elf: ElfFile, table: FunctionTable, sources: Sources, abi: Abi = AMD64, layout: Layout = V3) -> CfiComparison:
    data = Encoder(table, abi, layout, share=False).encode(ADDRESS)
    truth = compare_with_cfi(elf, decode(bytes(data), ADDRESS), sources, abi)
    assert sum(truth.code.values()) == sum(end - start for start, end in elf.executable_ranges())
    return truth


def by_byte(fdes: list[Fde], table: FunctionTable, base: int, layout: Layout) -> Counter[Verdict]:
    """The same by the definition: each byte's verdict alone."""
    counts: Counter[Verdict] = Counter()
    for pc in range(base, base + SIZE):
        fde = next((fde for fde in fdes if fde.start <= pc - base < fde.start + fde.size), None)
        given = find(table, pc)
        covering = max((f for f, start in enumerate(table.start) if start <= pc), default=0)
        signal = bool(len(table)) and table.kinds[table.kind[covering]].signal
        if fde is None:
            counts[Verdict.UNDESCRIBED if given else Verdict.SILENT] += 1
            continue
        expected = CFI[fde.says][1]
        expressible = layout.flex or (expected not in (DRAP, OUTERMOST) and not fde.signal)
        if given is None:
            counts[Verdict.ABSENT if expected and expressible else Verdict.INEXPRESSIBLE] += 1
        else:
            right = given == expected and (signal == fde.signal or not layout.signal)
            counts[Verdict.EQUAL if right else Verdict.WRONG] += 1
    return counts


def apart(kind: Callable[..., Fde | Function], *rest: st.SearchStrategy[object]) -> st.SearchStrategy[list[Fde | Function]]:
    """Ascending, without overlaps."""

    def placed(drawn: list[tuple[int, int, *tuple[object, ...]]]) -> list[Fde | Function]:
        found, at = [], 0
        for gap, size, *values in drawn:
            if at + gap + size <= SIZE:
                found.append(kind(at + gap, size, *values))
                at += gap + size
        return found

    return st.lists(st.tuples(st.integers(0, 9), st.integers(1, 24), *rest), max_size=8).map(placed)


fde_lists = apart(Fde, st.sampled_from(list(CFI)), st.booleans())
rule_lists = st.lists(st.integers(0, 3), max_size=5).map(tuple)
function_lists = apart(Function, rule_lists, st.sampled_from([0, 0, 3, 16]), st.booleans())


@given(fde_lists, function_lists)
def test_every_byte_has_the_verdict_of_the_definition(fdes: list[Fde], functions: list[Function]) -> None:
    elf, base = code_of()
    table = table_of(functions, base)
    truth = judged(elf, table, frames_of(fdes, base))
    assert truth.code == {verdict: by_byte(fdes, table, base, V3)[verdict] for verdict in Verdict}
    errors = [finding for finding in truth.findings if finding.severity is sframegen.Severity.ERROR]
    assert bool(errors) == bool(truth.code[Verdict.WRONG])
    assert [finding.rule for finding in truth.findings if finding not in errors] == ["cfi-absent"] * bool(
        truth.code[Verdict.ABSENT]
    )


@given(
    fde_lists,
    apart(Function, st.lists(st.sampled_from([0, 1]), min_size=1, max_size=5).map(tuple), st.just(0), st.just(value=False)),
)
def test_version_2_is_judged_by_what_it_can_say(fdes: list[Fde], functions: list[Function]) -> None:
    elf, base = code_of()
    table = table_of(functions, base)
    truth = judged(elf, table, frames_of(fdes, base), layout=V2)
    assert truth.code == {verdict: by_byte(fdes, table, base, V2)[verdict] for verdict in Verdict}


def test_of_functions_that_overlap_the_one_that_a_search_finds_counts() -> None:
    elf, base = code_of()
    table = table_of([Function(16, 32, (1,), 0, signal=False), Function(0, 48, (0,), 0, signal=False)], base)
    truth = judged(elf, table, frames_of([Fde(0, 16, "entry", signal=False), Fde(16, 32, "pushed", signal=False)], base))
    assert {verdict: count for verdict, count in truth.code.items() if count} == {Verdict.EQUAL: 48, Verdict.SILENT: 16}


def test_rules_that_give_the_same_values_are_equal() -> None:
    elf, base = code_of()
    table = table_of([Function(0, 8, (0,), 0, signal=False)], base)
    table.rules = [Rule(Where(7, 16), Where(7, 8, deref=True), Where(7, 0, deref=True))]
    table.kinds = [Kind(FdeType.FLEX)]
    truth = judged(elf, table, frames_of([Fde(0, 8, "pushed", signal=False)], base))
    assert (truth.code[Verdict.EQUAL], truth.findings) == (8, [])


# -- a real program, its section damaged by hand


@pytest.fixture(scope="module")
def program(compile_c: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("check") / "program"
    sframegen.add_section(compile_c(SOURCE, "-O1", "-fno-omit-frame-pointer"), output=file, verify=False, optimize="none")
    return file


SOURCE = """
#include <stdio.h>
int twice(int n) { if (n) return printf("%d", n) * 2; return puts("none"); }
int main(int argc, char **argv) { return twice(argc); }
"""


def test_keys_of_signed_return_addresses() -> None:
    elf, base = code_of()
    frames = Frames()
    cie = frames.cie(b"\x0c\x1f\x00", augmentation="zRB", data=b"\0", ra=30)
    frames.plain_fde(cie, base, 16, b"\x48\x2d")  # signed from offset 8 on
    signed = Rule(Where(31, 0), ra_signed=True)
    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(31, 0)), signed])
    table.append(base, 16, 0, [(0, 0), (8, 1)])
    truth = judged(elf, table, Sources([frames.section()], 0, 1, []), AARCH64)
    assert [(finding.rule, finding.address) for finding in truth.findings] == [("cfi-key", base + 8)]
    assert truth.findings[0].message.endswith("with key A; the CFI says key B")
    table.kinds = [Kind(key_b=True)]
    assert judged(elf, table, Sources([frames.section()], 0, 1, []), AARCH64).findings == []


def test_many_findings_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against_cfi, "MAX_FINDINGS", 2)
    elf, base = code_of()
    fdes = [Fde(start, 4, "pushed", signal=False) for start in range(0, 40, 8)]
    truth = judged(elf, table_of([Function(0, 40, (0,), 0, signal=False)], base), frames_of(fdes, base))
    assert [finding.rule for finding in truth.findings] == ["cfi-rule", "cfi-rule", "cfi-more"]
    assert truth.findings[-1].message == "12 bytes of other functions are also wrong"
    assert truth.findings[0].message.startswith(".text+0x0, 4 bytes: ")


# -- sections of others


@for_each("flags", C_FLAGS.values(), ids=C_FLAGS)
def test_compiled_programs_of_gnu_as_and_ld(compile_c: Compiler, flags: tuple[str, ...]) -> None:
    file = compile_c(PROGRAM, *flags, "-shared", "-fPIC", "-Wa,--gsframe", peer_binutils=True)
    report = sframegen.check(file)
    assert (report.version, report.code[Verdict.WRONG], report.code[Verdict.ABSENT]) == (3, 8, 0)
    (finding,) = [finding for finding in report.findings if finding.severity is sframegen.Severity.ERROR]
    assert finding.message == (  # docs/merging.md
        ".plt.got+0x0, 8 bytes: (cfa, ra, fp) = (rsp + 16, *(cfa - 8), rbp); "
        "the CFI says (cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)"
    )


# -- the command, and from Python


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["check", *map(str, arguments)], catch_exceptions=False)
    return done.exit_code, done.output


def patched(program: Path, directory: Path, section: str, offset: int, change: int) -> Path:
    """The program with another byte in a section."""
    found = open_elf(program).section(section)
    assert found is not None
    data = bytearray(program.read_bytes())
    data[found.header.sh_offset + offset] += change
    bad = directory / "bad"
    bad.write_bytes(data)
    return bad


@for_each(
    ("code", "second", "says"),
    [
        ({Verdict.EQUAL: 1234, Verdict.SILENT: 5}, {}, ", all 1,234 bytes of code with CFI match it"),
        ({Verdict.EQUAL: 7}, {"same": 7, "other": 0}, ", all 7 bytes of code with CFI match it, confirmed by pyelftools"),
        (
            {Verdict.EQUAL: 7},
            {"same": 6, "other": 1},
            ", all 7 bytes of code with CFI match it; by pyelftools: 6 the same, 1 other",
        ),
        (
            {Verdict.EQUAL: 1, Verdict.ABSENT: 2, Verdict.INEXPRESSIBLE: 4, Verdict.WRONG: 8},
            {},
            ", 1 of 15 bytes of code with CFI match it, 8 do not, 2 are not covered, 4 cannot be expressed",
        ),
        ({Verdict.UNDESCRIBED: 3}, {}, ""),
    ],
)
def test_how_much_of_the_code_matches(code: dict[Verdict, int], second: dict[str, int], says: str) -> None:
    report = sframegen.CheckReport("a", version=3, functions=2, code=code, second_reader=second)
    assert report.one_line() == "a: OK: SFrame 3, 2 FDEs" + says


def test_a_good_section_is_one_line(program: Path) -> None:
    status, output = run(program)
    report = sframegen.check(program)
    assert status == 0
    equal, lost = report.code[Verdict.EQUAL], report.code[Verdict.INEXPRESSIBLE]
    amount = f"{equal:,} of {equal + lost:,}" if lost else f"all {equal:,}"
    others = f", {lost:,} cannot be expressed" * bool(lost)
    match = f"{amount} bytes of code with CFI match it{others}"
    assert output == f"{program}: OK: SFrame 3, {report.functions:,} FDEs, {match}\n"
    # glibc reads version 2; the kernel does not understand that _start is the outermost frame
    assert [(finding.rule, finding.severity) for finding in sframegen.check(program).findings] == [
        ("glibc-version", sframegen.Severity.NOTE),
        ("kernel-outermost", sframegen.Severity.NOTE),
    ]


def test_a_wrong_row_is_an_error(program: Path, tmp_path: Path) -> None:
    """The CFA's offset is. JSON says the same."""
    elf = open_elf(program)
    (function,) = find_functions_named(elf, b"twice")
    bad = patched(program, tmp_path, ".sframe", read_sframe(elf).seeker.find(function.address) + 1, 8)
    status, output = run(program, bad, "-j1")
    good, first, second = output.splitlines()
    assert status == 1
    assert ": OK: " in good
    assert first.startswith(f"{bad}: 1 error: ")
    assert second.startswith("  error: cfi-rule (0x")
    assert ": twice, " in second
    assert run("-q", program) == (0, "")
    assert run("-q", bad) == (1, f"{first}\n{second}\n")
    assert run("-v", program)[1].count("\n") == 2 + 2 + len(Verdict)
    status, output = run("--json", program, bad)
    sound, wrong = json.loads(output)
    assert status == 1
    assert list(sound["code"]) == [verdict.name.lower() for verdict in Verdict]
    assert [finding["severity"] for finding in wrong["findings"]] == ["error", "note", "note"]
    assert wrong["findings"][0]["rule"] == "cfi-rule"
    number = list(read_sframe(open_elf(bad)).table.start).index(wrong["findings"][0]["address"])
    assert wrong["findings"][0]["offset"] == HEADER_SIZE + V3.index_size * number
    assert sum(sound["code"].values()) == sum(wrong["code"].values())


def test_the_first_line_says_if_the_section_is_not_where_its_headers_are(program: Path, tmp_path: Path) -> None:
    """As LIEF leaves it: the bytes and the section header moved, and PT_GNU_SFRAME did not."""
    data, elf = bytearray(program.read_bytes()), open_elf(program)
    section = elf.section(".sframe")
    assert section is not None
    moved = section.header._replace(sh_offset=section.header.sh_offset + 8, sh_addr=section.header.sh_addr + 8)
    RECORDS[Shdr, "little"].pack_into(data, elf.header.e_shoff + section.number * SHDR_SIZE, *moved)
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    first = run(bad)[1].splitlines()[0]
    assert "; another tool moved the section away from its headers: run add-section after that tool" in first


def test_strict_makes_errors_of_warnings(peers: Peers, tmp_path: Path) -> None:
    file = X86_64_PRODUCERS[1].link(ROWS_X86_64, tmp_path / "rows.so", peers)
    status, output = run("--consumer", "gnu", file)
    assert (status, "1 warning: " in output) == (0, True)
    status, output = run("--consumer", "gnu", "--strict", file)
    assert (status, "1 error: " in output) == (1, True)
    assert run("--consumer", "glibc", "--strict", file)[0] == 0
    assert run("--consumer", "kernel", file)[0] == 1  # which does not read the version
    with pytest.raises(ValueError, match="unknown consumer 'linux', only kernel, glibc, gnu, arm64-kernel, all"):
        sframegen.check(file, consumer="linux")  # type: ignore[arg-type]


def test_files_without_a_section(compile_c: Compiler) -> None:
    plain = compile_c(SOURCE, "-O1")
    assert run(plain) == (1, f"{plain}: 1 error\n  error: no-sframe: no SFrame section; sframegen add-section makes one\n")
    made = compile_c("int f(void) { return 0; }", "-c", name="f.o")
    assert run(made) == (1, f"{made}: 1 error\n  error: no-sframe: no SFrame section; sframegen add-section makes one\n")
    for flags in (["-nostdlib", "-static"], ["-c"]):
        bare = compile_c("void _start(void) { for (;;); }", "-fno-asynchronous-unwind-tables", *flags)
        line = "  error: no-sframe: no SFrame section, and none can be made: no call frame information\n"
        assert run(bare) == (1, f"{bare}: 1 error\n{line}")


def test_a_section_or_cfi_that_cannot_be_read_is_still_reported(program: Path, tmp_path: Path) -> None:
    report = sframegen.check(patched(program, tmp_path, ".sframe", 2, 6))  # version 9
    assert (report.version, report.code) == (0, {})
    assert report.worst() is sframegen.Severity.ERROR
    report = sframegen.check(patched(program, tmp_path, ".eh_frame", 8, 76))  # the version of the first CIE
    assert [finding.rule for finding in report.findings if finding.severity] == ["cfi-unreadable"]
    assert (report.version, report.code) == (3, {})


@for_each(
    ("second", "message"),
    [
        ({"p_vaddr": 0x110}, "executable segments overlap at 0x110"),
        ({"p_vaddr": 0x8000}, "executable segments are larger than the file"),
        ({"p_vaddr": 0x8000, "p_filesz": 0x10000}, "reach past the end of the file"),
    ],
)
def test_segments_that_no_program_has(second: dict[str, int], message: str) -> None:
    writer = Writer("little", 2)
    writer.put(".text", SHT.PROGBITS, 6, bytes(0x1000), 0x100)
    load = Phdr(PT.LOAD, 5, 0x100, 0x100, 0x100, 0x1000, 0x1000, 0x100)
    elf = ElfFile(memoryview(writer.finish([load, load._replace(**second)])))
    section = decode(bytes(Encoder(table_of([], 0), AMD64, V3, share=False).encode(ADDRESS)), ADDRESS)
    with pytest.raises(sframegen.FormatError, match=message):
        compare_with_cfi(elf, section, Sources([], 0, 0, []), AMD64)


def test_without_any_cfi() -> None:
    elf, base = code_of()
    truth = judged(elf, table_of([Function(0, 16, (0,), 0, signal=False)], base), Sources([], 0, 0, []))
    assert (truth.code[Verdict.UNDESCRIBED], truth.code[Verdict.SILENT]) == (16, SIZE - 16)
    assert [(finding.rule, finding.severity) for finding in truth.findings] == [("cfi-none", sframegen.Severity.NOTE)]


def test_cfi_of_a_debug_file(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    made = compile_c(SOURCE, "-O1", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wl,--build-id")
    whole, bare, debug = (tmp_path / name for name in ("whole", "bare", "debug"))
    sframegen.add_section(made, output=whole, verify=False)
    subprocess.run([peers.tool("objcopy"), "--only-keep-debug", made, debug], check=True)
    subprocess.run([peers.tool("objcopy"), "--remove-section=.debug_*", whole, bare], check=True)
    alone, together = sframegen.check(bare), sframegen.check(bare, debug_file=debug)
    assert alone.code[Verdict.UNDESCRIBED] > together.code[Verdict.UNDESCRIBED]
    assert together.code == sframegen.check(whole).code
    assert together.code[Verdict.EQUAL] > alone.code[Verdict.EQUAL]


@pytest.mark.parametrize("name", ["bash", "libc", "arm64-libc", "s390x-libc", "libstdcxx", "libcrypto"])
def test_our_sections_of_real_files_are_good(corpus_file: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    ways: tuple[tuple[LevelName, FormatVersion], ...] = ("fast", 3), ("size", 2)
    for level, version in ways:
        file = tmp_path / level
        sframegen.add_section(corpus_file(name), output=file, verify=False, optimize=level, version=version)
        report = sframegen.check(file)
        assert [finding for finding in report.findings if finding.severity] == []
        assert (report.code[Verdict.WRONG], report.code[Verdict.ABSENT]) == (0, 0)
        assert report.code[Verdict.EQUAL] > 0


def test_rules_that_the_kernel_cannot_use_are_counted(compile_c: Compiler, tmp_path: Path) -> None:
    """CFA in memory after a stack was realigned; CFA from r10; outermost. Two bytes each, and no others."""
    parts = {"memory": ".cfi_escape 0x0f, 3, 0x76, 0x78, 6", "register": ".cfi_def_cfa 10, 0", "outermost": ".cfi_undefined 16"}
    source = "".join(f'__asm__("{name}: .cfi_startproc\\n {cfi}\\n nop\\n nop\\n .cfi_endproc");\n' for name, cfi in parts.items())
    file = compile_c(source, "-shared", "-nostdlib")
    sframegen.add_section(file, output=tmp_path / "file")
    report = sframegen.check(tmp_path / "file", consumer="kernel")
    expected = {"kernel-cfa-memory": 2, "kernel-register": 2, "kernel-outermost": 2, "kernel-fp-at-cfa": 0}
    assert report.unusable == expected
    assert report.to_json()["unusable"] == expected
    printed = CliRunner().invoke(cli, ["check", "-v", "--consumer", "kernel", str(tmp_path / "file")])
    assert printed.exit_code == 0
    assert re.findall(r"note: (kernel-\S+) \(0x\w+\): 2 bytes of code", printed.stdout) == list(expected)[:-1]
    assert sframegen.check(tmp_path / "file", consumer="glibc").unusable == {}

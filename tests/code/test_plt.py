"""The rows of PLTs, by three judges: the instructions, the CFI and the SFrame section that GNU ld writes for them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from shutil import which
from typing import NamedTuple

import pytest

from sframegen.base.errors import FormatError
from sframegen.code.context.plt import MAX_SECTION_SIZE, find_plt
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import SHF, SHT
from sframegen.format.abi import AARCH64, AMD64, Abi, abi_of
from sframegen.format.abi import S390X as S390X_ABI
from sframegen.format.locate import read_sframe
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.stack.names.file_names import FileNames
from tests.support.cross import ARM64, S390X
from tests.support.cross import Machine as ForeignMachine
from tests.support.inputs.linker_inputs import Writer
from tests.support.inputs.map_inputs import MAKERS
from tests.support.loops import for_each
from tests.support.oracles import cfi_text
from tests.support.oracles.files import elf_facts
from tests.support.oracles.rules import ABIS, by_byte
from tests.support.peers import Compiler, Peers

pytestmark = pytest.mark.once

# free has its address taken and is called: one entry of .plt.got; a thread's variable by descriptor: an entry of its own in .plt.
SOURCE = """
#include <stdlib.h>
#include <stdio.h>
extern __thread int of_another;
static __thread int own;
int use(int argc) {
    void (*volatile release)(void *) = free;
    release(malloc(argc));
    free(malloc(argc));
    puts("x");
#ifdef DESCRIPTORS
    own += of_another;
#endif
    return ++own;
}
#ifdef MAIN
int main(int argc, char **argv) { return use(argc); }
#endif
"""
LAZY, NOW, IBT = "-Wl,-z,lazy", "-Wl,-z,now", "-Wl,-z,ibtplt"
SHARED, PIE, NO_PIE, STATIC_PIE = "-shared", "-pie -DMAIN", "-no-pie -DMAIN", "-static-pie -DMAIN"
DESCRIPTORS = "-mtls-dialect=gnu2 -DDESCRIPTORS"


class Form(NamedTuple):
    flags: str
    sizes: dict[str, int]  # section -> bytes of an entry
    descriptor: bool = False


AMD64_FORMS = [
    *(Form(f"{kind} {bind}", {".plt": 16, ".plt.got": 8}) for kind in (PIE, SHARED) for bind in (LAZY, NOW)),
    *(Form(f"{kind} {bind} {IBT}", {".plt": 16, ".plt.got": 16, ".plt.sec": 16}) for kind in (PIE, SHARED) for bind in (LAZY, NOW)),
    *(Form(f"{NO_PIE} {bind}", {".plt": 16}) for bind in (LAZY, NOW)),
    Form(f"{NO_PIE} {LAZY} {IBT}", {".plt": 16, ".plt.sec": 16}),
    Form(f"{PIE} {LAZY} -fcf-protection=full", {".plt": 16, ".plt.got": 8}),
    Form(f"{STATIC_PIE} {LAZY}", {".plt": 16, ".plt.got": 8}),
    Form(f"{STATIC_PIE} {IBT}", {".plt": 16, ".plt.got": 16, ".plt.sec": 16}),
    Form(f"{SHARED} {LAZY} {DESCRIPTORS}", {".plt": 16, ".plt.got": 8}, descriptor=True),
    Form(f"{SHARED} {LAZY} {IBT} {DESCRIPTORS}", {".plt": 16, ".plt.got": 16, ".plt.sec": 16}, descriptor=True),
]
S390X_FORMS = [Form(f"{kind} {bind}", {".plt": 32}) for kind in (PIE, SHARED, NO_PIE) for bind in (LAZY, NOW)]
INSTRUCTION = re.compile(r" *([0-9a-f]+):\t[0-9a-f ]+\t(.+)")


class Machine(NamedTuple):
    objdump: str
    at_entry: int  # n of CFA = SP + n where a function is entered
    pushed: int  # by an entry of .plt before it jumps to the first one
    moves_sp: re.Pattern[str]
    step: int  # how far


MACHINES = {
    "AMD64": Machine("objdump", 8, 8, re.compile("push "), 8),
    "s390x": Machine("s390x-linux-gnu-objdump", 160, 0, re.compile(r"\w+\s+%r15\b"), -1),  # -1: would be wrong, and is not there
}


def ours(file: Path) -> FunctionTable:
    elf = open_elf(file)
    return find_plt(elf, abi_of(elf)).make_functions()


def offsets_from_sp(table: FunctionTable, where: set[int]) -> dict[int, int]:
    """Address of each byte that has a rule -> n of CFA = SP + n."""
    found = {}
    for number, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        kind = table.kinds[table.kind[number]]
        for at in sorted(where & set(range(start, start + size))):
            offset = (at - start) % kind.rep_size if kind.mask else at - start
            rule = next(rule for begin, rule in reversed(table.rows(number)) if begin <= offset)
            assert rule.cfa is not None
            found[at] = rule.cfa.offset
    return found


def sections(file: Path) -> dict[str, range]:
    """The PLT's: their addresses."""
    found = [section for section in open_elf(file).sections if section.name.startswith((".plt", ".iplt"))]
    return {section.name: range(section.header.sh_addr, section.header.sh_addr + section.header.sh_size) for section in found}


def by_instructions(machine: Machine, file: Path, form: Form, peers: Peers) -> dict[int, int]:
    """Address of each instruction of the PLT -> n of CFA = SP + n: what there is at an entry, and what was pushed since."""
    found = {}
    for name, places in sections(file).items():
        command = [peers.tool(machine.objdump), "-d", "-j", name, str(file)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        above = 0
        for match in filter(None, map(INSTRUCTION.match, text.splitlines())):
            address = int(match[1], 16)
            if (address - places.start) % form.sizes[name] == 0:
                above = machine.at_entry + (machine.pushed if name == ".plt" and address == places.start else 0)
            found[address] = above
            above += machine.step if machine.moves_sp.match(match[2]) else 0
    return found


def by_cfi(file: Path, peers: Peers, where: set[int]) -> dict[int, int]:
    """The same by GNU ld's .eh_frame, as GNU readelf prints it."""
    facts = elf_facts(file)
    cfi = cfi_text.read(peers.tool("readelf"), str(file), ABIS[facts.machine], facts.executable())
    rules = {at: cfi.rows.values[row].rule for at, row in by_byte(cfi.table).items() if at in where}
    return {at: int(rule.cfa.removeprefix("sp+")) for at, rule in rules.items() if rule}


class Judged(NamedTuple):
    """What is where, and the addresses of instructions for which the judges, and we, say what the instructions do not do."""

    places: dict[str, range]
    table: FunctionTable
    gnu: FunctionTable
    wrong: set[int]
    wrong_cfi: set[int]
    wrong_gnu: set[int]


def judge(machine: Machine, file: Path, form: Form, peers: Peers) -> Judged:
    places = sections(file)
    assert places.keys() == form.sizes.keys()
    truth = by_instructions(machine, file, form, peers)
    where = set(truth)
    table, gnu = ours(file), read_sframe(open_elf(file)).table
    said = (offsets_from_sp(table, where), by_cfi(file, peers, where), offsets_from_sp(gnu, where))
    assert said[0].keys() == said[1].keys() == where
    return Judged(places, table, gnu, *({at for at, n in rows.items() if n != truth[at]} for rows in said))


def functions(table: FunctionTable, places: dict[str, range], *names: str) -> dict[tuple[int, int], object]:
    """(address, size) -> kind and rows of each in those sections."""
    whole = zip(table.start, table.size, table.kind, strict=True)
    return {
        (start, size): (table.kinds[kind], table.rows(number))
        for number, (start, size, kind) in enumerate(whole)
        if any(start in places.get(name, ()) for name in names)
    }


@for_each("flags", [f"{SHARED} {LAZY}", f"{PIE} {NOW} {IBT}", f"{NO_PIE} {LAZY}"])
def test_names_of_entries(flags: str, peers: Peers, compile_c: Compiler) -> None:
    """As objdump has them: in a profile each entry is a function, not all of .plt one without a name."""
    file = compile_c(SOURCE, "-O1", "-fPIC", "-s", *flags.split())
    command = [peers.tool("objdump"), "-d", *(f"--section={name}" for name in sections(file)), str(file)]
    names, found, name = FileNames(open_elf(file)), {}, None
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if match := re.fullmatch(r"[0-9a-f]+ <(.+)>:", line):
            name = match[1] if match[1].endswith("@plt") else None
        elif match := INSTRUCTION.match(line):
            found[int(match[1], 16)] = name
    assert {"malloc@plt", "puts@plt"} <= {*found.values()}
    assert {at: names.at(at).name for at in found} == found


@for_each("form", AMD64_FORMS, ids=lambda form: form.flags)
def test_amd64(form: Form, peers: Peers, compile_c: Compiler) -> None:
    file = compile_c(SOURCE, "-O1", "-fPIC", "-Wa,--gsframe", *form.flags.split(), peer_binutils=True)
    found = judge(MACHINES["AMD64"], file, form, peers)
    assert found.wrong == set()
    # What GNU ld has wrong is in docs/merging.md.
    last = found.places[".plt"].stop - 16 if form.descriptor else 0
    assert found.wrong_cfi == ({last + 10} if form.descriptor and IBT not in form.flags else set())
    got = found.places.get(".plt.got", range(0))
    assert found.wrong_gnu - found.wrong_cfi == {at for at in found.wrong_gnu if at in got}
    assert set(got[:: form.sizes.get(".plt.got", 1)]) <= found.wrong_gnu

    names = (".plt", ".plt.sec")
    mine, gnu = functions(found.table, found.places, *names), functions(found.gnu, found.places, *names)
    if form.descriptor:  # GNU ld has it in the function of the entries before it
        assert mine.pop((last, 16)) == (Kind(), [(0, rule_of(8)), (10, rule_of(16))])
        (start, size), entries = next(item for item in gnu.items() if item[0][0] + item[0][1] == last + 16)
        assert mine.pop((start, size - 16)) == entries == gnu.pop((start, size))
    assert mine == gnu
    (mine_got, gnu_got) = (functions(table, found.places, ".plt.got") for table in (found.table, found.gnu))
    entry = Kind(rep_size=form.sizes.get(".plt.got", 0), mask=True)
    assert gnu_got == {place: (entry, [(0, rule_of(16))]) for place in mine_got}
    assert mine_got == {place: (entry, [(0, rule_of(8))]) for place in mine_got}


def rule_of(above_sp: int) -> Rule:
    return Rule(Where(AMD64.sp, above_sp), Where(None, -8, deref=True))


def linked(machine: ForeignMachine, linker: str, peers: Peers, directory: Path, *flags: str) -> Path:
    """SOURCE for another machine, by the linker of the cross tools where none is named, and with the peers' assembler."""
    (directory / "as").symlink_to(peers.tool(f"{machine.prefix}as"))
    if linker:
        program = which("mold") if linker == "mold" else peers.tool({"GNU": f"{machine.prefix}ld", "lld": "ld.lld"}[linker])
        if program is None:
            pytest.skip("no mold on this machine")
        (directory / "ld").symlink_to(program)
    return machine.compiler(peers, directory)(SOURCE, "-B", f"{directory}/", "-O1", "-fPIC", *flags)


@for_each("form", S390X_FORMS, ids=lambda form: form.flags)
def test_s390x(form: Form, peers: Peers, tmp_path: Path) -> None:
    file = linked(S390X, "GNU", peers, tmp_path, "-Wa,--gsframe", *form.flags.split())
    found = judge(MACHINES["s390x"], file, form, peers)
    assert found.wrong == found.wrong_cfi == found.wrong_gnu == set()
    assert {(rule.ra, rule.fp) for rule in found.table.rules} == {(None, None)}
    mine, gnu = functions(found.table, found.places, ".plt"), functions(found.gnu, found.places, ".plt")
    assert len(mine) == 2
    assert gnu == (mine if NO_PIE in form.flags else {})  # the others: docs/merging.md


@for_each("flags", [SHARED, "-static -DMAIN"])
@pytest.mark.parametrize("linker", ["lld", "mold"])
def test_s390x_by_other_linkers(linker: str, flags: str, peers: Peers, tmp_path: Path) -> None:
    """No entry of theirs changes SP or RA, either."""
    file = linked(S390X, linker, peers, tmp_path, *flags.split())
    places = sections(file)
    truth = by_instructions(MACHINES["s390x"], file, Form("", dict.fromkeys(places, 1 << 30)), peers)
    assert set(truth.values()) == {160}
    table = ours(file)
    assert offsets_from_sp(table, set(truth)) == truth
    assert {(rule.ra, rule.fp) for rule in table.rules} == {(None, None)}


@for_each("flags", [f"-static {LAZY} -DMAIN", f"-static {IBT} -DMAIN"])
def test_static_programs_get_some_unlike_by_gnu_ld(flags: str, compile_c: Compiler, peers: Peers) -> None:
    """Their .plt has entries of the C library's, for functions chosen at start, without CFI."""
    file = compile_c(SOURCE, "-O1", "-Wa,--gsframe", *flags.split(), peer_binutils=True)
    places = sections(file)
    assert functions(read_sframe(open_elf(file)).table, places, *places) == {}
    sizes = dict.fromkeys(places, 16 if IBT in flags else 8)
    truth = by_instructions(MACHINES["AMD64"], file, Form("", sizes), peers)
    second = places[".plt"].start + sizes[".plt"]  # the first is like the others
    truth = {at: n - 8 * (at < second) for at, n in truth.items()}
    assert offsets_from_sp(ours(file), set(truth)) == truth


@pytest.mark.parametrize(
    ("linker", "flags"),
    [
        ("GNU", f"{PIE} {LAZY}"),
        ("GNU", f"{PIE} {IBT}"),
        ("lld", f"{PIE} {LAZY}"),
        ("lld", f"{PIE} -fcf-protection=full -Wl,-z,force-ibt"),
        ("lld", "-static -DMAIN"),
        ("gold", f"{PIE} {LAZY}"),
        ("gold", "-static -DMAIN"),
        ("mold", f"{PIE} {LAZY}"),
        ("mold", "-static -DMAIN"),
    ],
)
def test_other_linkers(linker: str, flags: str, peers: Peers, compile_c: Compiler) -> None:
    (maker,) = (maker for maker in MAKERS if maker.name == linker)
    file = compile_c(SOURCE, "-O1", "-fPIC", *maker.flags(peers), *flags.split())
    sizes = {section.name: section.header.sh_entsize or 16 for section in open_elf(file).sections}
    truth = by_instructions(MACHINES["AMD64"], file, Form("", sizes), peers)
    if linker == "mold" and ".plt" in sections(file):  # what its first entry pushes, no entry has pushed before it
        first = sections(file)[".plt"].start
        truth = {at: n - 8 * (at < first + 32) for at, n in truth.items()}
    found = offsets_from_sp(ours(file), set(truth))
    assert found == {at: truth[at] for at in found}
    covered = {at for start, size in zip(ours(file).start, ours(file).size, strict=True) for at in range(start, start + size)}
    assert covered == {at for places in sections(file).values() for at in places}


BTI, PAC = "-Wl,-z,force-bti", "-Wl,-z,pac-plt"
DESCRIPTORS_AARCH64 = "-mtls-dialect=desc -DDESCRIPTORS"
GOT_AT = "-Wl,-z,norelro -Wl,--section-start=.got.plt="  # what an entry adds to a page's address is 0 for one that begins there


@pytest.mark.parametrize(
    ("linker", "flags"),
    [
        *(("", f"{kind} {more}") for kind in (SHARED, "-static-pie -DMAIN") for more in ("", BTI, PAC)),
        ("", f"{SHARED} {DESCRIPTORS_AARCH64}"),
        *(("GNU", f"{SHARED} {LAZY} {GOT_AT}{place:#x} {more}") for place, more in (
            (0x20000, DESCRIPTORS_AARCH64), (0x1FFE8, BTI), (0x1FFE8, PAC), (0x1FFF0, ""), (0x1FFF0, f"{BTI} {PAC}"),
        )),
        *((linker, flags) for linker in ("lld", "mold") for flags in (SHARED, f"{PIE} {BTI} {PAC}")),
    ],
)  # fmt: skip
def test_aarch64(linker: str, flags: str, peers: Peers, tmp_path: Path) -> None:
    """RA stays in x30 in all of a PLT, and SP moves by 16 in the first entry and in that for descriptors."""
    file = linked(ARM64, linker, peers, tmp_path, *flags.split())
    assert abi_of(open_elf(file)) == AARCH64
    text = subprocess.run([peers.tool("aarch64-linux-gnu-objdump"), "-d", "-j", ".plt", str(file)], check=True, capture_output=True)
    truth, above = {}, 0
    for match in filter(None, map(INSTRUCTION.match, text.stdout.decode().splitlines())):
        truth[int(match[1], 16)] = above
        above = 16 if "stp\t" in match[2] else 0 if "br\t" in match[2] else above
    table = ours(file)
    assert offsets_from_sp(table, set(truth)) == truth
    assert {(rule.ra, rule.fp) for rule in table.rules} == {(None, None)}


FIRST = bytes.fromhex("ff3511111111 ff2522222222 0f1f4000")
LAZY_ENTRY = bytes.fromhex("ff2511111111 6800000000 e900000000")
DIRECT = bytes.fromhex("ff2511111111 6690")
TRAP, THUNK = "f390 0fae e8 ebf9", f"4c891c24 c3 {'cc' * 11}"
RETPOLINES = bytes.fromhex(f"ff3511111111 4c8b1d22222222 e80e000000 {TRAP} {'cc' * 7} {THUNK}")
RETPOLINE_ENTRY = bytes.fromhex(f"4c8b1d11111111 e800000000 e900000000 6800000000 e900000000 {'cc' * 5}")
RETPOLINES_NOW = bytes.fromhex(f"e80b000000 {TRAP} cccccccc {THUNK}")
RETPOLINE_NOW_ENTRY = bytes.fromhex("4c8b1d11111111 e900000000 cccccccc")


def file_with(name: str, code: bytes, address: int = 0x1000, flags: int = SHF.ALLOC | SHF.EXECINSTR) -> ElfFile:
    writer = Writer("little", 0)
    writer.put(name, SHT.PROGBITS, flags, code)
    writer.headers[name] = writer.headers[name]._replace(sh_addr=address)
    return ElfFile(memoryview(writer.finish([])))


@for_each(
    ("name", "code", "functions"),
    [
        (".plt", FIRST + 3 * LAZY_ENTRY, [(0x1000, 16), (0x1010, 48)]),
        (".plt", FIRST, [(0x1000, 16)]),
        (".plt", FIRST + LAZY_ENTRY + b"\x55" + LAZY_ENTRY, [(0x1000, 16), (0x1010, 16)]),  # nothing is said of what is not known
        (".plt", FIRST + LAZY_ENTRY + DIRECT + LAZY_ENTRY, [(0x1000, 16), (0x1010, 16), (0x1020, 8), (0x1028, 16)]),
        (
            ".plt",
            FIRST + bytes(16) + LAZY_ENTRY + bytes(16) + LAZY_ENTRY,
            [(0x1000, 16), (0x1010, 64)],
        ),  # entries that nothing uses
        (".plt", FIRST + bytes(32), [(0x1000, 16)]),
        (".plt.got", bytes(8), []),
        (".plt", FIRST + LAZY_ENTRY[:-1], [(0x1000, 16)]),
        (".plt", LAZY_ENTRY, [(0x1000, 16)]),
        (".plt", FIRST + LAZY_ENTRY[:6] + LAZY_ENTRY, [(0x1000, 16)]),
        (".plt", bytes.fromhex("5541") + LAZY_ENTRY, []),
        (".plt", bytes.fromhex("c3") * 64, []),
        (".iplt", 2 * DIRECT + LAZY_ENTRY, [(0x1000, 16), (0x1010, 16)]),
        (".plt.got", 2 * DIRECT, [(0x1000, 16)]),
        (".plt", RETPOLINES + 2 * RETPOLINE_ENTRY, [(0x1000, 32), (0x1030, 64)]),
        (".plt", RETPOLINES_NOW + 2 * RETPOLINE_NOW_ENTRY, [(0x1000, 32), (0x1020, 32)]),
        (".iplt", 2 * RETPOLINE_ENTRY, [(0x1000, 64)]),
        (".plt", RETPOLINES[:-1], [(0x1000, 32)]),
        (".plt", RETPOLINES[32:] + RETPOLINE_ENTRY, [(0x1010, 32)]),
        (".text", FIRST + LAZY_ENTRY, []),
        (".plt", b"", []),
    ],
)
def test_only_code_that_is_known_has_rows(name: str, code: bytes, functions: list[tuple[int, int]]) -> None:
    table = find_plt(file_with(name, code), AMD64).make_functions()
    assert list(zip(table.start, table.size, strict=True)) == functions


# What mold 3.0 wrote, of which no package is at hand everywhere: the first entry of .plt and the second, and one of .plt.got.
MOLD_3 = (
    (
        AMD64,
        f"f30f1efa 4153 ff35ec230000 ff25ee230000 {'cc' * 14}",
        "41bb00000000 ff25dc230000 cccccccc",
        "ff2592130000 cccc",
        [(0, 8), (6, 16), (12, 24), (32, 8)],
    ),
    (
        AARCH64,
        f"f07bbfa9 10010090 118a45f9 10422c91 20021fd6 {'007d20d4' * 3}",
        "10010090 118e45f9 10622c91 20021fd6",
        "90000090 117645f9 20021fd6 007d20d4",
        [(0, 0), (4, 16), (20, 0)],
    ),
    (
        S390X_ABI,
        "b9090001 a70bffc2 eb100001000c b9080001 e300f0380024 c01000001230 d207f0301008 e31010100004 07f1 00000000",
        "c01000001230 e31010000004 0d01 0000",
        "c010000009f8 e31010000004 07f1 0000",
        [(0, 160)],
    ),
)


@for_each(("abi", "first", "entry", "direct", "steps"), MOLD_3, ids=[form[0].name for form in MOLD_3])
def test_mold_3(abi: Abi, first: str, entry: str, direct: str, steps: list[tuple[int, int]]) -> None:
    code = bytes.fromhex(first + 3 * entry)
    table = find_plt(file_with(".plt", code), abi).make_functions()
    expected = {0x1000 + at: next(n for offset, n in reversed(steps) if offset <= at) for at in range(len(code))}
    assert offsets_from_sp(table, set(expected)) == expected
    code = bytes.fromhex(2 * direct)
    table = find_plt(file_with(".plt.got", code), abi).make_functions()
    expected = dict.fromkeys(range(0x1000, 0x1000 + len(code)), steps[-1][1])
    assert offsets_from_sp(table, set(expected)) == expected


def test_sections_that_are_not_what_they_are_called() -> None:
    code = FIRST + LAZY_ENTRY
    assert len(find_plt(file_with(".plt", code, flags=SHF.ALLOC), AMD64).make_functions()) == 0
    assert len(find_plt(file_with(".plt", code, address=(1 << 64) - len(code)), AMD64).make_functions()) == 2
    with pytest.raises(FormatError, match=r"\.plt: 0x400001 bytes at address 0x1000: no PLT"):
        find_plt(file_with(".plt", bytes(MAX_SECTION_SIZE + 1)), AMD64).make_functions()
    with pytest.raises(FormatError, match=r"\.plt: 0x20 bytes at address 0xfffffffffffffff0: no PLT"):
        find_plt(file_with(".plt", code, address=(1 << 64) - 16), AMD64).make_functions()


def test_what_is_asked_for_is_whole_stubs() -> None:
    elf = file_with(".plt", FIRST + 4 * LAZY_ENTRY)
    for within, functions in [
        ([], []),
        ([(0x1001, 0x1050)], [(0x1010, 64)]),
        ([(0x1000, 0x101F), (0x1021, 0x1040), (0x1041, 0x1050)], [(0x1000, 16), (0x1030, 16)]),
        ([(0x1010, 0x1020), (0x1040, 0x2000)], [(0x1010, 16), (0x1040, 16)]),
    ]:
        table = find_plt(elf, AMD64).make_functions(within)
        assert list(zip(table.start, table.size, strict=True)) == functions

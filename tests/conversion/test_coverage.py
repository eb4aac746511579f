from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert
from sframegen.conversion.coverage import CATEGORIES, CategoryBytes, Coverage
from sframegen.elf.code_bytes.padding import FAIL, padding_states
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import EM, PT, SHT, Phdr
from sframegen.format.abi import AMD64, abi_of
from sframegen.format.words import Reason
from tests import ROOT
from tests.support.inputs.cfi_writer import Frames
from tests.support.inputs.linker_inputs import Writer, without_sections
from tests.support.loops import for_each

SIZE = 96
NO_FATES: CategoryBytes = {"covered": {"default": 0, "flex": 0, "outermost": 0, "signal": 0}, "left_out": {}}
IGNORED = "described only by FDEs that are ignored"
AFTER_CALL = "padding after a final call"


def total(fates: CategoryBytes) -> int:
    return sum(count for counts in fates.values() for count in counts.values())


def coverage_of(elf: ElfFile) -> Coverage:
    return convert(find_sources(elf).sections, elf.executable_ranges(), abi_of(elf)).coverage


# -- small files, byte by byte


class Text(NamedTuple):
    """An executable segment of that content; only `sections` of it ((start, end) in it) are sections of code."""

    content: bytes
    sections: tuple[tuple[int, int], ...] | None = None  # None: no section headers at all

    def elf(self) -> tuple[ElfFile, int]:
        """The file, and the address of its first byte of code."""
        writer = Writer("little", 1)
        base = writer.put(".all", SHT.PROGBITS, 2, self.content, 0x100).sh_addr
        for number, (start, end) in enumerate(self.sections or ()):
            header = writer.headers[".all"]._replace(sh_flags=6, sh_addr=base + start, sh_offset=base + start, sh_size=end - start)
            writer.headers[f".text.{number}"] = header
        size = len(self.content)
        data = writer.finish([Phdr(PT.LOAD, 5, base, base, base, size, size, 0x100)])
        return ElfFile(memoryview(data if self.sections is not None else without_sections(data))), base


class Fde(NamedTuple):
    start: int  # in the segment
    size: int
    kind: str


# Whole FDEs of one row, and what becomes of it.
KINDS = {
    "default": b"",
    "flex": b"\x0c\x0a\x00",  # CFA = r10 + 0
    "outermost": b"\x07\x10",  # the return address is undefined
    "signal": b"",
    Reason.FP_UNDEFINED.value: b"\x07\x06",
    Reason.UNREADABLE.value: b"\x0b",  # restores a state that none remembered
}
# Those whose bytes a no-op is made of, and those that begin none.
NO_OP = re.compile(
    rb"(?:\x00|\xcc|[\x66\x2e]*(?:\x90|\x0f\x1f\x00|\x0f\x1f\x40\x00|\x0f\x1f\x44\0\0|\x0f\x1f\x80\0{4}|\x0f\x1f\x84\0{5}))*",
    re.DOTALL,
)
CUT_NO_OP = re.compile(rb"[\x66\x2e]+\Z|[\x66\x2e]*\x0f(?:\x1f(?:\x40|\x44\0?|\x80\0{0,3}|\x84\0{0,4})?)?\Z", re.DOTALL)
CALL = re.compile(rb"(?:\xff\xd0|\xe8\0{4})\Z")  # of those forms that TOKENS make
TOKENS = (
    b"\x00", b"\xcc", b"\x90", b"\x66\x90", b"\x0f\x1f\x40\x00", b"\x66\x2e\x0f\x1f\x84\0\0\0\0\0", b"\xc3", b"\x55", b"\x66",
    b"\xff\xd0", b"\xe8\0\0\0\0",
)  # fmt: skip


def no_op_bytes(gap: bytes) -> int:
    match = NO_OP.match(gap)
    assert match is not None
    return len(gap) if CUT_NO_OP.match(gap, match.end()) else match.end()


def fates_of(text: Text, fdes: list[Fde]) -> tuple[CategoryBytes, Coverage]:
    elf, base = text.elf()
    frames = Frames()
    cies = {False: frames.cie(augmentation="zR", data=b"\0"), True: frames.cie(augmentation="zRS", data=b"\0")}
    for fde in fdes:
        frames.plain_fde(cies[fde.kind == "signal"], base + fde.start, fde.size, KINDS[fde.kind])
    coverage = convert([frames.section()], elf.executable_ranges(), AMD64).coverage
    return coverage.bytes_by_category(elf), coverage


def by_byte(text: Text, fdes: list[Fde]) -> CategoryBytes:
    """The same by the definition: each byte's fate alone."""
    fits = [fde for fde in fdes if fde.size and fde.start + fde.size <= SIZE]
    first = {fde.start: fde for fde in reversed(fits)}
    starts = sorted(first)
    owner: dict[int, str] = {}
    calls = set()  # where a covered function ends with a call
    for start, following in pairwise([*starts, SIZE]):
        end = min(start + first[start].size, following)
        owner |= dict.fromkeys(range(start, end), first[start].kind)
        if first[start].kind in NO_FATES["covered"] and CALL.search(text.content[start:end]):
            calls.add(end)
    described = {at for fde in fdes for at in range(fde.start, fde.start + fde.size)}

    def fate(at: int) -> tuple[str, str]:
        if at in owner:
            return ("covered" if owner[at] in NO_FATES["covered"] else "left_out"), owner[at]
        if at in described:
            return "left_out", IGNORED
        inside = not text.sections or any(start <= at < end for start, end in text.sections)
        return "no_cfi", "code" if inside else "not code"

    found = [fate(at) for at in range(SIZE)]
    borders = {0, SIZE, *(at for section in text.sections or () for at in section)}
    borders |= {at for at in range(1, SIZE) if found[at] != found[at - 1]}
    for start, end in pairwise(sorted(borders)):
        if found[start] == ("no_cfi", "code"):
            padded = no_op_bytes(text.content[start:end])
            is_after_call = start in calls and padded == end - start
            found[start : start + padded] = [("no_cfi", AFTER_CALL if is_after_call else "padding")] * padded
    fates: CategoryBytes = {
        "covered": dict(NO_FATES["covered"]),
        "left_out": {},
        "no_cfi": {"padding": 0, AFTER_CALL: 0, "code": 0, "not code": 0},
    }
    for group, name in found:
        fates[group][name] = fates[group].get(name, 0) + 1
    return fates


contents = st.lists(st.sampled_from(TOKENS), min_size=SIZE, max_size=SIZE).map(lambda tokens: b"".join(tokens)[:SIZE])
cuts = st.lists(st.integers(0, SIZE), max_size=4, unique=True).map(lambda at: tuple(zip(*[iter(sorted(at))] * 2, strict=False)))
fde_lists = st.lists(st.builds(Fde, st.integers(0, SIZE - 1), st.integers(0, 24), st.sampled_from(list(KINDS))), max_size=8)


@given(st.builds(Text, contents, st.none() | cuts), fde_lists)
def test_every_byte_has_the_fate_that_the_definition_gives_it(text: Text, fdes: list[Fde]) -> None:
    fates, coverage = fates_of(text, fdes)
    assert fates == by_byte(text, fdes)
    assert total(fates) == SIZE
    assert sum(fates["covered"].values()) == coverage.covered_bytes


def test_what_an_ignored_fde_of_debug_frame_alone_describes() -> None:
    elf, base = Text(bytes(SIZE)).elf()
    eh, debug = Frames(), Frames(eh=False)
    eh.plain_fde(eh.cie(), base, 16)
    cie = debug.cie()
    debug.plain_fde(cie, base, 48)
    debug.plain_fde(cie, base, 64)
    coverage = convert([eh.section(), debug.section()], elf.executable_ranges(), AMD64).coverage
    fates = coverage.bytes_by_category(elf)
    assert fates["covered"]["default"] == 48
    assert fates["left_out"] == {IGNORED: 16}
    assert fates["no_cfi"] == {"padding": SIZE - 64, AFTER_CALL: 0, "code": 0, "not code": 0}


@for_each(
    ("augmentation", "fates"),
    [
        ("zR", {"default": 0, "flex": 16, "outermost": 8, "signal": 0}),
        ("zRS", {"default": 0, "flex": 0, "outermost": 0, "signal": 24}),
    ],
)
def test_a_signal_frame_outranks_what_its_rows_are(augmentation: str, fates: dict[str, int]) -> None:
    elf, base = Text(bytes(SIZE)).elf()
    frames = Frames()
    program = b"\x48" + KINDS["flex"] + b"\x48" + KINDS["outermost"]
    frames.plain_fde(frames.cie(augmentation=augmentation, data=b"\0"), base, 24, program)
    coverage = convert([frames.section()], elf.executable_ranges(), AMD64).coverage
    assert coverage.bytes_by_category(elf)["covered"] == fates


@for_each(
    ("second", "message"),
    [
        ({"p_vaddr": 0x150}, "executable segments overlap at 0x150"),
        ({"p_vaddr": 0x800, "p_filesz": 0x10000}, "PT_LOAD: 65536 bytes at file offset 0x100 reach past the end of the file"),
    ],
)
def test_segments_that_no_program_has(second: dict[str, int], message: str) -> None:
    writer = Writer("little", 2)
    writer.put(".text", SHT.PROGBITS, 6, bytes(SIZE), 0x100)
    load = Phdr(PT.LOAD, 5, 0x100, 0x100, 0x100, SIZE, SIZE, 0x100)
    elf = ElfFile(memoryview(writer.finish([load, load._replace(**second)])))
    with pytest.raises(FormatError, match=message):
        coverage_of(elf).bytes_by_category(elf)


# -- padding


@for_each(
    ("machine", "fill", "padding"),
    [
        (EM.X86_64, "90", 1),
        (EM.X86_64, "6690 666690 cc 00", 7),
        (EM.X86_64, "0f1f00 0f1f4000 0f1f440000 660f1f440000 0f1f8000000000 0f1f840000000000", 33),
        (EM.X86_64, "66666666662e0f1f840000000000 90", 15),
        (EM.X86_64, "90 c3 90", 1),
        (EM.X86_64, "0f0b", 0),  # a trap that ends a function
        (EM.X86_64, "660000", 0),  # add %al,(%rax)
        (EM.X86_64, "0f1f4001", 0),
        (EM.X86_64, "f30f1efa", 0),  # endbr64: code
        (EM.AARCH64, "1f2003d5 00000000 1f2003d5", 12),
        (EM.AARCH64, "00040014 1f2003d5", 0),  # a branch, whose first byte is zero
        (EM.AARCH64, "1f2003d5 5f2403d5", 4),  # bti c
        (EM.S390, "0700 0707 070f 47000000 a7040000 c00400000000 0000", 22),
        (EM.S390, "07fe 0707", 0),  # br %r14
        (EM.S390, "0707 c0f400000010", 2),
    ],
)
def test_padding_by_machine(machine: int, fill: str, padding: int) -> None:
    states, state, padded = padding_states(machine), 0, 0
    for number, byte in enumerate(bytes.fromhex(fill), 1):
        state = states[state << 8 | byte]
        if state == FAIL:
            break
        padded = number if state == 0 else padded
    assert padded == padding


# -- whole files


def check(elf: ElfFile) -> CategoryBytes:
    coverage = coverage_of(elf)
    fates = coverage.bytes_by_category(elf)
    assert total(fates) == sum(end - start for start, end in elf.executable_ranges())
    assert sum(fates["covered"].values()) == coverage.covered_bytes
    assert sum(fates["covered"].values()) + sum(coverage.left_out.values()) == coverage.code_bytes
    return fates


@pytest.mark.parametrize(
    "name",
    [
        "bash", "libc", "libstdcxx", "arm64-libc", "arm64-bash", "s390x-libc", "s390x-bash",
        *(pytest.param(large, marks=pytest.mark.once) for large in ("libcrypto", "libLLVM", "libxul")),
    ],
)  # fmt: skip
def test_real_files(corpus_file: Callable[[str], Path], name: str) -> None:
    fates = check(open_elf(corpus_file(name)))
    assert fates["no_cfi"]["padding"] > 0
    assert fates["no_cfi"]["code"] < total(fates) / 40


def test_the_end_of_a_no_op_that_reaches_into_a_function(corpus_file: Callable[[str], Path]) -> None:
    """glibc's __restore_rt is described from the last byte of the no-op before it on."""
    elf = open_elf(corpus_file("libc"))
    fates = check(elf)
    assert fates["no_cfi"]["code"] == 20  # two system calls of ten bytes
    assert fates["covered"]["signal"] == 10


# -- the page


def test_docs_name_every_reason_and_fate() -> None:
    page = (ROOT / "docs" / "coverage.md").read_text()
    table = page.partition("| reason | example |\n| --- | --- |\n")[2].partition("\n\n")[0]
    reasons = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    assert reasons == [reason.value for reason in Reason]
    fates = page.partition("| group in `fates` |")[2].partition("\n\n")[0]
    assert [name for _, name in CATEGORIES if name not in reasons and f"`{name}`" not in fates] == []

"""Every rule of the specification: a small damage is found under its name, sound sections have no finding, nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen import add_section, check
from sframegen.base.errors import FormatError
from sframegen.checks.finding import Severity, Verdict
from sframegen.checks.placement import check_placement
from sframegen.checks.specification import wellformed
from sframegen.checks.specification.rule_list import FILE, MAX_PER_RULE, RULES
from sframegen.checks.specification.wellformed import examine_section
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PT, RECORDS, SHF, SHT, Phdr, Shdr
from sframegen.format.decode import decode
from sframegen.format.locate import find_sframe
from tests.checks.readers.mutate import bases, mutant
from tests.checks.section_damage import BESIDES, DAMAGES, PLACES, SHIFTED, Editor, base_named, damaged, judge
from tests.support import producers
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.producers import AARCH64, AARCH64_BE, C_FLAGS, X86_64, Producer

BASES = {base.name: base for base in bases()}


def cases() -> list[tuple[str, str]]:
    """(base, rule) of versions 2 and 3; version 1 differs from 2 in nothing that is damaged here."""
    return [(f"AMD64 V{version}", rule) for rule in DAMAGES for version in (2, 3) if version in RULES[rule].versions]


@for_each(("name", "rule"), cases())
def test_damage_is_found_by_its_name(name: str, rule: str) -> None:
    base = base_named(name)
    facts = judge(damaged(base, rule), base)
    assert rule in facts.counts
    if rule not in SHIFTED:
        assert set(facts.counts) - {rule} <= BESIDES.get(rule, set())
    found = [finding for finding in facts.findings if finding.rule == rule]
    assert {finding.severity for finding in found} == {RULES[rule].severity}
    version_2, version_3, address = PLACES[rule]
    assert (found[0].offset, found[0].address) == (version_2 if base.data[2] == 2 else version_3, address)


def test_every_rule_is_broken_here() -> None:
    assert set(DAMAGES) | {"many-rules"} == set(RULES) - {rule.name for rule in FILE}


@for_each("name", BASES)
def test_sound_sections_have_no_finding(name: str) -> None:
    base = BASES[name]
    assert judge(base.data, base).findings == []


PROGRAM = """
int puts(const char *); int rand(void);
__attribute__((noinline)) int leaf(int n) { volatile char b[n]; b[0] = n; return b[0]; }
int twice(int n) { return leaf(n) + leaf(n + 1); }
int main(int n, char **v) { for (int i = 0; i < n; i++) puts(v[i]); return twice(n) + rand(); }
"""


def findings_of(file: Path) -> dict[str, int]:
    """How often each rule is broken in a file and by its section."""
    elf = open_elf(file)
    data, address = find_sframe(elf) or (memoryview(b""), 0)
    facts = examine_section(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    return facts.counts | {finding.rule: 1 for finding in check_placement(elf)}


# What other producers do against the specification, each a true finding:
# where there is a PLT, GNU ld makes PT_GNU_SFRAME longer than the section, so that it covers what follows as well; the INC function
# of the first PLT entry has the period of the others in 2.44; lld knows no PT_GNU_SFRAME.
FAULTS = {
    ("GNU 2.40", "program"): {"segment-size", "trailing-bytes"},
    ("GNU 2.44", "program"): {"segment-size", "trailing-bytes", "period-without-mask"},
    ("GNU 2.47", "program"): {"segment-size"},
    ("LLVM", "program"): {"no-segment"},
    ("LLVM", "rows"): {"no-segment"},
}


@pytest.mark.parametrize("producer", X86_64, ids=lambda producer: producer.name)
@for_each("flags", C_FLAGS)
def test_programs_of_other_producers_have_only_their_faults(
    producer: Producer, flags: str, compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    source = compile_c(producers.PROGRAM, "-S", "-fPIC", *C_FLAGS[flags], name="program.s").read_text()
    file = producer.link(source, tmp_path / "lib.so", peers)
    assert set(findings_of(file)) <= FAULTS[producer.name, "program"]


@pytest.mark.parametrize(
    ("producer", "source"),
    [(producer, producers.ROWS_X86_64) for producer in X86_64]
    + [(producer, producers.ROWS_AARCH64) for producer in (*AARCH64, *AARCH64_BE)],
    ids=lambda value: value.name + "".join(value.assembler[-1:]) if hasattr(value, "name") else "",
)
def test_rows_of_other_producers_have_only_their_faults_and_are_true(
    producer: Producer, source: str, peers: Peers, tmp_path: Path
) -> None:
    file = producer.link(source, tmp_path / "lib.so", peers)
    assert set(findings_of(file)) == FAULTS.get((producer.name, "rows"), set())
    report = check(file)
    assert [finding.message for finding in report.findings if finding.rule.startswith("cfi")] == []
    assert report.code[Verdict.EQUAL] == sum(report.code.values()) - report.code[Verdict.SILENT]


# -- hostile sections


@for_each("name", BASES)
def test_what_cannot_be_decoded_has_an_error(name: str) -> None:
    base, random = BASES[name], Random(name)
    for _ in range(100):
        data = mutant(random, base)
        findings = judge(data, base).findings
        try:
            decode(data, base.address)
        except FormatError:
            assert max(finding.severity for finding in findings) == Severity.ERROR


@given(st.binary(max_size=200), st.sampled_from([1, 2, 3]), st.sampled_from(["little", "big"]))
def test_any_bytes_are_judged(data: bytes, version: int, order: str) -> None:
    magic = (0xDEE2).to_bytes(2, "little" if order == "little" else "big")
    assert examine_section(magic + bytes([version]) + data, 0x1000, executable=[]).findings or len(data) > 24


@for_each("size", range(0, 361, 7))
def test_every_cut_is_noticed(size: int) -> None:
    base = base_named("AMD64 V3")
    assert examine_section(base.data[: min(size, len(base.data) - 1)], base.address).findings


def test_many_faults_are_counted_and_few_kept() -> None:
    editor = Editor(base_named("AMD64 V3"))
    count = 5000
    entry = bytes(editor.data[28:44])
    editor.data[28:172] = entry * count
    editor.set_header(num_fdes=count, freoff=16 * count, flags=1)
    facts = examine_section(bytes(editor.data), 0, executable=[(0, 1)])
    assert facts.counts["same-start"] == count - 1
    kept = [finding.message for finding in facts.findings if finding.rule == "same-start"]
    assert len(kept) == MAX_PER_RULE + 1
    assert kept[-1].startswith(f"{count - 1 - MAX_PER_RULE} more")


def test_functions_that_share_a_large_block_are_quick() -> None:
    """A block of 60,000 FREs that 4,000 functions claim is read once: 240 million FREs would take minutes."""
    editor = Editor(base_named("AMD64 V3"))
    functions, rows = 4000, 60_000
    index = b"".join(
        (0x1000_0000 * n - 16 * n).to_bytes(8, "little") + (0x1000_0000).to_bytes(4, "little") + bytes(4) for n in range(functions)
    )
    block = rows.to_bytes(2, "little") + bytes([2, 0, 0]) + b"".join(row.to_bytes(4, "little") + b"\3\10" for row in range(rows))
    editor.set_header(num_fdes=functions, num_fres=rows, freoff=len(index), fre_len=len(block))
    assert examine_section(bytes(editor.data[:28]) + index + block, 0).findings == []


def test_more_rules_than_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wellformed, "MAX_RULES", 4)
    base = base_named("AMD64 V3")
    assert set(judge(base.data, base).counts) == {"many-rules"}


def test_unknown_code_is_not_judged() -> None:
    base = base_named("AMD64 V3")
    assert examine_section(base.data, base.address + 0x10000000).findings == []
    assert {finding.rule for finding in examine_section(base.data, base.address, executable=[]).findings} == {"start-outside-code"}


def test_an_index_without_order_is_judged_in_order() -> None:
    base = base_named("AMD64 V3")
    editor = Editor(base)
    one, two = editor.entry(0), editor.entry(1)
    editor.data[one : one + 16], editor.data[two : two + 16] = editor.data[two : two + 16], editor.data[one : one + 16]
    editor.start(0, 16)
    editor.start(1, -16)
    assert set(judge(bytes(editor.data), base).counts) == {"start-order"}
    editor.set_header(flags=4)
    assert judge(bytes(editor.data), base).findings == []


# -- in a file


def set_segment(kind: int, **fields: int) -> Callable[[bytearray, ElfFile], None]:
    """Changes the segments of that kind; a field's value is added."""

    def change(data: bytearray, elf: ElfFile) -> None:
        holder = next(segment for segment in elf.segments if segment.p_type == PT.GNU_SFRAME)
        for number, segment in enumerate(elf.segments):
            if segment.p_type == kind and segment.p_vaddr <= holder.p_vaddr < segment.p_vaddr + segment.p_memsz:
                new = segment._replace(**{name: getattr(segment, name) + value for name, value in fields.items()})
                RECORDS[Phdr, elf.byte_order].pack_into(data, elf.header.e_phoff + number * 56, *new)

    return change


def set_section(**fields: int) -> Callable[[bytearray, ElfFile], None]:
    def change(data: bytearray, elf: ElfFile) -> None:
        section = next(section for section in elf.sections if section.name == ".sframe")
        new = section.header._replace(**fields)
        RECORDS[Shdr, elf.byte_order].pack_into(data, elf.header.e_shoff + section.number * 64, *new)

    return change


def not_loaded(data: bytearray, elf: ElfFile) -> None:
    set_segment(PT.GNU_SFRAME, p_filesz=-next(s.header.sh_size for s in elf.sections if s.name == ".sframe"))(data, elf)
    set_section(sh_flags=0)(data, elf)


def another_segment(data: bytearray, elf: ElfFile) -> None:
    segment = next(segment for segment in elf.segments if segment.p_type == PT.GNU_SFRAME)
    RECORDS[Phdr, elf.byte_order].pack_into(data, elf.header.e_phoff, *segment)  # in the place of PT_PHDR


def read_only_loads(data: bytearray, elf: ElfFile) -> None:
    for number, segment in enumerate(elf.segments):
        if segment.p_type == PT.LOAD:
            RECORDS[Phdr, elf.byte_order].pack_into(data, elf.header.e_phoff + 56 * number, *segment._replace(p_flags=4))


FILE_DAMAGES: dict[str, tuple[Callable[[bytearray, ElfFile], None], ...]] = {
    "several-sections": (another_segment,),
    "not-loaded": (not_loaded,),
    "no-segment": (set_segment(PT.GNU_SFRAME, p_type=1),),
    "no-section": (set_section(sh_type=0, sh_name=0),),
    "section-type": (set_section(sh_type=SHT.PROGBITS),),
    "section-flags": tuple(set_section(sh_flags=flags) for flags in (SHF.WRITE, SHF.ALLOC | SHF.WRITE, SHF.ALLOC | SHF.EXECINSTR)),
    "section-place": (
        *(set_section(**{field: 0x10}) for field in ("sh_addr", "sh_offset")),
        *(set_segment(PT.GNU_SFRAME, **{field: 8}) for field in ("p_vaddr", "p_offset")),
    ),
    "segment-size": (set_segment(PT.GNU_SFRAME, p_memsz=8), set_segment(PT.GNU_SFRAME, p_filesz=-8)),
    "outside-file": (set_segment(PT.GNU_SFRAME, p_offset=1 << 40),),
    "not-mapped": (set_segment(PT.LOAD, p_offset=0x1000),),
    "mapped-unreadable": (set_segment(PT.LOAD, p_flags=-4),),
    "mapped-writable": (set_segment(PT.LOAD, p_flags=2),),
    "machine": (lambda data, _: data.__setitem__(18, 183),),
    "dynamic-read-only": (read_only_loads,),
}


@for_each("rule", [rule.name for rule in FILE])
def test_what_is_wrong_in_a_file(rule: str, compile_c: Compiler, tmp_path: Path) -> None:
    file = tmp_path / "program"
    add_section(compile_c(PROGRAM, "-O2"), output=file, verify=False)
    assert check_placement(open_elf(file)) == []
    for damage in FILE_DAMAGES[rule]:
        data = bytearray(file.read_bytes())
        damage(data, open_elf(file))
        found = check_placement(ElfFile(memoryview(bytes(data))))
        assert {finding.severity for finding in found if finding.rule == rule} == {RULES[rule].severity}


def test_a_file_without_a_section_has_nothing_to_judge(compile_c: Compiler) -> None:
    assert check_placement(open_elf(compile_c(PROGRAM, "-O2"))) == []
    assert check_placement(open_elf(compile_c(PROGRAM, "-O2", "-c", name="a.o"))) == []

"""Finds breaches of the specification, and facts that consumers depend on, in the bytes of a section. Does not raise.

The header and the bounds of the sub-sections are checked first; then SectionWalk checks functions and FREs, and lists the distinct
rules of FREs. Here each of these is decoded once, whatever number of FREs have it.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sframegen.base.columns import sort_indexes, sorted_column, zeros
from sframegen.checks.finding import Finding
from sframegen.checks.specification.rule_list import MAX_PER_RULE, RULES, WALKED
from sframegen.checks.specification.section_walk import SectionWalk
from sframegen.elf.records import STRUCT_BYTE_ORDERS, ByteOrder
from sframegen.format.abi import ABIS, BY_SFRAME_ID, Abi
from sframegen.format.decode import SframeSection
from sframegen.format.fre_bytes import words_size
from sframegen.format.layouts import (
    DATAWORD_COUNT_MASK,
    DATAWORD_COUNT_SHIFT,
    F_FDE_SORTED,
    FLEX_REGISTER_BIT,
    FLEX_REGISTER_SHIFT,
    FLEX_UNUSED_BIT,
    HEADER_CODE,
    HEADER_SIZE,
    LAYOUTS,
    MAGIC,
    MANGLED_RA_BIT,
    PAUTH_KEY_B_BIT,
    SframeHeader,
)
from sframegen.format.model import FdeType
from sframegen.format.words import FDE_TYPES, control_word_indexes, data_words, decode_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.ranges import Range
    from sframegen.format.layouts import Layout

# libxul's 2.5 million rows have 1,322 distinct rules. Checking 65,536 rules takes half a second and 2 MB.
MAX_RULES = 1 << 16
ORDERS: tuple[ByteOrder, ...] = ("little", "big")
VERSION_AT, FLAGS_AT, ABI_AT, FIXED_OFFSETS_AT, AUXHDR_LEN_AT = 2, 3, 4, 5, 7  # offsets of fields in the header
NUM_FDES_AT, NUM_FRES_AT, FRE_LEN_AT, FDEOFF_AT, FREOFF_AT = 8, 12, 16, 20, 24
RULES_OF_ABIS = ("register", "signed-address")  # not checked if the ABI is unknown
RULES_THAT_HIDE_ROWS = ("block-outside", "fre-type", "row-cut-off", "word-size")  # after such a breach, some FREs are not counted


@dataclass
class SectionFacts:
    """The facts about a section. Facts that could not be read are None.

    `counts`: breaches by rule of rule_list.RULES; `findings`: at most MAX_PER_RULE for each, then one with the number of others.
    `most_words`, `most_word_bytes`: the most in one FRE. `claimed_rows`: the sum of all functions' rows, also of shared ones.
    """

    size: int
    address: int
    executable: Sequence[Range] | None = None  # (start, end) of the segments, ascending
    expected_order: ByteOrder | None = None  # the file's byte order
    byte_order: ByteOrder | None = None
    loaded: bool = True
    of_kernel: bool = False  # the section belongs to a kernel or to one of its modules
    of_other_machine: bool = False  # than arm64
    sorted_later: bool = False  # the kernel sorts the functions when it loads the module
    unwalked: int = 0  # functions outside of the text in which a kernel's unwinder looks up addresses
    header: SframeHeader | None = None
    layout: Layout | None = None
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    most_words: int = 0
    most_word_bytes: int = 0
    shares_blocks: bool = False
    claimed_rows: int = 0
    without_rows: int = 0  # functions that have bytes, but no FREs
    far: int = 0  # functions more than 2 GiB away
    wrapped: int = 0  # functions whose distance from the section wraps around the end of the address space
    divides_by_zero: int = 0  # functions that have bytes, and repeat with a period of 0
    divides_with_rows: int = 0  # those of them whose FREs can be read

    def first_finding(self, *names: str) -> Finding | None:
        """Return the first finding about one of these rules; None if all are kept."""
        if not any(name in self.counts for name in names):
            return None
        return next(finding for finding in self.findings if finding.rule in names)

    def add_breach(self, name: str, detail: str = "", offset: int | None = None, address: int | None = None, n: int = 1) -> None:
        """Count `n` breaches of a rule, and add a finding about them. `offset`, `address`: those of the first one."""
        rule = RULES[name]
        counted = self.counts.get(name, 0)
        self.counts[name] = counted + n
        if counted < MAX_PER_RULE:
            message = rule.fault + (f": {detail}" if detail else "")
            self.findings.append(Finding(name, rule.severity, message, offset=offset, address=address))


def examine_section(
    section: memoryview | bytes, address: int, *, executable: Sequence[Range] | None = None, byte_order: ByteOrder | None = None
) -> SectionFacts:
    """Return the facts and findings about a section at `address`, which need no CFI.

    `executable`: (start, end) of the executable segments, ascending. `byte_order`: that of the file.
    """
    view = memoryview(section)
    facts = SectionFacts(len(view), address, executable, byte_order)
    header = _read_header(view, facts)
    if header is not None and facts.layout is not None:
        abi = _judge_header(header, facts.layout, facts, facts.byte_order or ORDERS[0])
        layout = facts.layout
        if not abi.ra_is_signed:
            layout = layout._replace(info_unused=layout.info_unused | PAUTH_KEY_B_BIT)
        opened = SframeSection(view, address, header, abi, layout, "")
        _judge_bounds(opened, facts)
        _walk(opened, facts)
    listed = Counter(finding.rule for finding in facts.findings)
    rest = [(RULES[name], count - listed[name]) for name, count in facts.counts.items() if count > listed[name]]
    facts.findings += [Finding(rule.name, rule.severity, f"{count} more: {rule.fault}") for rule, count in rest]
    return facts


def _read_header(view: memoryview, facts: SectionFacts) -> SframeHeader | None:
    """Return the header, in the byte order of its magic number, and note what it says; None if it cannot be read."""
    if len(view) < HEADER_SIZE:
        facts.add_breach("header-size", f"{len(view)} bytes of {HEADER_SIZE}", 0)
        return None
    for order in ORDERS:
        header = SframeHeader(*struct.unpack_from(STRUCT_BYTE_ORDERS[order] + HEADER_CODE, view))
        if header.magic != MAGIC:
            continue
        facts.byte_order = order
        facts.header = header
        facts.layout = LAYOUTS.get(header.version)
        if facts.layout is None:
            facts.add_breach("version", str(header.version), VERSION_AT)
        return header
    facts.add_breach("magic", bytes(view[:2]).hex(), 0)
    return None


def _judge_header(header: SframeHeader, layout: Layout, facts: SectionFacts, order: ByteOrder) -> Abi:
    """Check the header. Return its ABI, or any ABI if that is unknown, with the header's byte order and fixed offsets."""
    if header.flags & ~layout.flags:
        facts.add_breach("flags", f"{header.flags & ~layout.flags:#x}", FLAGS_AT)
    if header.auxhdr_len:
        facts.add_breach("auxiliary-header", f"{header.auxhdr_len} bytes", AUXHDR_LEN_AT)
    offsets = (header.cfa_fixed_fp_offset, header.cfa_fixed_ra_offset)
    known = BY_SFRAME_ID.get(header.abi_arch)
    if known is None or known.since > layout.version:
        facts.add_breach("abi", str(header.abi_arch), ABI_AT)
        abi = ABIS[0]
    else:
        abi = known
        expected = facts.expected_order or abi.byte_order
        if not abi.byte_order == order == expected:
            facts.add_breach("byte-order", f"{order}-endian, ABI {abi.name}, in a {expected}-endian file", 0)
        if offsets != (abi.fixed_fp_offset, abi.fixed_ra_offset):
            facts.add_breach("fixed-offsets", f"{offsets[0]} and {offsets[1]}, ABI {abi.name}", FIXED_OFFSETS_AT)
    return abi._replace(byte_order=order, fixed_fp_offset=offsets[0], fixed_ra_offset=offsets[1])


def _judge_bounds(section: SframeSection, facts: SectionFacts) -> None:
    """Check that the index and the FRE sub-section fit into the section, and what is around them."""
    header, size = section.header, len(section.data)
    header_end = HEADER_SIZE + header.auxhdr_len
    index_end = section.index_at + header.num_fdes * section.layout.index_size
    if index_end > size:
        detail = f"{header.num_fdes} functions end at {index_end:#x}, the section at {size:#x}"
        facts.add_breach("index-bounds", detail, NUM_FDES_AT)
    if section.fres_end > size:
        facts.add_breach("rows-bounds", f"it ends at {section.fres_end:#x}, the section at {size:#x}", FRE_LEN_AT)
    if section.fres_at < index_end:
        facts.add_breach("sub-section-order", f"{section.fres_at:#x}, {index_end:#x}", FREOFF_AT)
    elif header_end < section.index_at or index_end < section.fres_at:
        facts.add_breach("sub-section-gap", f"{section.index_at - header_end} and {section.fres_at - index_end}", FDEOFF_AT)
    bytes_after = bytes(section.data[section.end :]).lstrip(b"\0")
    if bytes_after:
        magic = struct.pack(STRUCT_BYTE_ORDERS[section.abi.byte_order] + "H", MAGIC)
        name = "another-section" if bytes_after.startswith(magic) else "trailing-bytes"
        facts.add_breach(name, "", len(section.data) - len(bytes_after))


def _walk(section: SframeSection, facts: SectionFacts) -> None:
    """Check all functions and FREs, and each distinct rule of the FREs once."""
    walk = SectionWalk(section, len(WALKED), MAX_PER_RULE, min(MAX_RULES, len(section.data)))
    functions = walk.functions
    start, sizes, keys = zeros("Q", functions), zeros("I", functions), zeros("Q", functions)
    default_type = int(section.layout.outermost_without_rows)  # Cython 3.1 rejects a bool for an int
    key_count = walk.check_index(start, sizes, keys, default_type)
    is_sorted = section.header.flags & F_FDE_SORTED
    walk.check_order(start, sizes, array("I") if is_sorted else sort_indexes(start, 0, functions))
    if facts.executable is not None:
        walk.check_executable(start, sizes, *(array("Q", [code[end] for code in facts.executable]) for end in (0, 1)))
    walk.walk_blocks(sorted_column(keys[:key_count]), start, sizes)

    for number, rule in enumerate(WALKED):
        for index in range(number * MAX_PER_RULE, number * MAX_PER_RULE + min(walk.counts[number], MAX_PER_RULE)):
            facts.add_breach(rule.name, "", walk.offsets[index], walk.addresses[index] or None)
        facts.counts.update({rule.name: walk.counts[number]} if walk.counts[number] else {})
    if walk.overflow:
        facts.add_breach("many-rules", f"{walk.overflow} FREs were left out", n=walk.overflow)
    columns = (memoryview(column)[: walk.rules] for column in (walk.rule_at, walk.rule_type, walk.rule_address, walk.rule_uses))
    for at, fde_type, address, uses in zip(*columns, strict=True):
        _judge_words(section, facts, at, fde_type, address, uses)
    declared = section.header.num_fres
    if declared not in (walk.stored, walk.claimed) and not facts.first_finding(*RULES_THAT_HIDE_ROWS, "index-bounds"):
        facts.add_breach("row-total", f"{declared}, and {walk.stored} are there", NUM_FRES_AT)
    facts.shares_blocks, facts.claimed_rows, facts.without_rows = walk.shared, walk.claimed, walk.without_rows
    facts.far, facts.wrapped = walk.far, walk.wrapped
    facts.divides_by_zero, facts.divides_with_rows = walk.divides_by_zero, walk.divides_with_rows


def _judge_words(section: SframeSection, facts: SectionFacts, at: int, fde_type: int, address: int, uses: int) -> None:
    """Check the rule of the FRE with the info byte at `at`, the first of `uses` FREs that have it."""
    info = section.data[at]
    raw = bytes(section.data[at : at + 1 + words_size(info)])
    facts.most_words = max(facts.most_words, info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK)
    facts.most_word_bytes = max(facts.most_word_bytes, len(raw) - 1)
    broken = []
    if fde_type >= len(FDE_TYPES):
        broken.append("words")
    elif FDE_TYPES[fde_type] is FdeType.FLEX:
        broken += _find_flexible_faults(data_words(raw, section.abi)[1], section.abi)
    elif decode_rule(FDE_TYPES[fde_type], raw, section.abi, section.layout) is None:
        broken.append("words")
    if info & MANGLED_RA_BIT and not section.abi.ra_is_signed:
        broken.append("signed-address")
    for name in broken:
        if name in RULES_OF_ABIS and facts.first_finding("abi"):
            continue
        facts.add_breach(name, f"in {uses} FREs" if uses > 1 else "", at, address, uses)


def _find_flexible_faults(words: tuple[int, ...], abi: Abi) -> list[str]:
    """Return the rules of the specification that the data words of a flexible FDE's rule break."""
    faults = []
    if not words[0] & FLEX_REGISTER_BIT:
        faults.append("cfa-base")
        words = (words[0] | FLEX_REGISTER_BIT, *words[1:])
    *control_places, end = control_word_indexes(words)
    if end != len(words):
        return [*faults, "words"]
    if control_word_indexes(words[:-1])[-1] == len(words) - 1:
        faults.append("padding-word")
    controls = [words[at] for at in control_places if at < end]
    if any(control & FLEX_UNUSED_BIT for control in controls):
        faults.append("unused-bits")
    registers = {control >> FLEX_REGISTER_SHIFT for control in controls if control & FLEX_REGISTER_BIT}
    if registers - set(abi.base_registers):
        faults.append("register")
    return faults

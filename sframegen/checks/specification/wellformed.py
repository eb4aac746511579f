"""Finds breaches of the specification in a section of any version. Accepts any bytes, and does not raise."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sframegen.base.columns import sort_indexes, sorted_column, zeros
from sframegen.checks.finding import Finding
from sframegen.checks.specification.rule_list import KEPT, RULES, WALKED
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
from sframegen.format.words import FDE_TYPES, data_words, decode_rule, flex_places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.ranges import Range
    from sframegen.format.layouts import Layout

# libxul's 2.5 million rows have 1,322 distinct rules. To judge 65,536 takes half a second, and 2 MB of columns.
MAX_RULES = 1 << 16
ORDERS: tuple[ByteOrder, ...] = ("little", "big")
ABI_AT = 4  # offset in the header
OF_AN_ABI = ("register", "signed-address")
BROKEN_OFF = ("block-outside", "fre-type", "row-cut-off", "word-size")  # with these faults, the FREs were not all counted


@dataclass
class Facts:
    """The facts about a section; facts that could not be read are None.

    `counts`: breaches of each rule in rule_list.RULES; `findings`: at most KEPT for each rule, and one with the number of others.
    `most_words`, `most_word_bytes`: the most in one FRE. `claimed_rows`: rows of all functions, shared rows counted repeatedly.
    """

    size: int
    address: int
    executable: Sequence[Range] | None = None  # (start, end) of the segments, ascending
    expected_order: ByteOrder | None = None  # the file's byte order
    byte_order: ByteOrder | None = None
    loaded: bool = True
    of_kernel: bool = False  # the section of a kernel or of its module
    sorted_later: bool = False  # a kernel sorts its functions when it loads the module
    unwalked: int = 0  # functions outside of the text that a kernel's unwinder looks up
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
    divides: int = 0  # functions that have bytes, and repeat with a period of 0
    divides_rows: int = 0  # those of them whose FREs can be read

    def broken(self, *names: str) -> Finding | None:
        """Return the first finding of one of these rules; None if none is broken."""
        if not any(name in self.counts for name in names):
            return None
        return next(finding for finding in self.findings if finding.rule in names)

    def add(self, name: str, detail: str = "", offset: int | None = None, address: int | None = None, count: int = 1) -> None:
        """Add a finding about a broken rule. `count`: number of breaches; `offset` and `address` are those of the first."""
        rule = RULES[name]
        known = self.counts.get(name, 0)
        self.counts[name] = known + count
        if known < KEPT:
            self.findings.append(Finding(name, rule.severity, rule.says + (f": {detail}" if detail else ""), "", offset, address))


def examine(
    section: memoryview | bytes,
    address: int,
    *,
    executable: Sequence[Range] | None = None,
    byte_order: ByteOrder | None = None,
) -> Facts:
    """Check a section loaded at `address`. `executable`: (start, end) of segments, ascending. `byte_order`: the file's."""
    view = memoryview(section)
    facts = Facts(len(view), address, executable, byte_order)
    header = _read_header(view, facts)
    if header is not None and facts.layout is not None:
        abi = _judge_header(header, facts.layout, facts, facts.byte_order or ORDERS[0])
        layout = facts.layout
        if not abi.ra_is_signed:
            layout = layout._replace(info_unused=layout.info_unused | PAUTH_KEY_B_BIT)
        opened = SframeSection(view, address, header, abi, layout, "")
        _judge_bounds(opened, facts)
        _walk(opened, facts)
    rest = {name: count - sum(finding.rule == name for finding in facts.findings) for name, count in facts.counts.items()}
    facts.findings += [Finding(name, RULES[name].severity, f"{rest[name]} more: {RULES[name].says}") for name in rest if rest[name]]
    return facts


def _read_header(view: memoryview, facts: Facts) -> SframeHeader | None:
    if len(view) < HEADER_SIZE:
        facts.add("header-size", f"{len(view)} bytes of {HEADER_SIZE}", 0)
        return None
    for order in ORDERS:
        header = SframeHeader(*struct.unpack_from(STRUCT_BYTE_ORDERS[order] + HEADER_CODE, view))
        if header.magic != MAGIC:
            continue
        facts.byte_order = order
        facts.header = header
        facts.layout = LAYOUTS.get(header.version)
        if facts.layout is None:
            facts.add("version", str(header.version), 2)
        return header
    facts.add("magic", bytes(view[:2]).hex(), 0)
    return None


def _judge_header(header: SframeHeader, layout: Layout, facts: Facts, order: ByteOrder) -> Abi:
    """Check the header. Return the ABI with the header's fixed offsets; another ABI if it is unknown."""
    if header.flags & ~layout.flags:
        facts.add("flags", f"{header.flags & ~layout.flags:#x}", 3)
    if header.auxhdr_len:
        facts.add("auxiliary-header", f"{header.auxhdr_len} bytes", 7)
    offsets = (header.cfa_fixed_fp_offset, header.cfa_fixed_ra_offset)
    known = BY_SFRAME_ID.get(header.abi_arch)
    if known is None or known.since > layout.version:
        facts.add("abi", str(header.abi_arch), ABI_AT)
        abi = ABIS[0]
    else:
        abi = known
        expected = facts.expected_order or abi.byte_order
        if not abi.byte_order == order == expected:
            facts.add("byte-order", f"{order}-endian, ABI {abi.name}, in a {expected}-endian file", 0)
        if offsets != (abi.fixed_fp_offset, abi.fixed_ra_offset):
            facts.add("fixed-offsets", f"{offsets[0]} and {offsets[1]}, ABI {abi.name}", 5)
    return abi._replace(byte_order=order, fixed_fp_offset=offsets[0], fixed_ra_offset=offsets[1])


def _judge_bounds(section: SframeSection, facts: Facts) -> None:
    header, size = section.header, len(section.data)
    header_end = HEADER_SIZE + header.auxhdr_len
    index_end = section.index_at + header.num_fdes * section.layout.index_size
    if index_end > size:
        facts.add("index-bounds", f"{header.num_fdes} functions end at {index_end:#x}, the section at {size:#x}", 8)
    if section.fres_end > size:
        facts.add("rows-bounds", f"it ends at {section.fres_end:#x}, the section at {size:#x}", 16)
    if section.fres_at < index_end:
        facts.add("sub-section-order", f"{section.fres_at:#x}, {index_end:#x}", 24)
    elif header_end < section.index_at or index_end < section.fres_at:
        facts.add("sub-section-gap", f"{section.index_at - header_end} and {section.fres_at - index_end}", 20)
    rest = bytes(section.data[section.end :])
    if not rest.strip(b"\0"):
        return
    end = len(section.data) - len(rest.lstrip(b"\0"))
    mark = STRUCT_BYTE_ORDERS[section.abi.byte_order]
    another = rest.lstrip(b"\0").startswith(struct.pack(mark + "H", MAGIC))
    facts.add("another-section" if another else "trailing-bytes", "", end)


def _walk(section: SframeSection, facts: Facts) -> None:
    walk = SectionWalk(section, len(WALKED), KEPT, min(MAX_RULES, len(section.data)))
    functions = walk.functions
    start, sizes, keys = zeros("Q", functions), zeros("I", functions), zeros("Q", functions)
    found = walk.index(start, sizes, keys, int(section.layout.outermost_without_rows))  # Cython 3.1 takes no bool for an int
    flagged = section.header.flags & F_FDE_SORTED
    walk.neighbours(start, sizes, array("I") if flagged else sort_indexes(start, 0, functions))
    if facts.executable is not None:
        walk.places(start, sizes, *(array("Q", [code[end] for code in facts.executable]) for end in (0, 1)))
    walk.blocks(sorted_column(keys[:found]), start, sizes)

    for number, rule in enumerate(WALKED):
        for place in range(number * KEPT, number * KEPT + min(walk.counts[number], KEPT)):
            facts.add(rule.name, "", walk.offsets[place], walk.addresses[place] or None)
        facts.counts.update({rule.name: walk.counts[number]} if walk.counts[number] else {})
    if walk.overflow:
        facts.add("many-rules", f"{walk.overflow} FREs were left out", count=walk.overflow)
    said = (memoryview(column)[: walk.rules] for column in (walk.rule_at, walk.rule_type, walk.rule_address, walk.rule_uses))
    for at, kind, address, uses in zip(*said, strict=True):
        _judge_words(section, facts, at, kind, address, uses)
    total = section.header.num_fres
    if total not in (walk.stored, walk.claimed) and not facts.broken(*BROKEN_OFF, "index-bounds"):
        facts.add("row-total", f"{total}, and {walk.stored} are there", 12)
    facts.shares_blocks = walk.shared
    facts.claimed_rows = walk.claimed
    facts.without_rows = walk.without_rows
    facts.far = walk.far
    facts.wrapped = walk.wrapped
    facts.divides, facts.divides_rows = walk.divides, walk.divides_rows


def _judge_words(section: SframeSection, facts: Facts, at: int, kind: int, address: int, uses: int) -> None:
    """Check a distinct rule: the FRE with the info byte at `at`, for code at `address`, and `uses` FREs in all have it."""
    info = section.data[at]
    raw = bytes(section.data[at : at + 1 + words_size(info)])
    facts.most_words = max(facts.most_words, info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK)
    facts.most_word_bytes = max(facts.most_word_bytes, len(raw) - 1)
    broken = []
    if kind >= len(FDE_TYPES):
        broken.append("words")
    elif FDE_TYPES[kind] is FdeType.FLEX:
        broken += _find_flex_faults(data_words(raw, section.abi)[1], section.abi)
    elif decode_rule(FDE_TYPES[kind], raw, section.abi, section.layout) is None:
        broken.append("words")
    if info & MANGLED_RA_BIT and not section.abi.ra_is_signed:
        broken.append("signed-address")
    for name in broken:
        if name in OF_AN_ABI and facts.broken("abi"):
            continue
        facts.add(name, f"in {uses} FREs" if uses > 1 else "", at, address, uses)


def _find_flex_faults(words: tuple[int, ...], abi: Abi) -> list[str]:
    faults = []
    if not words[0] & FLEX_REGISTER_BIT:
        faults.append("cfa-base")
        words = (words[0] | FLEX_REGISTER_BIT, *words[1:])
    *places, end = flex_places(words)
    if end != len(words):
        return [*faults, "words"]
    if flex_places(words[:-1])[-1] == len(words) - 1:
        faults.append("padding-word")
    controls = [words[at] for at in places if at < end]
    if any(control & FLEX_UNUSED_BIT for control in controls):
        faults.append("unused-bits")
    registers = {control >> FLEX_REGISTER_SHIFT for control in controls if control & FLEX_REGISTER_BIT}
    if registers - set(abi.base_registers):
        faults.append("register")
    return faults

"""The FDEs of a section one by one, as GNU readelf and libsframe tell them; where two sections differ."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.oracles.files import BYTE_ORDERS, Segment, elf_facts, paragraphs, running
from tests.support.oracles.libsframe import Decoder
from tests.support.oracles.rules import ABIS, Interner, OracleError, Rule
from tests.support.oracles.sframe_text import COLUMNS, COUNT, FUNCTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import Peers

SHT_NULL, SHT_NOBITS, SHT_GNU_SFRAME = 0, 8, 0x6FFFFFF4


class Fde(NamedTuple):
    """`rows`: address (offset from the start of a repeated block) and text of each. `block`: the size of that block, or 0."""

    start: int
    size: int
    block: int
    attributes: str
    rows: tuple[tuple[int, str], ...]


class Section(NamedTuple):
    header: list[str]  # lines about version, flags and fixed offsets
    fdes: list[Fde]

    @property
    def rows(self) -> int:
        return sum(len(fde.rows) for fde in self.fdes)


def read(readelf: str, path: Path | str, peers: Peers) -> Section:
    """All FDEs in their order. OracleError where readelf complains or prints something unknown."""
    header = b""
    fdes: list[Fde] = []
    blocks = _block_sizes(path, peers)
    with running(readelf, "--sframe", str(path)) as text:
        for block in paragraphs(text):
            head, *lines = block.strip(b"\n").split(b"\n")
            function = FUNCTION.fullmatch(head)
            columns = COLUMNS.fullmatch(lines[0]) if lines else None
            if not function:
                if fdes:
                    raise OracleError(f"readelf --sframe prints an unknown block: {block[:200]!r}")
                header += block + b"\n"
                continue
            if int(function[1]) != len(fdes) or not columns:
                raise OracleError(f"readelf --sframe prints as function {len(fdes)}: {block[:200]!r}")
            rows = tuple((int(line[4:20], 16), " ".join(line[20:].decode().split())) for line in lines[1:])
            attributes = " ".join(group.decode() for group in function.groups()[3:] if group)
            fdes.append(Fde(int(function[2], 16), int(function[3]), blocks[len(fdes)], attributes, rows))
            if bool(columns[1]) != bool(fdes[-1].block):
                raise OracleError(f"readelf and libsframe do not agree whether function {len(fdes) - 1} repeats a block")
    count = COUNT.search(header)
    if not count or int(count[1]) != len(fdes):
        raise OracleError(f"readelf prints {len(fdes)} functions, its header says {count and int(count[1])}")
    told = [line.strip() for line in header.decode().splitlines()]
    return Section([line for line in told if line and not line.startswith("Num ")], fdes)


def _block_sizes(path: Path | str, peers: Peers) -> list[int]:
    facts = elf_facts(path)
    segment = sframe_section(path)
    with Path(path).open("rb") as file:
        file.seek(segment.offset)
        section = file.read(segment.filesz)
    rules: Interner[Rule | None] = Interner(None, None)
    decoder = Decoder(str(peers.libsframe()), section, segment.address, ABIS[facts.machine], rules)
    try:
        return [size if mask else 0 for size, mask in zip(decoder.block_sizes, decoder.masks, strict=True)]
    finally:
        decoder.close()


def sframe_section(path: Path | str) -> Segment:
    """Where the one section of type SHT_GNU_SFRAME of a 64-bit ELF file is, be there a segment for it or not.

    GNU ld can write more than it had room for: OracleError.
    """
    with Path(path).open("rb") as file:
        header = file.read(64)
        order = BYTE_ORDERS[header[5]]
        (shoff,) = struct.unpack_from(order + "Q", header, 40)
        (shentsize, shnum) = struct.unpack_from(order + "HH", header, 58)
        file.seek(shoff)
        table = file.read(shentsize * shnum)
    found, others = [], []
    for at in range(0, shentsize * shnum, shentsize):
        _, kind, _, address, offset, size = struct.unpack_from(order + "IIQQQQ", table, at)
        if kind == SHT_GNU_SFRAME:
            found.append(Segment(kind, 0, offset, address, size, size))
        elif kind not in (SHT_NULL, SHT_NOBITS) and size:
            others.append(offset)
    if len(found) != 1:
        raise OracleError(f"{path} has {len(found)} SFrame sections, expected one")
    [section] = found
    if any(section.offset <= offset < section.offset + section.filesz for offset in others):
        raise OracleError(f"{path}: another section begins inside of .sframe")
    return section


def differences(one: Section, two: Section) -> Iterator[tuple[int, str]]:
    """(address, what differs) for the headers (address 0) and for each FDE that is not in both, in the order of addresses."""
    if one.header != two.header:
        yield 0, f"header: {' '.join(one.header)} / {' '.join(two.header)}"
    for number, fdes in enumerate((one.fdes, two.fdes)):
        if any(a.start > b.start for a, b in pairwise(fdes)):
            yield 0, f"the FDEs of {'the second' if number else 'the first'} are not sorted"
    by_start: dict[int, tuple[list[Fde], list[Fde]]] = {}
    for side, section in enumerate((one, two)):
        for fde in section.fdes:
            by_start.setdefault(fde.start, ([], []))[side].append(fde)
    for start, (first, second) in sorted(by_start.items()):
        if sorted(first) != sorted(second):
            yield start, f"{start:#x}: {_told(first)} / {_told(second)}"


def _told(fdes: list[Fde]) -> str:
    return (
        "; ".join(
            f"{fde.size} bytes {fde.attributes}{f' by {fde.block}' if fde.block else ''} "
            + ", ".join(f"+{at if fde.block else at - fde.start:#x} {text}" for at, text in fde.rows[:6])
            + (f" and {len(fde.rows) - 6} rows more" if len(fde.rows) > 6 else "")
            for fde in fdes
        )
        or "nothing"
    )

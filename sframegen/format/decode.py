"""Section bytes -> the header, and when it is asked for what the rest says."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.abi import BY_SFRAME_ID
from sframegen.elf import MARKS
from sframegen.format.layouts import LAYOUTS
from sframegen.format.records import F_FDE_FUNC_START_PCREL, HEADER_CODE, HEADER_SIZE, MAGIC, Header
from sframegen.format.seek import Seeker
from sframegen.format.table import decode_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.abi import Abi
    from sframegen.format.layouts import Layout
    from sframegen.model import FunctionTable


@dataclass
class SframeSection:
    """A section that is loaded at `address`, with a header that can be trusted. The rest is read when it is first asked for."""

    data: memoryview  #: its bytes
    address: int  #: link-time address of the first
    header: Header  #: as it stands in the file: a named tuple with the specification's fields
    abi: Abi  #: a row of the table of ABIs: register names and numbers
    layout: Layout
    place: str
    starts: Sequence[int] | None = None  #: of its functions, where it does not say them itself: in objects their relocations do

    @cached_property
    def table(self) -> FunctionTable:
        """Everything that it says, with absolute addresses. Raises FormatError with the offset in the section."""
        return decode_table(self)

    @cached_property
    def seeker(self) -> Seeker:
        """What finds rows without decoding. Raises FormatError where the functions are not in ascending order."""
        seeker = Seeker(
            self.data,
            self.layout.fields,
            self.abi.byte_order == "big",
            self.relative,
            self.header.num_fdes,
            self.index_at,
            self.fres_at,
            self.fres_end,
            self.address,
        )
        if not seeker.ascends():
            raise FormatError("functions are not in ascending order of address: no unwinder can search this section", self.place)
        return seeker

    @property
    def index_at(self) -> int:
        return HEADER_SIZE + self.header.auxhdr_len + self.header.fdeoff

    @property
    def fres_at(self) -> int:
        return HEADER_SIZE + self.header.auxhdr_len + self.header.freoff

    @property
    def fres_end(self) -> int:
        return self.fres_at + self.header.fre_len

    @property
    def end(self) -> int:
        """Bytes up to the end of what the header claims."""
        return max(self.index_at + self.header.num_fdes * self.layout.index_size, self.fres_end)

    @property
    def relative(self) -> bool:
        """Whether a function's start counts from its own field, else from the section's first byte."""
        return bool(self.header.flags & F_FDE_FUNC_START_PCREL)


def open_section(data: memoryview | bytes | bytearray, address: int, place: str = ".sframe") -> SframeSection:
    """Reads the header only. Raises FormatError where it is bad, or the section too short for what it claims."""
    view = memoryview(data)
    header, byte_order = _header(view, place)
    if header.abi_arch not in BY_SFRAME_ID:
        raise FormatError(f"unknown ABI {header.abi_arch}", place, 4)
    abi = BY_SFRAME_ID[header.abi_arch]._replace(
        fixed_fp_offset=header.cfa_fixed_fp_offset, fixed_ra_offset=header.cfa_fixed_ra_offset
    )
    if abi.byte_order != byte_order:
        raise FormatError(f"ABI {abi.name} is {abi.byte_order}-endian, the section {byte_order}-endian", place, 4)
    section = SframeSection(view, address, header, abi, LAYOUTS[header.version], place)
    if section.index_at + header.num_fdes * section.layout.index_size > len(view):
        raise FormatError(f"{header.num_fdes} functions do not fit into {len(view)} bytes", place, 8)
    fres_end = section.fres_at + header.fre_len
    if fres_end > len(view):
        raise FormatError(f"the FRE sub-section ends at {fres_end:#x}, the section at {len(view):#x}", place, 16)
    return section


def decode(data: memoryview | bytes | bytearray, address: int, place: str = ".sframe") -> SframeSection:
    """Opens a section and decodes all of it. Raises FormatError with the offset in the section."""
    section = open_section(data, address, place)
    _ = section.table
    return section


def _header(view: memoryview, place: str) -> tuple[Header, str]:
    if len(view) < HEADER_SIZE:
        raise FormatError(f"expected {HEADER_SIZE} bytes of header, have {len(view)}", place, 0)
    for byte_order, mark in MARKS.items():
        header = Header(*struct.unpack_from(mark + HEADER_CODE, view))
        if header.magic == MAGIC:
            if header.version not in LAYOUTS:
                raise FormatError(f"SFrame version {header.version} is not read, only {', '.join(map(str, LAYOUTS))}", place, 2)
            return header, byte_order
    raise FormatError(f"magic number is {bytes(view[:2]).hex()}, expected {MAGIC:#x}", place, 0)

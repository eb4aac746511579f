"""SFrame functions -> section bytes, Version 3, shaped as every known consumer accepts it.

Flags SORTED | FUNC_START_PCREL, no auxiliary header, index right behind the header, FREs right behind the index.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.format import pack
from sframegen.format.records import (
    BYTE_ORDER_MARKS,
    F_FDE_FUNC_START_PCREL,
    F_FDE_SORTED,
    HEADER_CODE,
    HEADER_SIZE,
    INDEX_SIZE,
    MAGIC,
    PAUTH_KEY_B_BIT,
    PCTYPE_MASK_BIT,
    SIGNAL_BIT,
    VERSION_3,
    Header,
)
from sframegen.format.words import encode_rule

if TYPE_CHECKING:
    from sframegen.abi import Abi
    from sframegen.model import FunctionTable, Kind


class Encoder:
    """Knows the section's size before its address is chosen: the address only changes the function index."""

    def __init__(self, table: FunctionTable, abi: Abi) -> None:
        """`table`: sorted, without overlaps, each rule sayable in the format. Raises FormatError where a 32-bit field overflows."""
        self.table = table
        self.abi = abi
        encoded = [encode_rule(rule, abi) for rule in table.rules]
        if None in encoded:
            raise FormatError(f"SFrame cannot say the rule {table.rules[encoded.index(None)]}")
        blobs = [blob for blob in encoded if blob is not None]
        self.rule_bytes = b"".join(blobs) or b"\0"
        self.rule_at = array("I", [0])
        for blob in blobs:
            self.rule_at.append(self.rule_at[-1] + len(blob))
        self.fre_type = array("B", bytes(len(table)))
        self.block_at = array("Q", bytes(8 * (len(table) + 1)))
        if len(table):
            pack.measure(table.first_row, table.row_start, table.row_rule, self.rule_at, self.fre_type, self.block_at)
        if self.block_at[-1] > 0xFFFFFFFF or len(table.row_start) > 0xFFFFFFFF:
            raise FormatError(f"{len(table.row_start)} rows do not fit into an SFrame section: its offsets are 32 bits")
        self.size_bytes = HEADER_SIZE + INDEX_SIZE * len(table) + self.block_at[-1]

    def encode(self, address: int) -> bytearray:
        """The section's bytes for link-time address `address`."""
        table, abi = self.table, self.abi
        header = Header(
            magic=MAGIC,
            version=VERSION_3,
            flags=F_FDE_SORTED | F_FDE_FUNC_START_PCREL,
            abi_arch=abi.sframe_id,
            cfa_fixed_fp_offset=abi.fixed_fp_offset,
            cfa_fixed_ra_offset=abi.fixed_ra_offset,
            auxhdr_len=0,
            num_fdes=len(table),
            num_fres=len(table.row_start),
            fre_len=self.block_at[-1],
            fdeoff=0,
            freoff=INDEX_SIZE * len(table),
        )
        out = bytearray(self.size_bytes)
        struct.pack_into(BYTE_ORDER_MARKS[abi.byte_order] + HEADER_CODE, out, 0, *header)
        if len(table):
            pack.write(
                table.start, table.size, table.kind, table.first_row, table.row_start, table.row_rule,
                self.fre_type, self.block_at, self.rule_at, self.rule_bytes, b"".join(map(_kind_bytes, table.kinds)),
                out, HEADER_SIZE, address + HEADER_SIZE, abi.byte_order == "big",
            )  # fmt: skip
        return out


def _kind_bytes(kind: Kind) -> bytes:
    """sfda_func_info without the FRE type, sfda_func_info2, sfda_func_rep_size."""
    info = kind.mask * PCTYPE_MASK_BIT | kind.key_b * PAUTH_KEY_B_BIT | kind.signal * SIGNAL_BIT
    return bytes([info, kind.fde_type, kind.rep_size])

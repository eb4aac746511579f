"""Encodes a FunctionTable as the bytes of a section, in a form that every known consumer of the version accepts.

That form has the flags SORTED | FUNC_START_PCREL, no auxiliary header, the function index right after the header, then the blocks:
a block is the FREs of one function, in V3 after its attribute. Functions with the same kind and rows can share one block.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from sframegen.base.columns import make_columns, zeros
from sframegen.base.errors import FormatError
from sframegen.elf.records import STRUCT_BYTE_ORDERS
from sframegen.format.columns import Blocks, Functions, Words
from sframegen.format.layouts import (
    F_FDE_FUNC_START_PCREL,
    F_FDE_SORTED,
    HEADER_CODE,
    HEADER_SIZE,
    MAGIC,
    PAUTH_KEY_B_BIT,
    PCTYPE_MASK_BIT,
    SIGNAL_BIT,
    V3,
    SframeHeader,
)
from sframegen.format.pack import OutputBytes, are_consistent, hash_rows, place_blocks, write_blocks, write_index
from sframegen.format.section_bytes import Fields
from sframegen.format.words import EncodedRules, RuleWords

if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout
    from sframegen.format.model import FunctionTable, Kind

ADDRESS_SIZE = 8
EMPTY_COLUMN: Column = zeros("I", 0)


class Encoder:
    """Encodes one table. The size of the section is known before its address, because only the function index depends on that."""

    def __init__(
        self, table: FunctionTable, abi: Abi, layout: Layout = V3, *, share: bool = False, encoded: EncodedRules | None = None,
        same_rows_as: Column = EMPTY_COLUMN,
    ) -> None:  # fmt: skip
        """`table`: sorted, without overlaps. `share`: functions with equal rows share one block. `encoded`: the table's rules.

        `same_rows_as`: for each function its own number, or that of an earlier one that is known to have the same kind and rows;
        may be empty. Raises FormatError if the version cannot express a kind or rule of a function, or a field overflows.
        """
        self.table = table
        self.abi = abi
        self.layout = layout
        self.flags = F_FDE_SORTED | F_FDE_FUNC_START_PCREL  # flags of the header; more can be set before `encode`
        bad_kinds = {n for n, kind in enumerate(table.kinds) if kind.signal > layout.signal or (kind.fde_type and not layout.flex)}
        if bad_kinds and (used_bad_kinds := bad_kinds.intersection(table.kind)):
            raise FormatError(f"SFrame version {layout.version} cannot express {table.kinds[min(used_bad_kinds)]}")
        self.kind_bytes = encode_kinds(table.kinds)
        self.encoded = encoded or EncodedRules(table.rules, RuleWords(abi, layout))
        self.owner, self.fre_type, self.block_size, self.block_at = make_columns("IBQQ", len(table))
        totals = zeros("Q", 2)  # the bytes and the rows of all blocks
        [row_hashes] = make_columns("I", len(table) if share else 0)
        [hash_slots] = make_columns("I", 2 << len(table).bit_length() if share else 0)  # two numbers in each slot
        functions, words, fields, blocks = self.columns()
        if not are_consistent(functions, words, blocks, same_rows_as):
            raise IndexError("the columns of the table do not fit together")
        hash_rows(functions, same_rows_as, row_hashes)
        bad_row = place_blocks(functions, words, fields, blocks, same_rows_as, row_hashes, hash_slots, totals)
        if bad_row >= 0:
            raise FormatError(f"SFrame version {layout.version} cannot express {table.rules[table.row_rule[bad_row]]}")
        self.blocks_size, self.stored_rows = totals
        if self.blocks_size > 0xFFFFFFFF or self.stored_rows > 0xFFFFFFFF:
            raise FormatError(f"{self.stored_rows} rows do not fit into an SFrame section: its offsets are 32 bits")
        self.size_bytes = HEADER_SIZE + layout.index_size * len(table) + self.blocks_size

    def columns(self) -> tuple[Functions, Words, Fields, Blocks]:
        """Return the columns for compiled code. While they exist, the table cannot grow or shrink."""
        words = Words(self.encoded.rule_at, self.encoded.rule_bytes, self.kind_bytes)
        blocks = Blocks(self.fre_type, self.block_size, self.block_at, self.owner)
        return self.table.columns(), words, Fields(self.layout), blocks

    def encode(self, address: int) -> memoryview:
        """Return the section's bytes for link-time address `address`. Raises FormatError if functions are too far from it."""
        table, abi = self.table, self.abi
        reach = 1 << 8 * self.layout.start_width - 1  # starts are signed distances
        farthest = max(table.start[-1] - address, address + self.size_bytes - table.start[0]) if len(table) else 0
        if self.layout.start_width < ADDRESS_SIZE and farthest >= reach:  # 64-bit distances wrap like addresses
            raise FormatError(f"functions are too far from the section for SFrame version {self.layout.version}")
        header = SframeHeader(
            magic=MAGIC, version=self.layout.version, flags=self.flags, abi_arch=abi.sframe_id,
            cfa_fixed_fp_offset=abi.fixed_fp_offset, cfa_fixed_ra_offset=abi.fixed_ra_offset, auxhdr_len=0, num_fdes=len(table),
            num_fres=self.stored_rows, fre_len=self.blocks_size, fdeoff=0, freoff=self.layout.index_size * len(table),
        )  # fmt: skip
        [out] = make_columns("B", self.size_bytes)
        struct.pack_into(STRUCT_BYTE_ORDERS[abi.byte_order] + HEADER_CODE, out, 0, *header)
        output = OutputBytes(out, abi.byte_order == "big")
        columns = self.columns()
        write_index(*columns, output, HEADER_SIZE, address + HEADER_SIZE)
        write_blocks(*columns, output, HEADER_SIZE + header.freoff)
        return out

    def encode_unplaced(self) -> memoryview:
        """Return the section's bytes with zeros for the starts of functions, which relocations fill in."""
        section = self.encode(0)
        count, size = len(self.table), self.layout.index_size
        for offset in range(HEADER_SIZE, HEADER_SIZE + self.layout.start_width):  # sets one byte of all starts at a time
            section[offset : offset + count * size : size] = bytes(count)
        return section


def encode_kinds(kinds: list[Kind]) -> bytes:
    """Return three bytes for each kind: sfda_func_info without the FRE type, sfda_func_info2, sfda_func_rep_size."""
    return bytes(
        byte
        for kind in kinds
        for byte in (
            kind.mask * PCTYPE_MASK_BIT | kind.key_b * PAUTH_KEY_B_BIT | kind.signal * SIGNAL_BIT,
            kind.fde_type,
            kind.rep_size,
        )
    )

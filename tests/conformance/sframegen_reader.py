"""sframegen's own readers, for conformance/runners/run.py: what searches the bytes, and what decodes all of them first."""

from __future__ import annotations

from typing import Any, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.format.abi import ABIS as KNOWN
from sframegen.format.decode import SframeSection, decode, open_section
from sframegen.format.layouts import F_FDE_SORTED, LAYOUTS
from sframegen.format.model import FunctionTable, Where, look_up_in

NUMBERS = tuple(abi.sframe_id for abi in KNOWN)


class Opened(NamedTuple):
    """`table`: its functions in ascending order, if it is decoded."""

    section: SframeSection
    table: FunctionTable | None

    def find(self, pc: int) -> dict[str, Any]:
        try:
            found = self.section.look_up(pc) if self.table is None else look_up_in(self.table, pc)
        except FormatError as error:
            raise ValueError(error) from error
        if found is None:
            return {"kind": "none"}
        rule, kind = found.rule, found.kind
        if rule.cfa is None:
            return {"kind": "outermost"}
        places = {"cfa": place(rule.cfa), "ra": place(rule.ra), "fp": place(rule.fp)}
        return {"kind": "rule", **places, "ra_signed": rule.ra_signed, "signal": kind.signal, "key_b": kind.key_b}


class Reader(NamedTuple):
    """`decodes`: all of a section first; else that is done only where its functions do not ascend."""

    NAME: str
    decodes: bool
    VERSIONS: tuple[int, ...] = tuple(LAYOUTS)
    ABIS: tuple[int, ...] = NUMBERS
    REPORTS: tuple[str, ...] = ("ra_signed", "signal", "key_b")

    def open_section(self, data: bytes, address: int) -> Opened:
        try:
            if not self.decodes:
                section = open_section(data, address)
                if section.header.flags & F_FDE_SORTED:
                    return Opened(section, None)
            section = decode(data, address)
        except FormatError as error:
            raise ValueError(error) from error
        table = section.table
        return Opened(section, table.select(sorted(range(len(table)), key=table.start.__getitem__)))


SEARCHES, DECODES = Reader("sframegen", decodes=False), Reader("sframegen, decoded", decodes=True)


def place(where: Where | None) -> dict[str, Any] | None:
    return where and where._asdict()

"""Formats a decoded section as text, like GNU readelf `--sframe`, or as JSON, one function at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sframegen.format.equations import rule_fields
from sframegen.format.layouts import F_FDE_FUNC_START_PCREL, F_FDE_SORTED, F_FRAME_POINTER
from sframegen.format.model import FdeType, Kind, Rule, Where
from sframegen.format.words import fixed_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection

    TextByFunction = Callable[[int], str | None]  # called with a function's index in the section

FLAG_NAMES = {
    F_FDE_SORTED: "SFRAME_F_FDE_SORTED",
    F_FRAME_POINTER: "SFRAME_F_FRAME_POINTER",
    F_FDE_FUNC_START_PCREL: "SFRAME_F_FDE_FUNC_START_PCREL",
}
FIXED, UNCHANGED, PADDING = "f", "u", "U"  # readelf's letters for a register without a location in the row


def dump_text(section: SframeSection, name_of: TextByFunction | None = None) -> Iterator[str]:
    """Yield the section as text, in whole lines; with `name_of`, the line of each function ends with ` <name>`."""
    header, table = section.header, section.table
    yield "Contents of the SFrame section .sframe:\n  Header :\n\n"
    yield f"    Version: SFRAME_VERSION_{header.version}\n"
    yield f"    Flags: {(',' + chr(10) + ' ' * 11).join(_flag_names(header.flags)) or 'NONE'}\n"
    for register, offset in (("FP", header.cfa_fixed_fp_offset), ("RA", header.cfa_fixed_ra_offset)):
        if offset:
            yield f"    CFA fixed {register} offset: {offset}\n"
    yield f"    Num FDEs: {header.num_fdes}\n    Num FREs: {header.num_fres}\n\n  Function Index :\n"

    rules = {fde_type: [_format_rule(rule, fde_type, section.abi) for rule in table.rules] for fde_type in FdeType}
    kinds = [
        (_attribute_text(kind, section.abi), "[m]" if kind.mask else "", kind.mask, rules[kind.fde_type]) for kind in table.kinds
    ]
    for function, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        attributes, mark, mask, columns = kinds[table.kind[function]]
        name = name_of(function) if name_of else None
        yield (
            f"\n    func idx [{function}]: pc = {start:#x}, size = {size} bytes{attributes}{f' <{name}>' if name else ''}\n"
            f"    {'STARTPC' + mark:16}CFA       FP        RA           \n"
        )
        base = 0 if mask else start
        yield "".join([f"    {base + offset:016x}{columns[rule]}" for offset, rule in table.numbered_rows(function)])


def dump_json(section: SframeSection, file: str, name_of: TextByFunction, code_of: TextByFunction | None = None) -> Iterator[str]:
    """Yield one JSON object: the header, and functions with their rows. A row of PC type MASK repeats, so it has no address.

    `code_of` is given for relocatable objects, and returns the name of the code section that a function is in.
    """
    table, abi = section.table, section.abi
    header = section.header._asdict() | {"flags": _flag_names(section.header.flags), "abi_arch": abi.name}
    head = {"file": file, "address": section.address, "header": header}
    yield json.dumps(head)[:-1] + ', "functions": ['
    kinds = [_kind_fields(kind) for kind in table.kinds]
    rules = [json.dumps(rule_fields(rule, abi))[1:] for rule in table.rules]
    for function, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        kind = table.kind[function]
        mask = table.kinds[kind].mask
        fields = {"name": name_of(function), "start": start, "size": size, **kinds[kind]}
        if code_of is not None:
            fields["section"] = code_of(function)
        yield "," * (function > 0) + "\n" + json.dumps(fields)[:-1] + ', "rows": ['
        yield ", ".join(
            [
                f'{{"offset": {offset}, "address": {"null" if mask else start + offset}, {rules[rule]}'
                for offset, rule in table.numbered_rows(function)
            ]
        )
        yield "]}"
    yield "\n]}"


def _flag_names(flags: int) -> list[str]:
    names = [name for bit, name in FLAG_NAMES.items() if flags & bit]
    unknown = flags & ~sum(FLAG_NAMES)
    return [*names, f"{unknown:#x}"] if unknown else names


def _attribute_text(kind: Kind, abi: Abi) -> str:
    letters = "S" * kind.signal + "F" * (kind.fde_type is FdeType.FLEX)
    return (f', attr = "{letters}"' if letters else "") + (", pauth = B key" if kind.key_b and abi.ra_is_signed else "")


def _kind_fields(kind: Kind) -> dict[str, Any]:
    return {
        "fde_type": kind.fde_type.name,
        "pc_type": "MASK" if kind.mask else "INC",
        "rep_size": kind.rep_size,
        "signal": kind.signal,
        "pauth_key": "B" if kind.key_b else "A",
    }


def _format_rule(rule: Rule, fde_type: FdeType, abi: Abi) -> str:
    """Return the columns CFA, FP and RA of a row, to the end of the line."""
    if rule.cfa is None:
        return "  RA undefined\n"
    format_cfa, format_location = LOCATION_FORMATS[fde_type]
    fp = UNCHANGED if rule.fp is None else format_location(rule.fp, abi)
    if rule.ra == fixed_place(abi.fixed_ra_offset):
        # The encoded row then has a padding word in the place of RA's offset, between those of CFA and FP.
        padded = rule.fp is not None and (fde_type is FdeType.FLEX or not abi.fixed_ra_offset)
        ra = PADDING if padded else FIXED if abi.fixed_ra_offset else UNCHANGED
    else:
        ra = UNCHANGED if rule.ra is None else format_location(rule.ra, abi)
    return f"  {format_cfa(rule.cfa, abi):10}{fp:10}{ra + '[s]' * rule.ra_signed:13}\n"


def _format_cfa(cfa: Where, abi: Abi) -> str:
    return f"{_base_register_name(cfa, abi)}+{cfa.offset}"  # `sp+-4` for a negative offset, as readelf prints it


def _format_location(where: Where, abi: Abi) -> str:
    """Return a stack slot, or a register (s390x, version 2), which is printed by its number even if it is SP or FP."""
    return f"{_base_register_name(where, abi)}{where.offset:+}" if where.deref else f"r{where.register}"


def _format_flexible(where: Where, abi: Abi) -> str:
    """Return a location. Parentheses mean the value stored at register + n; for CFA + n, readelf prints none in either case."""
    address = f"{_base_register_name(where, abi)}{where.offset:+}"
    return f"({address})" if where.deref and where.register is not None else address


def _base_register_name(where: Where, abi: Abi) -> str:
    return {None: "c", abi.sp: "sp", abi.fp: "fp"}.get(where.register, f"r{where.register}")


LOCATION_FORMATS = {FdeType.DEFAULT: (_format_cfa, _format_location), FdeType.FLEX: (_format_flexible, _format_flexible)}

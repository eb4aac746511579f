"""Prints a decoded section as text, like GNU readelf `--sframe`, or as JSON; in pieces, a function at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sframegen.format.equations import rule_fields
from sframegen.format.layouts import F_FDE_FUNC_START_PCREL, F_FDE_SORTED, F_FRAME_POINTER
from sframegen.format.model import FdeType, Kind, Rule, Where
from sframegen.format.words import fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection

    NameOf = Callable[[int], str | None]  # by a function's number

FLAG_NAMES = {
    F_FDE_SORTED: "SFRAME_F_FDE_SORTED",
    F_FRAME_POINTER: "SFRAME_F_FRAME_POINTER",
    F_FDE_FUNC_START_PCREL: "SFRAME_F_FDE_FUNC_START_PCREL",
}
FIXED, UNCHANGED, PADDING = "f", "u", "U"


def dump_text(section: SframeSection, name_of: NameOf | None = None) -> Iterator[str]:
    """Yield the section as text, in whole lines; with `name_of`, a function's line ends in ` <name>`."""
    header, table = section.header, section.table
    yield "Contents of the SFrame section .sframe:\n  Header :\n\n"
    yield f"    Version: SFRAME_VERSION_{header.version}\n"
    yield f"    Flags: {(',' + chr(10) + ' ' * 11).join(_flags(header.flags)) or 'NONE'}\n"
    for register, offset in (("FP", header.cfa_fixed_fp_offset), ("RA", header.cfa_fixed_ra_offset)):
        if offset:
            yield f"    CFA fixed {register} offset: {offset}\n"
    yield f"    Num FDEs: {header.num_fdes}\n    Num FREs: {header.num_fres}\n\n  Function Index :\n"

    rules = {fde_type: [_columns(rule, fde_type, section.abi) for rule in table.rules] for fde_type in FdeType}
    kinds = [(_attributes(kind, section.abi), "[m]" if kind.mask else "", kind.mask, rules[kind.fde_type]) for kind in table.kinds]
    for function, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        attributes, mark, mask, columns = kinds[table.kind[function]]
        name = name_of(function) if name_of else None
        yield (
            f"\n    func idx [{function}]: pc = {start:#x}, size = {size} bytes{attributes}{f' <{name}>' if name else ''}\n"
            f"    {'STARTPC' + mark:16}CFA       FP        RA           \n"
        )
        base = 0 if mask else start
        yield "".join([f"    {base + offset:016x}{columns[rule]}" for offset, rule in table.numbered_rows(function)])


def dump_json(section: SframeSection, file: str, name_of: NameOf, code_of: NameOf | None = None) -> Iterator[str]:
    """Yield one JSON object: the header, and functions with their rows. A row of PC type MASK repeats, so it has no address.

    `code_of`: for objects, returns the section of code that a function is in.
    """
    table, abi = section.table, section.abi
    header = section.header._asdict() | {"flags": _flags(section.header.flags), "abi_arch": abi.name}
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


def _flags(flags: int) -> list[str]:
    names = [name for bit, name in FLAG_NAMES.items() if flags & bit]
    unknown = flags & ~sum(FLAG_NAMES)
    return [*names, f"{unknown:#x}"] if unknown else names


def _attributes(kind: Kind, abi: Abi) -> str:
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


def _columns(rule: Rule, fde_type: FdeType, abi: Abi) -> str:
    """Return the columns after a row's STARTPC, to the end of the line."""
    if rule.cfa is None:
        return "  RA undefined\n"
    cfa, place = COLUMNS[fde_type]
    fp = UNCHANGED if rule.fp is None else place(rule.fp, abi)
    if rule.ra == fixed(abi.fixed_ra_offset):
        # Between the words of CFA and FP stands one that says nothing of RA.
        padded = rule.fp is not None and (fde_type is FdeType.FLEX or not abi.fixed_ra_offset)
        ra = PADDING if padded else FIXED if abi.fixed_ra_offset else UNCHANGED
    else:
        ra = UNCHANGED if rule.ra is None else place(rule.ra, abi)
    return f"  {cfa(rule.cfa, abi):10}{fp:10}{ra + '[s]' * rule.ra_signed:13}\n"


def _default_cfa(cfa: Where, abi: Abi) -> str:
    return f"{_base(cfa, abi)}+{cfa.offset}"  # readelf's own: `sp+-4`


def _default_place(where: Where, abi: Abi) -> str:
    """Return a place on the stack, or a register (s390x, Version 2), which is printed by number even if it is SP or FP."""
    return f"{_base(where, abi)}{where.offset:+}" if where.deref else f"r{where.register}"


def _flex_place(where: Where, abi: Abi) -> str:
    """Return a place; brackets mean the value stored at register + n. CFA + n and the value stored there look the same."""
    place = f"{_base(where, abi)}{where.offset:+}"
    return f"({place})" if where.deref and where.register is not None else place


def _base(where: Where, abi: Abi) -> str:
    return {None: "c", abi.sp: "sp", abi.fp: "fp"}.get(where.register, f"r{where.register}")


COLUMNS = {FdeType.DEFAULT: (_default_cfa, _default_place), FdeType.FLEX: (_flex_place, _flex_place)}
